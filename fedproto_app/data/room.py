"""How much of a source fits into memory: what declares more is refused before it is read."""

from __future__ import annotations

import gzip
import os
import zlib
from io import BytesIO
from pathlib import Path

from fedproto_app.core.errors import DataError

# Of the machine's memory. Values exist several times while they are read: as text, as a frame, as
# windows.
LARGEST_SHARE = 0.25
_GZIP = b"\x1f\x8b"
_PIECE = 1 << 22


def most_bytes() -> int:
    """So many a source may hold."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(LARGEST_SHARE * memory)


def require_room(size: int, where: object) -> None:
    """Refuse a source that holds so many bytes, or says that it does."""
    if size > (most := most_bytes()):
        raise DataError(
            f"{where}: {size / 2**30:,.1f} GiB when it is read, more than a quarter of this "
            f"machine's memory, {most / 2**30:,.2f} GiB; cut it, or take a machine with more"
        )


def whole_content(path: Path) -> bytes:
    """All bytes of a file, decompressed if it is gzip; refuses more than there is room for."""
    try:
        with path.open("rb") as file:
            if not path.is_file():  # reading a pipe would wait for ever
                raise DataError(f"{path}: neither a file nor a folder")
            require_room(path.stat().st_size, path)
            start = file.read(len(_GZIP))
            file.seek(0)
            if start != _GZIP:
                return file.read()
            with gzip.open(file) as unpacked:
                return _bounded(unpacked, path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def unpacked(content: bytes, where: str) -> bytes:
    """The bytes of a file, decompressed if they are gzip, as `whole_content` has them."""
    if not content.startswith(_GZIP):
        return content
    try:
        with gzip.open(BytesIO(content)) as file:
            return _bounded(file, where)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where}: cannot be read: {error}") from None


def _bounded(file: gzip.GzipFile, where: object) -> bytes:
    """All that is in it, read in pieces: a small archive may hold a lot."""
    most, pieces, size = most_bytes(), [], 0
    while piece := file.read(_PIECE):
        size += len(piece)
        if size > most:
            require_room(size, where)
        pieces.append(piece)
    return b"".join(pieces)
