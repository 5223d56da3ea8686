"""Read labelled sequences from CSV files in a folder per class, in a folder or a zip archive.

The layout is ``[<client>/]<class>/<sequence>.csv``, with clients for all files or for none. In an
archive there may be one more folder around everything. (So the folder of an archive with a single
client is not taken as the client's name, unless the archive has that outer folder too.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.file_tree import FileTree, opened
from fedproto_app.data.sequences.pool import SequencePool, float32_steps
from fedproto_app.data.sequences.steps_csv import parse_steps
from fedproto_app.data.text_table import SUFFIX
from fedproto_app.settings import Choice, DataSettings

_LAYOUT = "[<client>/]<class>/<sequence>.csv"


def load_sequence_folder(settings: DataSettings) -> SequencePool:
    """Return the sequences of a folder or zip archive, in the order of the files' names.

    Classes are in ascending order. The dimensions are the chosen columns, by default all; they are
    the same in all files.
    """
    path = Path(settings.path)
    with opened(path) as tree:
        names = [name for name in tree.names() if SUFFIX.search(name)]
        if not names:
            raise DataError(f"{path}: no file {_LAYOUT}")
        places = _places(names, path)
        dimensions, sequences = _sequences(tree, names, path, settings)
    labels = [place[-2] for place in places]
    classes, targets = np.unique(labels, return_inverse=True)
    clients = np.array([place[0] for place in places]) if len(places[0]) == 3 else None
    return SequencePool(
        dimensions, tuple(str(name) for name in classes), sequences, targets, clients
    )


def read_steps(
    tree: FileTree, name: str, path: Path, settings: DataSettings, choice: Choice
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the dimensions [d] and the steps [T, d] of a file of a tree; path: of the tree."""
    try:
        content = tree.read(name)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise DataError(f"{path}: {name} cannot be read: {error}") from None
    return parse_steps(content, f"{path}: {name}", settings, choice)


def require_same_columns(
    names: tuple[str, ...], file: str, first_names: tuple[str, ...], first_file: str, path: Path
) -> None:
    """Raise `DataError` for a file whose columns differ from the first file's."""
    if names != first_names:
        raise DataError(
            f"{path}: {file} has the columns {', '.join(names)}, but {first_file} has "
            f"{', '.join(first_names)}"
        )


def _places(names: list[str], path: Path) -> list[list[str]]:
    """Return the parts of every file's name, 2 or 3, the same number for all."""
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


def _sequences(
    tree: FileTree, names: list[str], path: Path, settings: DataSettings
) -> tuple[tuple[str, ...], list[NDArray[np.float32]]]:
    dimensions: tuple[str, ...] = ()
    sequences = []
    for name in names:
        columns, values = read_steps(tree, name, path, settings, settings.choice)
        dimensions = dimensions or columns
        require_same_columns(columns, name, dimensions, names[0], path)
        sequences.append(float32_steps(values))
    return dimensions, sequences
