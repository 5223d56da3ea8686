"""Read the files of a source safely: none larger than memory allows, no link out of the folder, and
no pipe. A tree of files is a folder or a zip archive.
"""

from __future__ import annotations

import gzip
import os
import re
import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import IO, Protocol, cast
from zipfile import BadZipFile, ZipFile

from fedproto_app.core.errors import DataError, did_you_mean

# Only a share of the memory, as a run holds its values several times: as series, windows, scaled.
LARGEST_SHARE = 0.25
# Files that state a container's limit, in cgroups of version 2 and 1: bytes, or "max".
_CONTAINER_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
_GZIP = b"\x1f\x8b"
_DEEPEST = 8  # nested folders; stops the walk if links form a cycle
_ENCRYPTED = 0x1  # flag bit of an archive's member


def most_bytes() -> int:
    """Return the largest allowed size of a source, in bytes."""
    limits = [_machine_bytes()]
    if (address_space := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limits.append(address_space)
    return int(LARGEST_SHARE * min(limits))


@cache
def _machine_bytes() -> int:
    """Return the memory of the machine, or of the container if that is smaller."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(limit for limit in (memory, *map(_limit_in, _CONTAINER_LIMITS)) if limit)


def _limit_in(file: str) -> int:
    """Return the memory that a container may use, or 0 if there is no limit."""
    try:
        text = Path(file).read_text(encoding="ascii").strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0


def require_room(size: int, where: object) -> None:
    """Raise `DataError` if a source is too large. size: the bytes that it takes when it is read."""
    if size > (limit := most_bytes()):
        raise DataError(
            f"{where}: at least {size / 2**30:,.1f} GiB when it is read, more than a quarter of "
            f"this machine's memory, {limit / 2**30:,.2f} GiB; cut it, or take a machine with more"
        )


def content_of(path: Path) -> bytes:
    """Return all bytes of a file. Raises `DataError` if there are too many."""
    try:
        size = path.stat().st_size
        require_file(path)
        require_room(size, path)
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def require_file(path: Path) -> None:
    """Raise `DataError` for a pipe or a device, which could keep a reader waiting for ever."""
    if not path.is_file():
        raise DataError(f"{path}: neither a file nor a folder")


@contextmanager
def open_unpacked(source: Path | bytes, where: object) -> Iterator[IO[bytes]]:
    """Open a file, or its content, to be read piece by piece. Decompress it if it is gzip.

    A small file may unpack to a large one, so the reader must count the bytes. where: the file's
    name in messages.
    """
    try:
        if isinstance(source, Path):
            require_file(source)
        with source.open("rb") if isinstance(source, Path) else BytesIO(source) as file:
            is_packed = file.read(2) == _GZIP
            file.seek(0)
            if not is_packed:
                yield file
                return
            with gzip.open(file) as stream:
                yield cast(IO[bytes], stream)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where}: cannot be read: {error}") from None


def missing(path: Path) -> str:
    """Return the message for a missing path. It may suggest a similar name in the same folder."""
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        beside = []
    near = did_you_mean(path.name, beside).removesuffix("? ")
    return f"{path}: no such file or folder" + (f"; {near}?" if near else "")


def require_inside(path: Path, folder: Path) -> None:
    """Raise `DataError` for a link that leads out of the data folder."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{path}: a link to {path.resolve()}, outside the data folder")


class FileTree(Protocol):
    """An open tree. A file's name is its path from the root, with slashes."""

    def names(self) -> list[str]:
        """Return the names of all files except hidden files, in ascending order."""

    def read(self, name: str) -> bytes:
        """Return the content of a file. If the archive is damaged, zipfile's errors are raised."""


@contextmanager
def open_tree(path: Path) -> Iterator[FileTree]:
    """Open the tree at a path. Each caller gets a separate tree, so threads do not interfere."""
    if path.is_dir():
        yield _Folder(path)
        return
    try:
        if path.exists():
            require_file(path)
        archive = ZipFile(path)
    except (BadZipFile, NotImplementedError):
        raise DataError(f"{path}: neither a folder nor a zip archive") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    with archive:
        yield _Archive(archive, path)


def files_in(path: Path, wanted: re.Pattern[str], kind: str) -> tuple[Path, list[str]]:
    """Return a folder or archive, and the names of the wanted files in it, at least one.

    path: the folder or archive, or a single wanted file. kind: what messages call such a file.
    """
    if path.is_file() and wanted.search(path.name):
        return path.parent, [path.name]
    with open_tree(path) as tree:
        names = [name for name in tree.names() if wanted.search(name)]
    if not names:
        raise DataError(f"{path}: no {kind} in it")
    return path, names


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

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
                        require_inside(Path(entry.path), self._path)
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
        return content_of(self._path / name)


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
