"""Decode image files to pixels."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.typing import NDArray

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
_FORMATS = ("JPEG", "PNG", "BMP")  # Pillow's other readers are too risky for untrusted files
_GREY = ("1", "L", "LA")  # Pillow's modes
MOST_PIXELS = 2**26  # 8192 x 8192: decoded, four times as many bytes; a file of 20 kB may hold more
_WIDE = ("I", "F")  # and those with more than 8 bits a pixel, which it would cut off at 255


def decode(data: bytes, channels: int | None = None) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG, PNG or BMP file, [channels, height, width], no transparency.

    channels: 3 (red, green, blue) or 1 (grey); None: as in the file. Raises `ValueError` or one of
    Pillow's errors if the file is damaged.
    """
    from PIL import Image, UnidentifiedImageError  # needed by tasks on images only

    if not data:
        raise ValueError("empty file")
    try:
        image = Image.open(BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:  # its text contains a memory address
        raise ValueError("not a JPEG, PNG or BMP image") from None
    with image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels, more than {MOST_PIXELS}")
        mode = image.mode
        if mode.startswith(_WIDE):
            raise ValueError("more than 8 bits a pixel")
        grey = mode in _GREY if channels is None else channels == 1
        if mode in ("P", "PA"):
            pixels = np.asarray(image.convert("RGBA").convert("L" if grey else "RGB"))
        else:
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
    return pixels[np.newaxis] if grey else pixels.transpose(2, 0, 1)
