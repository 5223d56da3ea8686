"""The choice of a source, the same for series, images and sequences."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.format import sources_of
from fedproto_app.data.images.sources import load_pool
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.settings import DataSettings

MODULE = __name__  # this module serves as a user's own: "package.module:factory"
LOADERS = {"series": load_series, "images": load_pool, "labelled sequences": load_sequences}
not_a_function = 3


def load(loader: Any, source: str, path: object = "") -> Any:
    return loader(DataSettings(source=source, path=str(path)))


@pytest.mark.parametrize(
    ("loader", "source", "message"),
    [
        (
            load_series,
            "parquet",
            r".*mean 'wide-parquet' or 'long-.*\? known are wide-csv, ",
        ),
        (
            load_pool,
            "mnist",
            ".* known are class-folders, image-npz, cifar, digits and package.m",
        ),
        (load_sequences, "digits", ".* known are sequence-folder, recordings, sequence-npz"),
        (load_series, "no_such_module:load", "No module named 'no_such_module'"),
        (load_pool, "no_such_module:load", "No module named 'no_such_module'"),
        (load_series, f"{MODULE}:no_such_name", ".*has no attribute 'no_such_name'"),
        (load_series, f"{MODULE}:not_a_function", "not_a_function is not a function"),
        (load_series, ":load", "expected package.module:NAME"),
    ],
)
def test_unknown_sources(loader: Any, source: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^data.source = '{source}': {message}"):
        load(loader, source)


@pytest.mark.parametrize(
    ("loader", "source", "kinds"),
    [
        (loader, source.name, source.path)
        for holds, loader in LOADERS.items()
        for source in sources_of(holds).values()
        if source.path != "no path"
    ],
)
def test_paths_that_cannot_be_read(tmp_path: Path, loader: Any, source: str, kinds: str) -> None:
    with pytest.raises(DataError, match=f"data.path is empty: source {source} reads a path"):
        load(loader, source)
    with pytest.raises(DataError, match="no such file or folder"):
        load(loader, source, tmp_path / "nothing")
    (tmp_path / "file").touch()
    for kind, path in (("a file", tmp_path / "file"), ("a folder", tmp_path)):
        if kind not in kinds:
            message = f"^{path}: is {kind}, but source {source} reads {kinds}"
            with pytest.raises(DataError, match=message):
                load(loader, source, path)


@pytest.mark.parametrize(
    ("loader", "source"),
    [
        (load_series, "synthetic-traffic"),
        (load_pool, "digits"),
        (load_sequences, "synthetic-air-writing"),
    ],
)
def test_a_path_for_a_source_without_files_is_refused(loader: Any, source: str) -> None:
    message = rf"^data\.path = 'mine\.csv': source {source} reads no path; set data.source to a"
    with pytest.raises(DataError, match=message):
        load(loader, source, "mine.csv")


def test_the_import_is_light() -> None:
    """Every client process imports all formats, but only the format in use may cost time."""
    program = "from fedproto_app.data.format import all_formats; all_formats()"
    command = [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"]
    printed = subprocess.check_output(command, text=True, cwd=Path(__file__).parents[2])
    heavy = {"PIL", "sklearn", "pandas", "h5py", "scipy", "matplotlib", "torch"}
    assert not heavy & set(printed.split())


def breaks(settings: DataSettings) -> Iterator[ClientSeries]:
    yield ClientSeries("a", np.ones(100))
    raise KeyError("no such table")


def breaks_at_once(settings: DataSettings) -> None:
    raise ZeroDivisionError("first line\nsecond line")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "breaks",
            r"raised KeyError: 'no such table' \(test_source_checks\.py, line \d+\)$",
        ),
        ("breaks_at_once", r"Error: first line second line \(test_source_checks\.py, line \d+\)$"),
    ],
)
def test_an_error_in_a_persons_own_function_is_one_line(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        load_series(DataSettings(source=f"{MODULE}:{name}"))
    assert raised.value.__cause__ is not None  # with its traceback, in Python
