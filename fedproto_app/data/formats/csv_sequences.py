"""Read sequences from CSV files. A sequence is a file in the folder of its class, or a window of a
recording.

A file has a header with the dimensions' names, then one row per step. The format is the same as for
tables (table.py), but all cells are numbers. The time column is left out, because rows are steps at
any distance. It is named in the settings, or is a first column with a usual name.

With classes, the layout is ``[<client>/]<class>/<sequence>.csv``, with clients for all files or for
none. In an archive, an outer folder may surround everything. A single folder at the top is taken
for it, so the folder of a single client must lie in an outer folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import FileTree, files_in, open_tree
from fedproto_app.data.format import Candidate, Fit, Format, Source
from fedproto_app.data.formats.class_folders import SUFFIXES as IMAGE_SUFFIXES
from fedproto_app.data.formats.csv_table import SUFFIX, CsvFile
from fedproto_app.data.sequences.pool import SequencePool, float32_steps
from fedproto_app.data.source_checks import require_available
from fedproto_app.data.table import Columns, Head, require_named
from fedproto_app.settings import Choice, DataSettings
from fedproto_app.settings.choice import names_in

_LAYOUT = "[<client>/]<class>/<sequence>.csv"

Matrix = NDArray[np.float64]


def load_sequence_folder(settings: DataSettings) -> SequencePool:
    """Return the sequences of a folder or zip archive, in the order of the files' names.

    Classes are in ascending order. The dimensions are the chosen columns, by default all. They must
    be the same in all files.
    """
    path = Path(settings.path)
    with open_tree(path) as tree:
        names = _csv_names(tree, path, _LAYOUT)
        places = _places(names, path)
        read = [
            (dimensions, float32_steps(values))
            for dimensions, values in _steps_of(tree, names, path, settings, settings.choice)
        ]
    classes, targets = np.unique([place[-2] for place in places], return_inverse=True)
    clients = np.array([place[0] for place in places]) if len(places[0]) == 3 else None
    sequences = [steps for _, steps in read]
    return SequencePool(read[0][0], tuple(map(str, classes)), sequences, targets, clients)


def load_unlabelled(
    path: Path, settings: DataSettings, dimensions: Sequence[str]
) -> tuple[list[str], list[NDArray[np.float32]]]:
    """Return the names and the sequences of the CSV files in a folder or archive, or of a single
    file. A recording is cut into windows, of which the last one ends with its last row.

    dimensions: the columns to read, in this order. If it is empty, the settings choose. Raises
    `DataError` for a recording that is shorter than a window.
    """
    folder, names = files_in(path, SUFFIX, "CSV file")
    choice = settings.choice
    if dimensions:  # then no other column is needed, not even that of the times
        choice = replace(choice, columns=tuple(dimensions), time_columns=())
    with open_tree(folder) as tree:
        files = _steps_of(tree, names, folder, settings, choice)
        read = [float32_steps(values) for _, values in files]
    if settings.source != "recordings":
        return names, read
    window, stride = settings.sequences.window, settings.sequences.stride
    for name, steps in zip(names, read, strict=True):
        if len(steps) < window:
            raise DataError(
                f"{folder}: {name} has {len(steps)} steps, fewer than data.sequences.window = "
                f"{window}"
            )
    windows = {
        f"{name}, row {end}": steps[end - window : end]
        for name, steps in zip(names, read, strict=True)
        for end in reversed(range(len(steps), window - 1, -stride))
    }
    return list(windows), list(windows.values())


def _places(names: list[str], path: Path) -> list[list[str]]:
    """Return the parts of every file's name. All names have 2 parts, or all have 3."""
    places = [name.split("/") for name in names]
    if not path.is_dir() and min(map(len, places)) > 2 and len({place[0] for place in places}) == 1:
        places = [place[1:] for place in places]
    for name, place in zip(names, places, strict=True):
        if len(place) not in (2, 3):
            raise DataError(f"{path}: {name}: expected {_LAYOUT}")
        if len(place) != len(places[0]):
            having, lacking = (name, names[0]) if len(place) == 3 else (names[0], name)
            raise DataError(f"{path}: {lacking} lies in no folder of a client, but {having} does")
    return places


def load_recordings(settings: DataSettings) -> SequencePool:
    """Return the windows of a CSV file, or of a folder or zip archive with a CSV file per client.

    A window has ``data.sequences.window`` steps and begins ``data.sequences.stride`` steps after
    the previous window. Its target is the column ``data.sequences.target`` at its last step. That
    column is not an input. Windows are in the order of the clients' names, then of time. Only the
    first ``data.max-steps`` steps of each recording are read. A client whose recording is shorter
    than a window has no sequence, but is in the pool's groups, with "" as its group.
    """
    path, target_name = Path(settings.path), settings.sequences.target
    columns, recordings = _read(path, settings)
    if target_name not in columns:
        raise DataError(
            f"data.sequences.target = {target_name!r}: expected a column of {path}: "
            f"{', '.join(columns)}"
        )
    if len(columns) == 1:
        raise DataError(f"{path}: beside the target {target_name!r} there is no column")
    target = columns.index(target_name)
    sequences: list[NDArray[np.float32]] = []
    targets: list[NDArray[np.float64]] = []
    clients: list[str] = []
    for client, values in recordings.items():
        steps = len(values[: settings.max_steps or None])
        ends = range(settings.sequences.window, steps + 1, settings.sequences.stride)
        inputs = float32_steps(np.delete(values, target, axis=1))
        sequences += [inputs[end - settings.sequences.window : end] for end in ends]
        targets.append(values[[end - 1 for end in ends], target])
        clients += [client] * len(ends)
    if not sequences:
        longest = max(map(len, recordings.values()))
        raise DataError(
            f"{path}: no recording has data.sequences.window = {settings.sequences.window} steps; "
            f"the longest has {longest}"
        )
    return SequencePool(
        columns[:target] + columns[target + 1 :],
        (),
        sequences,
        np.concatenate(targets),
        np.array(clients),
        dict.fromkeys(recordings, ""),
    )


