"""``fedproto forecast`` as a person calls it, on the state of a short run."""

from __future__ import annotations

import csv
import io
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from fedproto_app.data.sources import load_histories
from fedproto_app.serving import forecast, open_state
from fedproto_app.settings import DataSettings
from tests.cli.conftest import Fedproto
from tests.helpers.made_series import made_series, train_on
from tests.node.stored import copied_with


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The node's state after two rounds of FedAvg, where the kept model is the shared model."""
    folder = tmp_path_factory.mktemp("trained")
    made_series().to_csv(folder / "sites.csv")
    return train_on(folder / "sites.csv", folder, method="fedavg")[1]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made_series().to_csv(tmp_path / "sites.csv")
    return tmp_path / "sites.csv"


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_next_step_of_every_client_is_printed(
    fedproto: Fedproto, state: Path, data: Path
) -> None:
    outcome = fedproto("forecast", "--state", state, "--data", data, "--layout", "long")
    assert outcome.code == 0
    forecasts, _ = forecast(
        open_state(state), load_histories(DataSettings(source="wide-csv", path=str(data))), 1
    )
    assert table(outcome.out) == [
        {
            "unique_id": prediction.client,
            "ds": "2024-03-09 05:00:00",
            "y_hat": f"{prediction.values[0]:.10g}",
            **{name: f"{limit[0]:.10g}" for name, limit in prediction.limits.items()},
        }
        for prediction in forecasts
    ]
    assert len(forecasts) == 3
    assert all(f"{prediction.values[0]:.6g}" in outcome.err for prediction in forecasts)
    assert "left out" not in outcome.err


def test_times_that_never_have_a_value_are_empty_and_named(
    fedproto: Fedproto, state: Path, tmp_path: Path
) -> None:
    frame = made_series()
    frame.loc[frame.index.hour == 6, "steady"] = np.nan
    frame.to_csv(tmp_path / "sites.csv")
    outcome = fedproto("forecast", "--state", state, "--data", tmp_path / "sites.csv", "--steps", 2)
    assert outcome.code == 0
    first, second = table(outcome.out)
    assert first["steady"]
    assert second["time"] == "2024-03-09 06:00:00"
    assert second["gappy"]
    assert not second["steady"]
    assert "empty steady: no forecast at 06:00, because no value was ever there" in outcome.err


