from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.settings import DataSettings

MODULE = __name__  # this module serves as a user's own: "package.module:factory"


def own_data(settings: DataSettings) -> Iterator[ClientSeries]:
    """What a user writes: one series per client, here with missing ends."""
    for number in range(3):
        values = np.array([np.nan, 1.0, np.nan, number, np.nan])
        yield ClientSeries(f"site-{number}", values, start=10 * number, group="all")


def factory(settings: DataSettings) -> Any:
    """Return the object that the test has set."""
    return handed_over


def failing(settings: DataSettings) -> Any:
    raise RuntimeError("the user's own mistake")


handed_over: Any = None
not_a_function = 3


def load(source: str, **settings: Any) -> list[ClientSeries]:
    return load_series(DataSettings(source=source, **settings))


def test_a_users_factory_is_trimmed_as_every_source() -> None:
    clients = load(f"{MODULE}:own_data")
    assert [(s.name, s.start, s.group) for s in clients] == [
        ("site-0", 1, "all"),
        ("site-1", 11, "all"),
        ("site-2", 21, "all"),
    ]
    np.testing.assert_array_equal(clients[2].values, [1, np.nan, 2])


def test_the_first_clients_and_the_first_steps_of_the_clock() -> None:
    clients = load(f"{MODULE}:own_data", max_clients=2, max_steps=12)
    assert [s.name for s in clients] == ["site-0", "site-1"]
    assert [s.values.tolist()[0] for s in clients] == [1, 1]
    assert [len(s.values) for s in clients] == [3, 1]  # positions 1 ... 12
    assert [len(s.values) for s in load(f"{MODULE}:own_data", max_steps=1)] == [1, 0, 0]


def test_integers_become_floats_and_the_users_array_is_left_alone() -> None:
    global handed_over
    mine = np.array([1, 2, 3])
    handed_over = [ClientSeries("a", mine, start=np.int64(4))]  # type: ignore[arg-type]
    (series,) = load(f"{MODULE}:factory")
    assert series.values.dtype == np.float64
    assert type(series.start) is int
    series.values[0] = 9
    assert mine[0] == 1


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (None, "returned NoneType, expected an iterable of ClientSeries"),
        ([], "no client in it"),
        ([np.zeros(3)], "gave a ndarray, expected a ClientSeries"),
        ([ClientSeries("", np.zeros(3))], "client name ''"),
        ([ClientSeries(7, np.zeros(3))], "client name 7"),  # type: ignore[arg-type]
        ([ClientSeries("a", np.zeros(3)), ClientSeries("a", np.ones(3))], "two clients .* 'a'"),
        ([ClientSeries("a", np.zeros((3, 2)))], r"client 'a': values are float64 \(3, 2\)"),
        ([ClientSeries("a", np.array(["1"]))], "client 'a': values are <U1"),  # type: ignore[arg-type]
        ([ClientSeries("a", np.zeros(3), start=0.5)], "client 'a': start 0.5"),  # type: ignore[arg-type]
        ([ClientSeries("a", np.zeros(3), group=None)], "client 'a': group None"),  # type: ignore[arg-type]
        ([ClientSeries("a", np.array([0, -np.inf]))], "client 'a': value number 2 is infinite"),
    ],
)
def test_invalid_results_of_a_factory_are_refused(clients: Any, message: str) -> None:
    global handed_over
    handed_over = clients
    with pytest.raises(DataError, match=f"^{MODULE}:factory: {message}"):
        load(f"{MODULE}:factory")


def test_a_mistake_inside_a_factory_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="the user's own mistake"):
        load(f"{MODULE}:failing")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "parquet",
            "unknown source; did you mean 'wide-parquet' or 'long-parquet' or "
            "'parquet-folder'\\? known are wide-csv, ",
        ),
        ("no_such_module:load", "No module named 'no_such_module'"),
        (f"{MODULE}:no_such_name", "has no attribute 'no_such_name'"),
        (f"{MODULE}:not_a_function", "not_a_function is not a function"),
        (":load", "expected package.module:NAME"),
    ],
)
def test_unknown_sources(source: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^data.source = '{source}': .*{message}"):
        load(source)


@pytest.mark.parametrize(
    "source", ["wide-csv", "long-csv", "csv-folder", "parquet-folder", "hdf5", "npz"]
)
def test_paths_that_cannot_be_read(tmp_path: Path, source: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=f"data.path is empty: source {source} reads a path"):
        load(source)
    with pytest.raises(DataError, match="no such file or folder"):
        load(source, path=str(tmp_path / "nothing"))
    wrong = tmp_path / "file" if source.endswith("-folder") else tmp_path
    with pytest.raises(DataError, match=f"{wrong}: is a .*, but source {source} reads a"):
        load(source, path=str(wrong))


def test_a_path_for_a_source_without_files_is_refused() -> None:
    with pytest.raises(DataError, match=r"^data\.path = 'mine\.csv': .* reads no path"):
        load("synthetic-traffic", path="mine.csv")


def test_the_import_is_light() -> None:
    """Every client process imports the sources; only the source in use may cost time."""
    code = "import fedproto_app.data.sources, sys; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    ).stdout.split()
    assert not {"pandas", "h5py", "scipy", "matplotlib"} & set(modules)
