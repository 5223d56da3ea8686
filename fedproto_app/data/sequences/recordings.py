"""Read recordings of real-valued series from CSV files and cut them into windows with a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.file_tree import opened
from fedproto_app.data.room import whole_content
from fedproto_app.data.sequences.pool import SequencePool, float32_steps
from fedproto_app.data.sequences.sequence_folder import read_steps, require_same_columns
from fedproto_app.data.sequences.steps_csv import parse_steps
from fedproto_app.data.text_table import SUFFIX
from fedproto_app.settings import Choice, DataSettings

Recordings = dict[str, NDArray[np.float64]]


def load_recordings(settings: DataSettings) -> SequencePool:
    """Return the windows of a CSV file, or of a folder or zip archive with a CSV file per client.

    A window has ``data.sequences.window`` steps and begins ``data.sequences.stride`` steps after
    the previous window. Its target is the column ``data.sequences.target`` at its last step; that
    column is not an input. Windows are in the order of the clients' names and of time. Only the
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
        ends = _ends(len(values[: settings.max_steps or None]), settings)
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


def _with_target(choice: Choice, target: str) -> Choice:
    """Return the choice with the target added to the chosen columns, if any are chosen."""
    if not choice.columns or target in ("", *choice.columns):
        return choice
    return replace(choice, columns=(*choice.columns, target))


def _ends(steps: int, settings: DataSettings) -> range:
    """Return the end of each window, exclusive."""
    return range(settings.sequences.window, steps + 1, settings.sequences.stride)


def _read(path: Path, settings: DataSettings) -> tuple[tuple[str, ...], Recordings]:
    """Return the columns, and the values [T, columns] of each client in the order of the names."""
    choice = _with_target(settings.choice, settings.sequences.target)
    if path.is_file() and SUFFIX.search(path.name):
        columns, values = parse_steps(whole_content(path), str(path), settings, choice)
        return columns, {SUFFIX.sub("", path.name): values}
    columns, recordings, first = (), {}, ""
    with opened(path) as tree:
        names = [name for name in tree.names() if SUFFIX.search(name)]
        if not names:
            raise DataError(f"{path}: no file <client>.csv")
        for name in names:
            if "/" in name:
                raise DataError(f"{path}: {name}: expected <client>.csv, not in a folder")
            file_columns, values = read_steps(tree, name, path, settings, choice)
            columns, first = columns or file_columns, first or name
            require_same_columns(file_columns, name, columns, first, path)
            client = SUFFIX.sub("", name)
            if client in recordings:
                raise DataError(f"{path}: two files of client {client!r}")
            recordings[client] = values
    return columns, recordings