def test_a_file_takes_a_day_of_one_client(
    fedproto: Fedproto, state: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "next.csv"
    out.write_text("old")
    outcome = fedproto(
        "forecast", "--state", state.parent, "--data", data,
        "--client", "late", "--steps", "24", "--out", out,
    )  # fmt: skip
    assert (outcome.code, outcome.out) == (0, "")
    rows = table(out.read_text())
    assert list(rows[0]) == ["time", "late", "late-lo-80", "late-hi-80", "late-lo-95", "late-hi-95"]
    assert rows[-1]["time"] == "2024-03-10 04:00:00"
    assert sorted(tmp_path.iterdir()) == [out, data]
    late = next(line for line in outcome.err.splitlines() if "late" in line)
    assert late.split()[-4:] == [
        f"{float(rows[0]['late']):.6g}",
        "2024-03-09",
        "05:00:00",
        "24",
    ]


def test_levels_are_chosen(fedproto: Fedproto, state: Path, data: Path, tmp_path: Path) -> None:
    picture = tmp_path / "next.png"
    command = ("forecast", "--state", state, "--data", data, "--layout", "long")
    chosen = ("--level", "90", "--level", "50", "--level", "99", "--level", "90")
    outcome = fedproto(*command, *chosen, "--picture", picture)
    assert outcome.code == 0, outcome.err
    [row, *_] = table(outcome.out)
    names = ["lo-90", "hi-90", "lo-50", "hi-50", "lo-99", "hi-99"]
    assert list(row) == ["unique_id", "ds", "y_hat", *names]
    usual = table(fedproto(*command).out)[0]
    inside = [row["hi-50"], usual["hi-80"], row["hi-90"], usual["hi-95"], row["hi-99"]]
    assert inside == sorted(inside, key=float)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert fedproto(*command, "--level", "100").code == 2


def test_a_folder_of_files_gives_the_same(
    fedproto: Fedproto, state: Path, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sites"
    folder.mkdir()
    for name, column in made_series().items():
        column.to_csv(folder / f"{name}.csv")
    command = ("forecast", "--state", state, "--layout", "long", "--data")
    with_source = fedproto(*command, folder, "--source", "csv-folder")
    assert with_source.out == fedproto(*command, folder).out == fedproto(*command, data).out
    assert fedproto("forecast", "--state", state, "--data", folder).out == with_source.out


def test_a_site_chooses_columns_as_in_training(
    fedproto: Fedproto, state: Path, tmp_path: Path
) -> None:
    made_series().assign(note="text").rename_axis("when").to_csv(tmp_path / "sites.csv")
    site = tmp_path / "site.toml"
    site.write_text(
        '[data]\nsource = "wide-csv"\npath = "sites.csv"\n'
        'time-column = "when"\nclients = ["late", "steady"]\n'
    )
    command = ("forecast", "--state", state, "--layout", "long", "--data", tmp_path / "sites.csv")
    question = fedproto(*command).err  # its notes seem to be the name of a client
    assert "which column is to be forecast: gappy, late, steady?" in question
    assert "if every column is a client, --set data.clients=gappy,late,steady" in question
    outcome = fedproto(*command, "--site", site)
    assert [row["unique_id"] for row in table(outcome.out)] == ["late", "steady"]
    wide = table(fedproto(*command, "--site", site, "--layout", "as-data").out)
    assert list(wide[0])[:3] == ["when", "late", "steady"]


def test_a_whole_run_forecasts_from_its_own_source_with_a_picture(
    fedproto: Fedproto, state: Path, data: Path, tmp_path: Path
) -> None:
    """The run's folder holds the states of two nodes, both from one training."""
    run = tmp_path / "run"
    for node, client in (("0", "gappy"), ("1", "late")):
        copied_with(client, state, run / "state" / node)
    picture, out = tmp_path / "next.png", tmp_path / "next.csv"
    outcome = fedproto(
        "forecast", run, "--data", data, "--steps", 3, "--out", out, "--picture", picture
    )
    assert outcome.code == 0
    all_rows = table(fedproto("forecast", "--state", state, "--data", data, "--steps", 3).out)
    without_steady = [{k: v for k, v in row.items() if "steady" not in k} for row in all_rows]
    assert table(out.read_text()) == without_steady
    assert f"left out steady: it did not train: no kept model in {run / 'state'}" in outcome.err
    assert picture.read_bytes().startswith(b"\x89PNG")

    for settings in run.glob("state/*/settings.toml"):  # the run's own source
        stored = tomllib.loads(settings.read_text())
        stored["data"] |= {"source": "wide-csv", "path": str(data), "max-steps": 90}
        settings.write_text(tomli_w.dumps(stored))
    from_source = fedproto("forecast", run, "--steps", 3)
    assert from_source.out == out.read_text()
    refused = fedproto("forecast", run, "--out", data)
    assert (refused.code, "is part of the data" in refused.err) == (2, True)


def test_others_clients_are_named_and_left_out(
    fedproto: Fedproto, state: Path, tmp_path: Path
) -> None:
    frame = made_series().drop(columns="steady").assign(new=1.0)
    frame.to_csv(tmp_path / "other.csv")
    outcome = fedproto("forecast", "--state", state, "--data", tmp_path / "other.csv")
    assert outcome.code == 0
    assert list(table(outcome.out)[0])[:3] == ["time", "gappy", "late"]
    assert f"left out new: it did not train: no kept model in {state}\n" in outcome.err
    assert "left out steady: not in the data\n" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--client", "nobody"), "client 'nobody' cannot be forecast"),
        (("--out", "{data}"), "is part of the data"),
        (("--out", "{folder}"), "is a folder"),
        (("--out", "{folder}/none/out.csv"), "there is no folder"),
        (("--source", "hdf5"), "not a readable HDF5"),
        (("--state", "{folder}"), "no node's state"),
        (("--data", "{folder}/none.csv"), "no such file"),
        (("--picture", "{folder}"), "--picture {folder}: is a folder"),
    ],
)
def test_mistakes_are_told_in_one_line(
    fedproto: Fedproto, state: Path, data: Path, arguments: tuple[str, ...], message: str
) -> None:
    options = {"--state": str(state), "--data": str(data)}
    option, value = arguments
    options[option] = value.format(data=data, folder=data.parent)
    outcome = fedproto("forecast", *(text for pair in options.items() for text in pair))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert message.format(folder=data.parent) in outcome.err
    assert outcome.err.count("\n") == 1
    assert sorted(data.parent.iterdir()) == [data]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name either the folder of a run, or the folder of a node with --state"),
        (("{state}", "--state", "{state}"), "name either the folder of a run"),
        (("{state}",), "the state of a node; name it with --state"),
        (("--state", "{state}"), "--state needs --data, or --site"),
    ],
)
def test_what_to_forecast_must_be_clear(
    fedproto: Fedproto, state: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = fedproto("forecast", *(text.format(state=state) for text in arguments))
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


def test_labelled_data_are_no_series(fedproto: Fedproto, state: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "labelled.npz", points=np.zeros((4, 2)), offsets=np.array([0, 4]))
    outcome = fedproto("forecast", "--state", state, "--data", tmp_path / "labelled.npz")
    assert outcome.code == 2
    assert "holds no series but looks like source sequence-npz" in outcome.err


def test_a_misspelt_source_is_named(fedproto: Fedproto, state: Path, tmp_path: Path) -> None:
    arguments = ("--state", state, "--data", tmp_path / "a.csv", "--source", "long-csw")
    outcome = fedproto("forecast", *arguments)
    assert outcome.code == 2
    assert (
        "--source long-csw: did you mean 'long-csv' or 'long-excel'? known are csv-folder, "
        in outcome.err
    )