def _read(path: Path, settings: DataSettings) -> tuple[tuple[str, ...], dict[str, Matrix]]:
    """Return the columns, and each client's values [T, columns], in the order of clients' names."""
    choice, target = settings.choice, settings.sequences.target
    if choice.columns and target not in ("", *choice.columns):
        choice = replace(choice, columns=(*choice.columns, target))
    if path.is_file() and SUFFIX.search(path.name):
        columns, values = parse_steps(path, str(path), settings, choice)
        return columns, {SUFFIX.sub("", path.name): values}
    with open_tree(path) as tree:
        names = _csv_names(tree, path, "<client>.csv")
        for name in names:
            if "/" in name:
                raise DataError(f"{path}: {name}: expected <client>.csv, not in a folder")
        clients = [SUFFIX.sub("", name) for name in names]
        if len(set(clients)) != len(clients):
            twice = next(client for client in clients if clients.count(client) > 1)
            raise DataError(f"{path}: two files of client {twice!r}")
        read = list(_steps_of(tree, names, path, settings, choice))
    return read[0][0], dict(zip(clients, (values for _, values in read), strict=True))


def _csv_names(tree: FileTree, path: Path, layout: str) -> list[str]:
    """Return the names of the CSV files in a tree. There must be at least one."""
    names = [name for name in tree.names() if SUFFIX.search(name)]
    if not names:
        raise DataError(f"{path}: no file {layout}")
    return names


def _steps_of(
    tree: FileTree, names: list[str], path: Path, settings: DataSettings, choice: Choice
) -> Iterator[tuple[tuple[str, ...], Matrix]]:
    """Yield for each of these files its columns [d], the same in all, and its steps [T, d]."""
    first_columns: tuple[str, ...] = ()
    for name in names:
        try:
            content = tree.read(name)
        except (DataError, MemoryError):
            raise
        except Exception as error:  # a damaged archive fails in many ways
            raise DataError(f"{path}: {name} cannot be read: {error}") from None
        columns, values = parse_steps(content, f"{path}: {name}", settings, choice)
        first_columns = first_columns or columns
        if columns != first_columns:
            raise DataError(
                f"{path}: {name} has the columns {', '.join(columns)}, but {names[0]} has "
                f"{', '.join(first_columns)}"
            )
        yield columns, values


def parse_steps(
    source: Path | bytes, where: str, settings: DataSettings, choice: Choice | None = None
) -> tuple[tuple[str, ...], Matrix]:
    """Return the names of the dimensions [d] and the values [T, d], all finite, T ≥ 1.

    source: a file or its content. where: the file's name in messages. choice: the columns to read,
    in this order, by default as in the settings. A `DataError` names the line and the column.
    """
    file = CsvFile(source, where, settings)
    columns = _steps_columns(file.head, choice or settings.choice)
    table = file.read(columns, names_in(settings.missing_values))
    names, values = tuple(table.names), table.numbers()
    if not (finite := np.isfinite(values)).all():
        row, column = np.argwhere(~finite)[0].tolist()
        fault = "no value" if np.isnan(values[row, column]) else "no finite number"
        raise DataError(f"{where}: column {names[column]!r}, {table.row_of(row)}: {fault}")
    return names, values


def _steps_columns(head: Head, choice: Choice) -> Columns:
    """Return the columns of the dimensions."""
    times = [head.place(name, "time-column") for name in choice.time_columns]
    first = "" if head.times is None else head.names[head.times]
    if not times and head.times is not None and first and first not in choice.columns:
        times = [head.times]  # so that a column without a name is not taken for times
    places = [place for place in range(len(head.names)) if place not in times]
    if choice.columns:
        available = [head.names[place] for place in places]
        require_available(choice.columns, available, "columns", "column", head.where)
        places = [place for name in choice.columns for place in places if head.names[place] == name]
    if not places:
        raise DataError(f"{head.where}: no column of values in the header")
    require_named((head.names[place] for place in places), head.where)
    return Columns(places)


def _fit(candidate: Candidate) -> Fit:
    """Return a strong fit if all CSV files are in folders and there is no image."""
    if not (candidate.is_folder or candidate.name.endswith(".zip")):
        return Fit.NONE
    files = [name for name in candidate.files if SUFFIX.search(name)]
    if any(name.lower().endswith(IMAGE_SUFFIXES) for name in candidate.files):
        return Fit.NONE
    return Fit.STRONG if files and all("/" in name for name in files) else Fit.NONE


_source = partial(
    Source,
    holds="labelled sequences",
    path="a file or a folder",
    keys=("columns", "time_column", "missing_values", "header", "delimiter", "decimal"),
)
FORMAT = Format(
    (
        _source("sequence-folder", load=load_sequence_folder),
        _source(  # never recognised, because its files look like series
            "recordings",
            load=load_recordings,
        ),
    ),
    "a folder or .zip of class folders of CSV files",
    _fit,
)
