"""Check the settings that choose a source, its clients and columns, and what the source returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from traceback import extract_tb
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError, FedProtoError, SettingsError, did_you_mean
from fedproto_app.core.loading import named_function
from fedproto_app.core.section import kebab
from fedproto_app.data.files import missing
from fedproto_app.data.format import PathKind, all_sources, fields_of_some_sources, sources_of
from fedproto_app.settings import DataSettings

T = TypeVar("T")

_SHOWN_NAMES = 5  # available names listed in a message


def chosen(
    clients: Iterable[T], name_of: Callable[[T], str], settings: DataSettings, where: str
) -> list[T]:
    """Return the first ``data.max-clients`` of the chosen clients, in the source's order.

    where: the source's name in messages. Raises `DataError` if the source lacks a chosen client.
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
    """Raise `SettingsError` if a key is set that the source ignores."""
    sources = all_sources()
    if (source := sources.get(settings.source)) is None:  # a user's function may read all keys
        return
    for name in fields_of_some_sources():
        value = getattr(settings, name)
        if name in source.keys or value == DataSettings.model_fields[name].default:
            continue
        takers = " or ".join(repr(taker.name) for taker in sources.values() if name in taker.keys)
        hint = f"; {source.hints[name]}" if name in source.hints else ""
        raise SettingsError(
            f"data.{kebab(name)} = {value!r}: for data.source = {takers}, not for "
            f"{settings.source!r}{hint}"
        )


def require_available(
    names: Iterable[str], available: Sequence[str], key: str, noun: str, where: str
) -> None:
    """Raise `DataError` if ``data.<key>`` names something that is not available."""
    for name in names:
        if name not in available:
            more = f", … ({len(available)} in all)" if len(available) > _SHOWN_NAMES else ""
            raise DataError(
                f"data.{key}: {where} has no {noun} {name!r}; {did_you_mean(name, available)}"
                f"it has {', '.join(available[:_SHOWN_NAMES]) or 'no other'}{more}"
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


def loaded_from(settings: DataSettings, holds: str) -> tuple[object, str]:
    """Return what the loader of ``data.source`` returns, and the source's name in messages.

    holds: the kind of data that is needed. Raises `DataError` if the source is unknown or cannot
    read ``data.path``, or if its loader finds a fault.
    """
    name = settings.source
    if holds != "series":
        for key in ("known", "covariates", "holidays"):
            if value := getattr(settings, key):
                raise SettingsError(f"data.{key} = {value!r}: for series, not for {holds}")
    if ":" in name:
        return users_function(name)(settings), name
    sources = sources_of(holds)
    require_known(settings, sources)
    require_meaning(settings)
    source = sources[name]
    if source.path != "no path":
        _require_path(settings, source.path)
        return source.load(settings), settings.path
    if settings.path:
        with_path = [reader.name for reader in sources.values() if reader.path != "no path"]
        raise DataError(
            f"data.path = {settings.path!r}: source {name} reads no path; set data.source to a "
            f"source that does: {', '.join(with_path)}"
        )
    return source.load(settings), name


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


def users_function(source: str) -> Callable[[DataSettings], object]:
    """Return the user's function named ``package.module:factory``.

    If it raises an exception, even later while it yields series one by one, this becomes a
    `DataError` that names the line of the user's file.
    """
    function = named_function("data.source", source, DataError)

    def call(settings: DataSettings) -> object:
        with _one_line(source):
            loaded = function(settings)
        return _one_by_one(loaded, source) if isinstance(loaded, Iterator) else loaded

    return call


def _one_by_one(loaded: Iterator[object], source: str) -> Iterator[object]:
    with _one_line(source):
        yield from loaded


@contextmanager
def _one_line(source: str) -> Iterator[None]:
    """Turn an error of the user's function into one line of text that names the user's line."""
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

    If it is not set, the source's order stays. The setting may list classes that this source lacks,
    because a node may hold only some of the federation's classes.
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
