"""Turn images into vectors of a pretrained encoder, once for each image.

A vector takes the place of its image's pixels, as an image of D channels and one pixel, so that
partitions, clients and methods need not know of it. Vectors are kept in a file on this machine, by
the digest of the image, because a deployed node's process ends after each message.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from logging import getLogger
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.whole_file import make_private
from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages, Pixels, Positions
from fedproto_app.models.pretrained import PretrainedEncoder, pretrained_encoder
from fedproto_app.settings import DataSettings

READ_AT_ONCE = 256  # images
_LOG = getLogger(__name__)
_LOCK_SECONDS = 60.0
_folder = ContextVar[Path | None]("folder", default=None)
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS vectors (image BLOB PRIMARY KEY, vector BLOB)
"""

Vectors = NDArray[np.float32]


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Keep the vectors of images in this folder during a ``with`` block."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def _usual_folder() -> Path:
    try:
        home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser()
    except RuntimeError:
        raise DataError("this user has no home for the vectors of images; set FLWR_HOME") from None
    return home / "fedproto" / "vectors"


def with_vectors(pool: ImagePool, settings: DataSettings) -> ImagePool:
    """Return the pool with vectors [n, D, 1, 1] in place of pixels.

    An image whose vector is not finite counts as corrupt. Raises `DataError` if
    `data.pretrained-encoder` names no encoder.
    """
    encoder = pretrained_encoder(settings.pretrained_encoder)
    store = KeptVectors((_folder.get() or _usual_folder()) / f"{encoder.digest}.sqlite")

    def turned(split: ImageSplit) -> ImageSplit:
        def load(positions: Positions) -> LoadedImages:
            return _loaded(split, positions, encoder, store)

        return replace(split, load=load)

    return replace(
        pool,
        shape=(encoder.length, 1, 1),
        encoder=encoder.digest,
        train=turned(pool.train),
        test=turned(pool.test),
    )


def _loaded(
    split: ImageSplit, positions: Positions, encoder: PretrainedEncoder, store: KeptVectors
) -> LoadedImages:
    vectors = np.zeros((len(positions), encoder.length), dtype=np.float32)
    corrupt: dict[int, str] = {}
    for first in range(0, len(positions), READ_AT_ONCE):
        part = split.load(positions[first : first + READ_AT_ONCE])
        corrupt |= {first + row: reason for row, reason in part.corrupt.items()}
        vectors[first : first + len(part.pixels)] = vectors_of(part.pixels, encoder, store)
    for row in np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
        corrupt.setdefault(row, "the pretrained encoder turns it into NaN or infinite values")
    vectors[list(corrupt)] = 0
    return LoadedImages(vectors[:, :, None, None], corrupt)


def vectors_of(pixels: Pixels, encoder: PretrainedEncoder, store: KeptVectors) -> Vectors:
    """Return the vectors [n, D] of images [n, C, H, W]. Those that are not kept yet are computed
    and kept."""
    keys = [_key(image) for image in pixels]
    by_key = store.read(keys, encoder.length)
    missing = [row for row, key in enumerate(keys) if key not in by_key]
    if missing:
        vectors = encoder.vectors(torch.from_numpy(pixels[missing])).numpy()
        new = {keys[row]: vector for row, vector in zip(missing, vectors, strict=True)}
        store.write(new)
        by_key |= new
    return np.stack([by_key[key] for key in keys])


def _key(image: NDArray[np.uint8]) -> bytes:
    shape = ",".join(map(str, image.shape)).encode()
    return hashlib.sha256(shape + np.ascontiguousarray(image).tobytes()).digest()


class KeptVectors:
    """The file of an encoder's vectors. Without room or permission, nothing is kept."""

    def __init__(self, path: Path) -> None:
        self._path, self._is_usable = path, True

    def read(self, keys: Sequence[bytes], length: int) -> dict[bytes, Vectors]:
        """Return the kept vectors among these, each of this length."""
        vectors: dict[bytes, Vectors] = {}

        def look_up(file: sqlite3.Connection) -> None:
            query = (
                f"SELECT image, vector FROM vectors WHERE image IN ({','.join('?' * len(keys))})"
            )
            for key, vector in file.execute(query, keys):
                if isinstance(vector, bytes):
                    vectors[key] = np.frombuffer(vector, np.float32)

        self._use(look_up)
        return {key: vector for key, vector in vectors.items() if len(vector) == length}

    def write(self, vectors: Mapping[bytes, Vectors]) -> None:
        rows = [(key, vector.tobytes()) for key, vector in vectors.items()]
        statement = "INSERT OR REPLACE INTO vectors VALUES (?, ?)"
        self._use(lambda file: file.executemany(statement, rows))

    def _use(self, work: Callable[[sqlite3.Connection], object]) -> None:
        if not self._is_usable:
            return
        try:
            make_private(self._path.parent)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # for this user alone
            with closing(sqlite3.connect(self._path, timeout=_LOCK_SECONDS)) as file, file:
                file.execute(_SCHEMA)
                work(file)
        except (OSError, ValueError, sqlite3.Error) as error:
            self._is_usable = False
            _LOG.warning("vectors of images cannot be kept in %s: %s", self._path, error)
