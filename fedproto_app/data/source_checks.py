"""Check the settings that choose a source, its clients and its columns, and what a source gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError, FedProtoError, SettingsError, did_you_mean
from fedproto_app.core.loading import named_function
from fedproto_app.data.files import missing
from fedproto_app.settings import DataSettings

_SEQUENCES = ("sequence-folder", "recordings")
_LONG = ("long-csv", "long-parquet", "long-excel")
_FOLDERS = ("csv-folder", "parquet-folder", "excel-folder")
_EXCEL = ("wide-excel", "long-excel", "excel-folder")
_SERIES = ("wide-csv", "wide-parquet", "wide-excel", *_LONG, *_FOLDERS)
_CSV = ("wide-csv", "long-csv", "csv-folder", *_SEQUENCES)
# The sources that read each of these keys; a user's own function may read all keys.
ONLY_SOURCES = {
    "columns": (*_LONG, *_FOLDERS, *_SEQUENCES),
    "time_column": (*_SERIES, *_SEQUENCES),
    "client_column": _LONG,
    "time_unit": _SERIES,
    "time_zone": _SERIES,
    "missing": (*_SERIES, "hdf5"),
    "header": (*_CSV, *_EXCEL),
    "delimiter": _CSV,
    "decimal": (*_CSV, *_EXCEL),
}

PathKind = Literal["a file", "a folder", "a file or a folder"]
Loader = TypeVar("Loader", bound=Callable[[DataSettings], Any])
T = TypeVar("T")

_SHOWN_NAMES = 5  # available names listed in a message


def chosen(
    clients: Iterable[T], name_of: Callable[[T], str], settings: DataSettings, where: str
) -> list[T]:
    """Return the first ``data.max-clients`` of the chosen clients, in the source's order.

    where: the source's name in messages. Raises `DataError` for a client that the source lacks.
    """
    chosen_names = settings.choice.clients
    if chosen_names:
        candidates = list(clients)
        require_available(
            chosen_names, [name_of(client) for client in candidates], "clients", "client", where
        )
        clients = [client for client in candidates if name_of(client) in chosen_names]
    return list(islice(clients, settings.max_clients or None))


def require_meaning(settings: DataSettings) -> None:
    """Raise `SettingsError` for a key that the source ignores, so nobody believes it has effect."""
    for field, sources in ONLY_SOURCES.items():
        value, key = getattr(settings, field), field.replace("_", "-")
        if value == DataSettings.model_fields[field].default or ":" in settings.source:
            continue
        if settings.source not in sources:
            hint = ""
            if field == "columns" and settings.source.startswith("wide-"):
                hint = "; there a column is a client: data.clients"
            raise SettingsError(
                f"data.{key} = {value!r}: for data.source = {' or '.join(map(repr, sources))}, "
                f"not for {settings.source!r}{hint}"
            )


def require_available(
    names: Iterable[str], available: Sequence[str], key: str, noun: str, where: str
) -> None:
    """Raise `DataError` if ``data.<key>`` names something unavailable."""
    for name in names:
        if name not in available:
            more = f", … ({len(available)} in all)" if len(available) > _SHOWN_NAMES else ""
            raise DataError(
                f"data.{key}: {where} has no {noun} {name!r}; {did_you_mean(name, available)}"
                f"it has {', '.join(available[:_SHOWN_NAMES])}{more}"
            )


def require_known(settings: DataSettings, sources: Iterable[str]) -> None:
    """Raise `DataError` if ``data.source`` is not among these names."""
    sources = list(sources)
    if settings.source not in sources:
        raise DataError(
            f"data.source = {settings.source!r}: unknown source; "
            f"{did_you_mean(settings.source, sources)}known are {', '.join(sources)} "
            "and package.module:factory"
        )


def chosen_loader(
    settings: DataSettings, sources: Mapping[str, Loader], paths: Mapping[str, PathKind]
) -> tuple[Loader | Callable[[DataSettings], Any], str]:
    """Return the loader of ``data.source``, and the source's name in messages.

    sources: loaders by name. paths: the kind of path that each file source reads. Raises
    `DataError` for an unknown source, and for a ``data.path`` that the source does not read.
    """
    source = settings.source
    if ":" in source:
        return users_function(source), source
    require_known(settings, sources)
    require_meaning(settings)
    if source in paths:
        _require_path(settings, paths[source])
        return sources[source], settings.path
    if settings.path:
        raise DataError(
            f"data.path = {settings.path!r}: source {source} reads no path; "
            f"set data.source to one that does: {', '.join(paths)}"
        )
    return sources[source], source


def _require_path(settings: DataSettings, expected_kind: PathKind) -> None:
    """Raise `DataError` if ``data.path`` is missing, not readable or of the wrong kind."""
    if not settings.path:
        raise DataError(f"data.path is empty: source {settings.source} reads a path")
    path = Path(settings.path)
    if not path.exists():
        raise DataError(missing(path))
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: no permission to read it")
    kind = "a folder" if path.is_dir() else "a file"
    if kind not in expected_kind:
        raise DataError(f"{path}: is {kind}, but source {settings.source} reads {expected_kind}")


def users_function(source: str) -> Callable[[DataSettings], Any]:
    """Return the user's function named ``package.module:factory``.

    What it raises, also while its series are taken one by one, becomes a `DataError` that names the
    line of the user's file.
    """
    function = named_function("data.source", source, DataError)

    def call(settings: DataSettings) -> Any:
        with _one_line(source):
            loaded = function(settings)
        return _one_by_one(loaded, source) if isinstance(loaded, Iterator) else loaded

    return call


def _one_by_one(loaded: Iterator[Any], source: str) -> Iterator[Any]:
    with _one_line(source):
        yield from loaded


@contextmanager
def _one_line(source: str) -> Iterator[None]:
    """Turn an error of the user's function into one line that names the user's line."""
    try:
        yield
    except (FedProtoError, MemoryError):
        raise
    except Exception as error:
        frames = [f for f in extract_tb(error.__traceback__) if f.filename != __file__]
        lines = [frame for frame in frames if frame.filename == frames[0].filename]
        place = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
        reason = " ".join(str(error).split())
        raise DataError(
            f"data.source = {source!r} raised {type(error).__name__}: {reason}{place}"
        ) from error


def require_class_names(classes: object, where: str) -> None:
    """Raise `DataError` unless classes is a tuple of distinct names."""
    if not isinstance(classes, tuple) or not classes or len(set(classes)) != len(classes):
        raise DataError(
            f"{where}: classes {classes!r}: expected a tuple of names, none of them twice"
        )
    if not all(isinstance(name, str) and name.strip() for name in classes):
        raise DataError(f"{where}: classes {classes!r}: expected texts that are not empty")


def require_column(values: object, type_name: str, where: str) -> None:
    """Raise `DataError` unless values is an array [n] of this type."""
    if not isinstance(values, np.ndarray):
        raise DataError(f"{where} are a {type(values).__name__}, expected an array")
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.dtype(type_name).type):
        raise DataError(f"{where} are {values.dtype} {values.shape}, expected {type_name} [n]")


def require_labels(labels: NDArray[np.int64], classes: int, where: str) -> None:
    """Raise `DataError` if a label [n ≥ 1] is outside 0 … classes − 1."""
    if labels.min() < 0 or labels.max() >= classes:
        worst = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"{where}: label {worst} is outside 0 … {classes - 1}")


def listed_classes(
    classes: tuple[str, ...], settings: DataSettings, where: str
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the classes in the order of ``data.classes``, and the new label of each class, [C].

    Without that setting the source's order stays. The setting may list classes that this source
    lacks, as a node may hold only some of the federation's classes.
    """
    if not settings.classes:
        return classes, np.arange(len(classes))
    listed = tuple(name.strip() for name in settings.classes.split(","))
    if not all(listed) or len(set(listed)) != len(listed):
        raise DataError(
            f"data.classes = {settings.classes!r}: expected names between commas, none of them "
            "twice"
        )
    for name in classes:
        if name not in listed:
            raise DataError(f"{where}: class {name!r} is not in data.classes = {settings.classes}")
    return listed, np.array([listed.index(name) for name in classes], dtype=np.int64)
