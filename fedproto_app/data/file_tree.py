"""Read a tree of files in a folder or a zip archive; links out of it are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from zipfile import BadZipFile, ZipFile

from fedproto_app.core.errors import DataError
from fedproto_app.data.room import require_room
from fedproto_app.data.source_checks import require_inside

_DEEPEST = 8  # nested folders; stops the walk if links form a cycle
_ENCRYPTED = 0x1  # flag bit of an archive's member


class FileTree(Protocol):
    """An open tree. A name is a path from its root, with slashes."""

    def names(self) -> list[str]:
        """Return the names of all files except hidden files, in ascending order."""

    def read(self, name: str) -> bytes:
        """Return the content of a file; for a damaged archive, zipfile's errors pass through."""


@contextmanager
def opened(path: Path) -> Iterator[FileTree]:
    """Open the tree at a path; each caller gets a separate tree, so threads do not interfere."""
    if path.is_dir():
        yield _Folder(path)
        return
    try:
        archive = ZipFile(path)
    except (BadZipFile, NotImplementedError):
        raise DataError(f"{path}: neither a folder nor a zip archive") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    with archive:
        yield _Archive(archive, path)


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._inside = path.resolve()

    def names(self) -> list[str]:
        names: list[str] = []
        self._walk(str(self._path), "", 0, names)
        return sorted(names)

    def _walk(self, folder: str, prefix: str, depth: int, names: list[str]) -> None:
        if depth > _DEEPEST:
            raise DataError(f"{self._path}: {prefix} lies more than {_DEEPEST} folders deep")
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_symlink():
                        require_inside(Path(entry.path), self._inside)
                    name = prefix + entry.name
                    if entry.is_dir():
                        self._walk(entry.path, f"{name}/", depth + 1, names)
                    elif entry.is_file():
                        names.append(name)
                    else:  # reading a pipe would wait for ever
                        raise DataError(f"{entry.path}: neither a file nor a folder")
        except OSError as error:
            raise DataError(f"{folder}: cannot be read: {error}") from None

    def read(self, name: str) -> bytes:
        try:
            require_room((self._path / name).stat().st_size, self._path / name)
            return (self._path / name).read_bytes()
        except OSError as error:
            raise DataError(f"{self._path / name}: cannot be read: {error}") from None


class _Archive:
    def __init__(self, archive: ZipFile, path: Path) -> None:
        self._archive = archive
        self._path = path

    def names(self) -> list[str]:
        names: list[str] = []
        for member in self._archive.infolist():
            name = member.filename
            if name.endswith("/") or name.startswith("__MACOSX/"):
                continue
            if name.startswith(("../", "/")) or "/../" in name:
                raise DataError(f"{self._path}: {name!r} leads out of the archive")
            if name.startswith(".") or "/." in name:
                continue
            if member.flag_bits & _ENCRYPTED:
                raise DataError(f"{self._path}: {name!r} is encrypted")
            names.append(name)
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"{self._path}: two files are named {twice!r}")
        return sorted(names)

    def read(self, name: str) -> bytes:
        try:
            # zipfile never unpacks more than the archive declares
            require_room(self._archive.getinfo(name).file_size, f"{self._path}: {name}")
            return self._archive.read(name)
        except KeyError:
            raise DataError(f"{self._path}: {name!r} is gone") from None
