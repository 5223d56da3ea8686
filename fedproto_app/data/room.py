"""Refuse sources that do not fit into memory, before they are read."""

from __future__ import annotations

import gzip
import os
import zlib
from io import BytesIO
from pathlib import Path

from fedproto_app.core.errors import DataError

# A share of the machine's memory, because values exist several times while they are read: as text,
# as a frame, as windows.
LARGEST_SHARE = 0.25
_GZIP = b"\x1f\x8b"
_PIECE = 1 << 22


def most_bytes() -> int:
    """Return the largest allowed size of a source, in bytes."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(LARGEST_SHARE * memory)


def require_room(size: int, where: object) -> None:
    """Raise `DataError` if a source of this many bytes, real or declared, is too large."""
    if size > (limit := most_bytes()):
        raise DataError(
            f"{where}: {size / 2**30:,.1f} GiB when it is read, more than a quarter of this "
            f"machine's memory, {limit / 2**30:,.2f} GiB; cut it, or take a machine with more"
        )


def whole_content(path: Path) -> bytes:
    """Return all bytes of a file, decompressed if it is gzip; `DataError` if there are too many."""
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
    """Return the content of a file, decompressed if it is gzip."""
    if not content.startswith(_GZIP):
        return content
    try:
        with gzip.open(BytesIO(content)) as file:
            return _bounded(file, where)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where}: cannot be read: {error}") from None


def _bounded(file: gzip.GzipFile, where: object) -> bytes:
    """Return the whole content, read in pieces, because a small archive may unpack to a lot."""
    limit, pieces, size = most_bytes(), [], 0
    while piece := file.read(_PIECE):
        size += len(piece)
        if size > limit:
            require_room(size, where)
        pieces.append(piece)
    return b"".join(pieces)
