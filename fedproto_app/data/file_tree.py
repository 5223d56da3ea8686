"""A tree of files, in a folder or in a zip archive, out of which nothing is read."""

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

_DEEPEST = 8  # folders in one another; ends the walk where links lead in circles
_ENCRYPTED = 0x1  # in the flags of an archive's member


class FileTree(Protocol):
    """An open tree. A name is a path from its root, with slashes."""

    def names(self) -> list[str]:
        """All files, hidden ones excepted, in ascending order."""

    def read(self, name: str) -> bytes:
        """The content of one; damage inside an archive raises what zipfile raises."""


@contextmanager
def opened(path: Path) -> Iterator[FileTree]:
    """The tree at a path; each caller has its own, so threads do not meet."""
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
        found: list[str] = []
        self._walk(str(self._path), "", 0, found)
        return sorted(found)

    def _walk(self, folder: str, prefix: str, depth: int, found: list[str]) -> None:
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
                        self._walk(entry.path, f"{name}/", depth + 1, found)
                    elif entry.is_file():
                        found.append(name)
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
        found: list[str] = []
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
            found.append(name)
        if len(set(found)) != len(found):
            twice = next(name for name in found if found.count(name) > 1)
            raise DataError(f"{self._path}: two files are named {twice!r}")
        return sorted(found)

    def read(self, name: str) -> bytes:
        try:
            # no more is unpacked than the archive declares
            require_room(self._archive.getinfo(name).file_size, f"{self._path}: {name}")
            return self._archive.read(name)
        except KeyError:
            raise DataError(f"{self._path}: {name!r} is gone") from None
