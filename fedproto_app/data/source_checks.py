"""What the registries of sources, of series and of images, check alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from fedproto_app.errors import DataError
from fedproto_app.settings import DataSettings


def require_known(settings: DataSettings, known: Iterable[str]) -> None:
    """Refuse a ``data.source`` that is none of these names."""
    known = list(known)
    if settings.source not in known:
        raise DataError(
            f"data.source = {settings.source!r}: unknown source; known are {', '.join(known)} "
            "and package.module:factory"
        )


def require_no_path(settings: DataSettings, file_sources: Iterable[str]) -> None:
    """Refuse a path for a source that reads none; names those that do."""
    if settings.path:
        raise DataError(
            f"data.path = {settings.path!r}: source {settings.source} reads no path; "
            f"set data.source to one that does: {', '.join(file_sources)}"
        )


def require_path(
    settings: DataSettings, wanted: Literal["a file", "a folder", "a file or a folder"]
) -> None:
    """Refuse a ``data.path`` that is missing, forbidden or not what the source reads."""
    if not settings.path:
        raise DataError(f"data.path is empty: source {settings.source} reads a path")
    path = Path(settings.path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: no permission to read it")
    found = "a folder" if path.is_dir() else "a file"
    if found not in wanted:
        raise DataError(f"{path}: is {found}, but source {settings.source} reads {wanted}")


def require_inside(path: Path, folder: Path) -> None:
    """Refuse a link that leads out of the data folder, where nothing may be read.

    folder: resolved, links followed.
    """
    if not path.resolve().is_relative_to(folder):
        raise DataError(f"{path}: a link to {path.resolve()}, outside the data folder")


def users_function(source: str) -> Callable[[DataSettings], Any]:
    """The user's function named ``package.module:factory``."""
    module_name, _, attribute = source.partition(":")
    try:
        function = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise DataError(f"data.source = {source!r}: {error}") from None
    if not callable(function):
        raise DataError(f"data.source = {source!r}: {attribute} is not a function")
    return function  # type: ignore[no-any-return]
