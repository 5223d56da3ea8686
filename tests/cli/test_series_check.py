"""``fedproto data check`` on series, as a person calls it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from fedproto_app.data.windows import shortest_length
from fedproto_app.experiments.trial import Wishes, plan_of
from fedproto_app.settings import DataSettings
from tests.cli.conftest import Fedproto, rows
from tests.helpers.waves import wave


def needed_steps(**data: int) -> str:
    settings = DataSettings(**data)
    return f"{shortest_length(settings)} steps at period {settings.period}"


def write_csv(path: Path, **columns: np.ndarray) -> Path:
    cells = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in cells)]))
    return path


def test_clients_and_a_summary(check: Fedproto, tmp_path: Path) -> None:
    short, gappy = np.where(np.arange(240) < 5, 1.0, np.nan), wave(24, 240)
    gappy[100:124] = np.nan
    data = write_csv(tmp_path / "x.csv", **{"a[1]": wave(24, 240), "b": short, "gappy": gappy})
    outcome = check(data)
    assert outcome.code == 0, outcome.err
    table = rows(outcome.out)
    assert table[0] == ["client", "steps", "start", "period", "missing", "verdict"]
    assert table[1] == ["a[1]", "240", "0", "24", "0.0%", "ok"]
    assert table[3] == ["gappy", "240", "0", "24", "10.0%", "ok"]
    assert "3, of them 2 usable" in outcome.out
    assert "5 shortest, 240 median, 240 longest" in outcome.out
    assert "107 steps at period 24" in outcome.out
    assert "24 (2 clients)" in outcome.out
    assert ["missing", "4.95%", "of", "all", "values"] in table  # 24 of 485
    assert "refused b: its first 24 values set its scale" in outcome.out
    assert "checked with" not in outcome.out


def test_another_period_than_the_checked_one_is_told(check: Fedproto, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "x.csv", a=wave(24, 480))
    outcome = check(data, "--period", 12)
    assert "checked with --period 12" in outcome.out


def test_nobody_is_usable(check: Fedproto, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "x.csv", a=wave(24, 240), b=wave(24, 240))
    outcome = check(data, "--period", 2000)
    assert outcome.code == 1
    assert "2, of them 0 usable" in outcome.out
    assert "refused a, b: its first 2000 values set its scale" in outcome.out


def test_newcomers_are_told_what_they_get(check: Fedproto, tmp_path: Path) -> None:
    young = np.where(np.arange(240) < 48, wave(24, 240), np.nan)
    outcome = check(write_csv(tmp_path / "x.csv", a=wave(24, 240), b=young))
    assert ["b", "48", "0", "-", "0.0%", "newcomer"] in rows(outcome.out)
    printed = " ".join(outcome.out.split())
    assert "newcomers with fewer before their test part: 1" in printed
    assert "b, 48 steps: trains on 32 values, validates on 4 and is tested on 11" in printed


def test_a_client_without_a_value_misses_all(check: Fedproto, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "x.csv", a=wave(24, 240), b=np.full(240, np.nan))
    outcome = check(data)
    assert ["b", "0", "-", "-", "100.0%", "refused"] in rows(outcome.out)
    assert "refused b: no value is present" in outcome.out
    data = write_csv(tmp_path / "y.csv", a=np.full(240, np.nan), b=np.full(240, np.nan))
    outcome = check(data, "--source", "wide-csv")
    assert ["missing", "100.00%", "of", "all", "values"] in rows(outcome.out)


def test_the_line_is_for_when_there_is_enough_to_train_on(check: Fedproto, tmp_path: Path) -> None:
    (tmp_path / "readings.csv").write_text(LONG)
    outcome = check(tmp_path / "readings.csv", "--period", 2000, "--target", "load")
    assert outcome.code == 1
    assert "once the data are mended: fedproto run --set method=kindred" in outcome.out


def test_values_that_no_run_can_train_on_are_told(check: Fedproto, tmp_path: Path) -> None:
    broken = wave(24, 240)
    broken[50] = -1e30
    data = write_csv(tmp_path / "x.csv", a=wave(24, 240), b=broken)
    outcome = check(data)
    assert outcome.code == 0
    assert "warning b: values up to 1e+30 in size" in outcome.out
    fine = check(write_csv(tmp_path / "y.csv", a=wave(24, 240)))
    assert "warning" not in fine.out


def test_oddities_are_noted_and_told(check: Fedproto, tmp_path: Path) -> None:
    spiked, late, huge = wave(24, 240), wave(24, 240), wave(24, 240)
    spiked[[50, 51]] = 500.0, 900.0
    late[:210] = 3.0
    huge[-1] = 1e20
    data = write_csv(tmp_path / "x.csv", fine=wave(24, 240), spiked=spiked, late=late, huge=huge)
    outcome = check(data)
    assert outcome.code == 0
    table = [line.rstrip() for line in outcome.out.split("\n")]
    assert table[0].split()[-2:] == ["verdict", "notes"]
    notes = {line.split()[0]: line.partition(" ok")[2].strip() for line in table[1:5]}
    assert notes["fine"] == ""
    assert notes["spiked"] == "2 outliers, test spread ×0.0092"  # spikes make up its scale
    assert notes["late"].startswith("train part constant")
    assert notes["huge"] == "1 outlier, too large"
    output = " ".join(outcome.out.split())
    assert "warning huge, spiked: outliers (3 values), over 10 robust deviations" in output
    assert "the farthest: huge, 1e+20 at step 239, " in output
    assert "warning late: the train part is constant" in output
    assert "warning huge: values up to " in output


def test_the_many_are_hidden_unless_asked_for(check: Fedproto) -> None:
    brief = check("--source", "synthetic-traffic")
    full = check("--all")
    assert "... and 4 more (--all lists them)" in brief.out
    assert "transport-05" not in brief.out
    assert "transport-05" in full.out


def test_as_a_run_of_a_file_would(check: Fedproto, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "x.csv", a=wave(24, 240))
    config = tmp_path / "run.toml"
    config.write_text(f"[data]\nsource = 'wide-csv'\npath = '{data}'\nperiod = 12\n")
    from_file = check("--config", config)
    assert needed_steps(period=12) in from_file.out
    changed = check("--config", config, "--set", "data.periodic-window=1")
    assert needed_steps(period=12, periodic_window=1) in changed.out
    option = check("--config", config, "--set", "data.period=9", "--period", 6)
    assert needed_steps(period=6) in option.out
    another = check(write_csv(tmp_path / "y.csv", b=wave(24, 240)), "--all")
    assert another.out.startswith("forecasting b\n")
    assert another.out.split("\n")[2].split()[0] == "b"


LONG = "site,when,load,rain\n" + "".join(
    f"{site},2024-01-{hour // 24 + 1:02d} {hour % 24:02d}:00,{value:.3f},0\n"
    for site in ("north", "south")
    for hour, value in enumerate(wave(24, 240))
)


def test_a_column_with_the_same_word_in_each_row_is_left_out(
    check: Fedproto, tmp_path: Path
) -> None:
    (tmp_path / "meter.csv").write_text(LONG.replace(",rain", ",status").replace(",0\n", ",W\n"))
    outcome = check(tmp_path / "meter.csv")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("forecasting load\n")
    assert "not known in advance: status (is constant at every client)" in outcome.out


def test_the_line_that_reads_the_file_is_offered_and_reads_it(
    check: Fedproto, tmp_path: Path
) -> None:
    (tmp_path / "readings.csv").write_text(LONG)
    outcome = check(tmp_path / "readings.csv", "--target", "load", "--period", 12)
    assert outcome.code == 0, outcome.err
    assert "2, of them 2 usable" in outcome.out
    assert " north     240  2024-01-01 00:00:00 " in outcome.out
    target, *_, beside, read, line = outcome.out.rstrip().split("\n")
    assert target == "forecasting load"
    assert beside == "not known in advance: rain (is constant at every client)"
    assert read.startswith("read as long-csv, with --set data.client-column=site ")
    words = line.removeprefix("train on it: fedproto run ").split()
    assert words[:2] == ["--set", "method=kindred"]
    assert set(words[-3:]) == {"data.period=12", "--set", "data.columns=load"}
    repeated = check(*words, "--all")
    assert repeated.code == 0, repeated.err
    assert "2, of them 2 usable" in repeated.out
    wrong = check(tmp_path / "readings.csv", "--source", "wide-csv")
    assert wrong.err.count("\n") == 1
    assert "which column is to be forecast: load, rain? name it with --target" in wrong.err
    wrong = check(tmp_path / "readings.csv", "--source", "long-csv", "--target", "load")
    assert "it looks as if this read it: --set data.client-column=site" in wrong.err
    missing = check(tmp_path / "reading.csv")
    assert "did you mean 'readings.csv'?" in missing.err


def test_the_line_has_what_was_set_and_excels_missing_values_are_numbers(
    check: Fedproto, tmp_path: Path
) -> None:
    rows = [f"{hour},{value:.3f},{value:.3f}" for hour, value in enumerate(wave(24, 400))]
    rows[7] = "7,#N/A,1.0"
    (tmp_path / "sites.csv").write_text("\n".join(["time,north,south", *rows]))
    sets = ["--set", "data.horizon=3", "--set", "data.train-share=0.5"]
    outcome = check(tmp_path / "sites.csv", *sets)
    assert "2, of them 2 usable" in outcome.out
    line = outcome.out.rstrip().split("\n")[-1]
    assert line.startswith("train on it: fedproto run ")
    assert line.endswith(" --set data.horizon=3 --set data.train-share=0.5")
    assert "data.clients" not in line


def test_what_was_done_to_the_file_is_told_and_what_was_left_out_comes_first(
    check: Fedproto, tmp_path: Path
) -> None:
    times = np.datetime64("2024-01-01T00") + np.arange(240)
    wet = np.where(np.arange(240) % 3, "dry", "wet")
    data = write_csv(tmp_path / "x.csv", time=times[::-1], a=wave(24, 240), rain=wet)
    outcome = check(data)
    assert outcome.code == 0
    assert "rows were not in the order of time and are sorted" in outcome.out
    target, first = outcome.out.splitlines()[:2]
    assert target == "forecasting a"
    assert first == "warning column 'rain' is left out, as it holds no numbers, such as 'wet'"


def test_rows_left_out_mean_zero_if_someone_says_so(check: Fedproto, tmp_path: Path) -> None:
    times = np.datetime64("2024-01-01T00") + np.arange(240) ** 2 // 20
    data = write_csv(tmp_path / "x.csv", time=np.unique(times), a=wave(24, len(np.unique(times))))
    assert "more gaps than rows" in check(data).err
    outcome = check(data, "--set=data.missing=zero")
    assert outcome.code == 0
    assert "--set data.missing=zero" in outcome.out.splitlines()[-1]


def test_the_options_of_a_first_run_work_together_on_every_layout(
    check: Fedproto, tmp_path: Path
) -> None:
    """The printed settings are those of `try`."""
    times = pd.date_range("2024-01-01", periods=200, freq="D").astype(str)
    parts = {
        store: pd.DataFrame(
            {
                "date": times,
                "store": store,
                "sales": wave(7, 200, 0.5, store),
                "price": wave(9, 200),
            }
        )
        for store in range(1, 5)
    }
    (tmp_path / "parts").mkdir()
    (tmp_path / "folder").mkdir()
    for store, part in parts.items():
        part.to_csv(tmp_path / "parts" / f"{store}.csv", index=False)
        part.drop(columns="store").to_csv(tmp_path / "folder" / f"{store}.csv", index=False)
    pd.concat(parts.values()).to_csv(tmp_path / "long.csv", index=False)
    wide = pd.DataFrame({f"{k}": part["sales"] for k, part in parts.items()})
    wide.assign(price=parts[1]["price"]).set_axis(pd.Index(times, name="date")).to_csv(
        tmp_path / "wide.csv"
    )
    for name, source, reading in (
        ("long.csv", "long-csv", {"target": "sales", "clients_from": "store"}),
        ("parts", "long-csv", {"target": "sales", "clients_from": "store"}),
        ("folder", "csv-folder", {"target": "sales"}),
        ("wide.csv", "wide-csv", {"target": "2"}),
        ("wide.csv", "wide-csv", {}),
    ):
        arguments = [word for k, v in reading.items() for word in (f"--{k.replace('_', '-')}", v)]
        numbers = ["--known", "price", "--period", 7, "--horizon", 3]
        outcome = check(tmp_path / name, *arguments, *numbers)
        assert outcome.code == 0, outcome.err
        command = outcome.out.splitlines()[-1]
        columns = {"data.known": "price"}
        clients_from, target = reading.get("clients_from", ""), reading.get("target", "")
        wishes = Wishes(3, 7, clients_from, changes=columns, target=target)
        planned = plan_of(tmp_path / name, wishes)
        chosen = {**planned.settings, **planned.rows[planned.together].changes}
        assert chosen["data.source"] == source
        for key in ("data.columns", "data.clients", "data.client-column", "data.covariates"):
            assert (key in chosen) == (f"{key}=" in command), (name, key)
        for key in ("source", "known", "period", "horizon"):
            assert f" --set data.{key}={chosen[f'data.{key}']}" in command
        assert "known ahead" in outcome.out
        assert "target" not in reading or f"forecasting {reading['target']}" in outcome.out
