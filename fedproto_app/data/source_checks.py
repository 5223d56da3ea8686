"""What the registries of sources, of series, images and labelled sequences, check alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError, did_you_mean
from fedproto_app.core.loading import named_function
from fedproto_app.data.choice import require_meaning
from fedproto_app.settings import DataSettings

PathKind = Literal["a file", "a folder", "a file or a folder"]
Loader = TypeVar("Loader", bound=Callable[[DataSettings], Any])


def require_known(settings: DataSettings, known: Iterable[str]) -> None:
    """Refuse a ``data.source`` that is none of these names."""
    known = list(known)
    if settings.source not in known:
        raise DataError(
            f"data.source = {settings.source!r}: unknown source; "
            f"{did_you_mean(settings.source, known)}known are {', '.join(known)} "
            "and package.module:factory"
        )


def chosen_loader(
    settings: DataSettings, sources: Mapping[str, Loader], paths: Mapping[str, PathKind]
) -> tuple[Loader | Callable[[DataSettings], Any], str]:
    """The loader of ``data.source``, and what to call the source in messages.

    sources: all known ones. paths: what those read that read files. Raises `DataError` for an
    unknown source, and for a ``data.path`` that it does not read.
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


def _require_path(settings: DataSettings, wanted: PathKind) -> None:
    """Refuse a ``data.path`` that is missing, forbidden or not what the source reads."""
    if not settings.path:
        raise DataError(f"data.path is empty: source {settings.source} reads a path")
    path = Path(settings.path)
    if not path.exists():
        raise DataError(missing(path))
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: no permission to read it")
    found = "a folder" if path.is_dir() else "a file"
    if found not in wanted:
        raise DataError(f"{path}: is {found}, but source {settings.source} reads {wanted}")


def missing(path: Path) -> str:
    """That there is no such path, and what may be meant."""
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        beside = []
    near = did_you_mean(path.name, beside).removesuffix("? ")
    return f"{path}: no such file or folder" + (f"; {near}?" if near else "")


def require_inside(path: Path, folder: Path) -> None:
    """Refuse a link that leads out of the data folder, where nothing may be read.

    folder: resolved, links followed.
    """
    if not path.resolve().is_relative_to(folder):
        raise DataError(f"{path}: a link to {path.resolve()}, outside the data folder")


def users_function(source: str) -> Callable[[DataSettings], Any]:
    """The user's function named ``package.module:factory``."""
    return named_function("data.source", source, DataError)


def require_class_names(classes: object, where: str) -> None:
    """Refuse what is no tuple of names, each of them once."""
    if not isinstance(classes, tuple) or not classes or len(set(classes)) != len(classes):
        raise DataError(
            f"{where}: classes {classes!r}: expected a tuple of names, none of them twice"
        )
    if not all(isinstance(name, str) and name.strip() for name in classes):
        raise DataError(f"{where}: classes {classes!r}: expected texts that are not empty")


def require_column(values: object, wanted: str, where: str) -> None:
    """Refuse what is no array [n] of this type."""
    if not isinstance(values, np.ndarray):
        raise DataError(f"{where} are a {type(values).__name__}, expected an array")
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.dtype(wanted).type):
        raise DataError(f"{where} are {values.dtype} {values.shape}, expected {wanted} [n]")


def require_labels(labels: NDArray[np.int64], classes: int, where: str) -> None:
    """Refuse labels [n ≥ 1] that are no indices of so many classes."""
    if labels.min() < 0 or labels.max() >= classes:
        worst = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"{where}: label {worst} is outside 0 … {classes - 1}")


def listed_classes(
    classes: tuple[str, ...], settings: DataSettings, where: str
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The classes in the order of ``data.classes``, and [C] the new label of each old one.

    Without that setting both are the source's. It may list classes that this source lacks: a node
    may hold a part of the federation's.
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
