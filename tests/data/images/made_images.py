"""Image files made for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedproto_app.data.images.pool import ImagePool, ImageSplit
from fedproto_app.data.images.sources import load_pool
from fedproto_app.settings import DataSettings


def noise(seed: int, *shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(pixels: NDArray[np.unsignedinteger[Any]], form: str = "PNG") -> bytes:
    """The file of an image [H, W] or [H, W, 3]."""
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def write_folder(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    with ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def pool_of(source: str, path: Path, classes: str = "") -> ImagePool:
    return load_pool(DataSettings(source=source, path=str(path), classes=classes))


def pixels_of(split: ImageSplit) -> NDArray[np.uint8]:
    """Return the pixels of all images of a split. No image may be corrupt."""
    loaded = split.load(np.arange(len(split.labels)))
    assert loaded.corrupt == {}
    return loaded.pixels
