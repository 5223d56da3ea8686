from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedproto_app.cli.data import data_app
from fedproto_app.data.inspection import find_period, inspect_clients, source_of
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.errors import DataError, SettingsError
from fedproto_app.settings import DataSettings
from tests.real_data import real_data


def wave(period: float, length: int, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    steps = np.arange(length)
    rng = np.random.default_rng(seed)
    return np.sin(2 * np.pi * steps / period) + noise * rng.standard_normal(length)


@given(st.integers(4, 60), st.floats(-1, 1), st.integers(0, 9))
def test_a_noisy_sinusoid_with_a_trend(period: int, slope: float, seed: int) -> None:
    values = wave(period, 12 * period + 100, noise=0.2, seed=seed)
    found = find_period(values + slope * np.arange(len(values)) / period)
    assert found is not None
    assert abs(found - period) <= period // 20


def test_two_peaks_a_day_are_one_period() -> None:
    assert find_period(wave(24, 480) + 0.9 * wave(12, 480)) == 24


def test_a_week_of_unequal_days_is_the_week() -> None:
    days = np.repeat([1.0, 1, 1, 1, 1, 0, 0], 24)
    assert find_period(np.tile(days, 6) + 0.1 * wave(24, 6 * 168)) == 168


def test_gaps_do_not_hide_the_period() -> None:
    values = wave(24, 480, noise=0.1)
    values[100:130] = np.nan
    values[::17] = np.nan
    assert find_period(values) == 24


@pytest.mark.parametrize(
    "values",
    [
        np.empty(0),
        np.full(50, np.nan),
        np.full(50, 3.0),
        np.arange(100.0),
        np.random.default_rng(0).standard_normal(1000),
        np.array([1.0, 2, 1, 2, 1]),
    ],
    ids=["empty", "missing", "constant", "trend", "noise", "five-values"],
)
def test_no_period_where_there_is_none(values: np.ndarray) -> None:
    assert find_period(values) is None


@pytest.mark.parametrize(
    ("name", "periods"),
    [
        ("milano_internet_hourly", {24, 168}),
        ("milano_internet_10min", {144, 1008}),
        ("electricity_2014_hourly", {24, 168}),
        ("m4_hourly", {24, 168}),
    ],
)
def test_real_data_have_days_and_weeks(name: str, periods: set[int]) -> None:
    settings = DataSettings(source="wide-csv", path=str(real_data(f"{name}.csv.gz")))
    found = [find_period(series.values) for series in load_series(settings)]
    assert sum(period in periods for period in found) >= 0.8 * len(found)


def test_metr_la_votes_for_a_day_of_5_minutes() -> None:
    path = real_data("metr_la_week_5min.csv.gz")
    settings = DataSettings(source="wide-csv", path=str(path), period=288)
    inspection = inspect_clients(load_series(settings), settings)
    assert inspection.period_votes[0][0] == 288
    assert not inspection.refused


def test_every_client_is_told_apart() -> None:
    good, gappy = wave(24, 480), wave(24, 480)
    gappy[10:130] = np.nan
    clients = [
        ClientSeries("good", good, start=5),
        ClientSeries("gappy", gappy),
        ClientSeries("constant", np.full(480, 2.0)),
        ClientSeries("short", np.ones(3)),
        ClientSeries("empty", np.empty(0)),
    ]
    inspection = inspect_clients(clients, DataSettings())
    by_name = {client.name: client for client in inspection.clients}
    assert (by_name["good"].length, by_name["good"].start, by_name["good"].period) == (480, 5, 24)
    assert by_name["gappy"].missing_share == 0.25
    assert [name for name, client in by_name.items() if client.constant] == ["constant", "short"]
    assert "at least 107" in (by_name["short"].refused or "")
    assert by_name["empty"].missing_share == 0
    assert {client.name for client in inspection.refused} >= {"short", "empty"}
    assert by_name["good"] in inspection.usable
    assert inspection.lengths == (0, 480, 480)
    assert inspection.missing_share == pytest.approx(120 / 1443)
    assert inspection.period_votes == [(24, 2)]


def test_the_source_is_told_from_the_path(tmp_path: Path) -> None:
    assert source_of(tmp_path) == "csv-folder"
    for name, source in [
        ("a.csv", "wide-csv"),
        ("A.CSV.GZ", "wide-csv"),
        ("metr-la.h5", "hdf5"),
        ("x.hdf5", "hdf5"),
        ("x.npz", "npz"),
    ]:
        assert source_of(Path(name)) == source
    (tmp_path / "x.parquet").touch()
    with pytest.raises(DataError, match="no source reads such a file"):
        source_of(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="no such file or folder"):
        source_of(tmp_path / "x.feather")


def check(*arguments: str) -> tuple[int, str]:
    """Exit code and output of ``fedproto data check``; the user's errors are raised."""
    result = CliRunner().invoke(data_app, ["check", *arguments], env={"COLUMNS": "200"})
    if isinstance(result.exception, DataError | SettingsError):
        raise result.exception
    return result.exit_code, result.output


def write_csv(path: Path, **columns: np.ndarray) -> str:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    return str(path)


def test_check_shows_clients_and_a_summary(tmp_path: Path) -> None:
    short = np.where(np.arange(240) < 5, 1.0, np.nan)
    path = write_csv(tmp_path / "x.csv", **{"a[1]": wave(24, 240), "b": short})
    code, output = check(path)
    assert code == 0
    assert "2, of them 1 usable" in output
    assert "24 (1 client)" in output
    assert any(
        line.split() == ["a[1]", "240", "0", "24", "0.0%", "ok"] for line in output.split("\n")
    )
    assert "refused b: 5 steps" in output


def test_check_fails_when_nobody_is_usable(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "x.csv", a=wave(24, 240), b=wave(24, 240))
    code, output = check(path, "--period", "200")
    assert code == 1
    assert "2, of them 0 usable" in output
    assert "refused a, b: 240 steps" in output


def test_check_hides_the_many_unless_asked() -> None:
    _, brief = check("--source", "synthetic-traffic")
    _, full = check("--all")
    assert "... and 4 more" in brief
    assert "transport-05" not in brief
    assert "transport-05" in full


def test_check_tells_a_wrong_option_by_its_key() -> None:
    with pytest.raises(SettingsError, match=r"data\.period = 1"):
        check("--period", "1")
    with pytest.raises(DataError, match="unknown source"):
        check("--source", "parquet")
