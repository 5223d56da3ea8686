from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from fedproto_app.data.images.class_folders import decode
from tests.data.images.made_images import encoded, noise

COLOUR = noise(0, 6, 5, 3)
GREY = noise(1, 6, 5)


def png(image: Image.Image, **options: bytes) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["PNG", "BMP"])
def test_forms_without_loss(form: str) -> None:
    np.testing.assert_array_equal(decode(encoded(COLOUR, form)), COLOUR.transpose(2, 0, 1))
    np.testing.assert_array_equal(decode(encoded(GREY, form)), GREY[None])


def test_jpeg_is_near() -> None:
    smooth = np.add.outer(np.arange(0, 160, 10), np.arange(0, 80, 5)).astype(np.uint8)
    assert decode(encoded(smooth, "JPEG")).shape == (1, 16, 16)
    three = decode(encoded(np.stack([smooth, smooth // 2, 255 - smooth], 2), "JPEG"))
    expected = np.stack([smooth, smooth // 2, 255 - smooth])
    assert np.abs(three.astype(int) - expected).mean() < 8


def test_channels_as_wanted() -> None:
    np.testing.assert_array_equal(decode(encoded(GREY), 3), np.stack([GREY] * 3))
    luma = COLOUR @ np.array([0.299, 0.587, 0.114])  # ITU-R 601-2
    assert np.abs(decode(encoded(COLOUR), 1)[0] - luma).max() <= 1


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_keeps_its_colours_and_loses_its_transparency(mode: str) -> None:
    black_and_white = np.where(GREY > 127, 255, 0).astype(np.uint8)
    image = Image.fromarray(black_and_white).convert(mode)
    grey = mode in ("1", "L", "LA")
    assert decode(png(image)).shape == (1 if grey else 3, 6, 5)
    for channels in (1, 3):
        np.testing.assert_array_equal(
            decode(png(image), channels), np.stack([black_and_white] * channels)
        )


def test_a_palette_with_transparency_gives_no_warning() -> None:
    image = Image.fromarray(np.array([[0, 1]], dtype=np.uint8), "L").convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60])
    pixels = decode(png(image, transparency=bytes([0, 128])))
    assert pixels[:, 0].T.tolist() == [[10, 20, 30], [40, 50, 60]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty file"),
        (encoded(GREY, "GIF"), "not a JPEG, PNG or BMP image"),
        (encoded(GREY.astype(np.uint16) * 256), "more than 8 bits a pixel"),
    ],
)
def test_what_is_not_read(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(data)


def test_a_damaged_png_never_gives_wrong_pixels() -> None:
    """Its checksums reveal damage; bytes after the last pixel do not matter."""
    content = encoded(COLOUR)
    damaged = [content[:length] for length in range(len(content))]
    damaged += [
        content[:n] + bytes([content[n] ^ 16]) + content[n + 1 :] for n in range(len(content))
    ]
    refused = 0
    for data in damaged:
        try:
            pixels = decode(data)
        except (ValueError, OSError, SyntaxError):
            refused += 1
        else:
            np.testing.assert_array_equal(pixels, COLOUR.transpose(2, 0, 1))
    assert refused > 0.8 * len(damaged)


def test_a_small_file_with_huge_pixels_is_refused_before_it_is_decoded() -> None:
    """20 kB that would take 1.9 GB."""
    file = BytesIO()
    Image.new("1", (13_000, 13_000)).save(file, "PNG")
    assert len(file.getvalue()) < 50_000
    with (
        pytest.warns(Image.DecompressionBombWarning),
        pytest.raises(ValueError, match="13000 x 13000 pixels, more than 67108864"),
    ):
        decode(file.getvalue())
