from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from fedproto_app.core.errors import DataError
from fedproto_app.data.formats.class_folders import decode
from fedproto_app.data.images.pool import ImageSplit
from tests.data.images.made_images import (
    encoded,
    noise,
    pixels_of,
    pool_of,
    write_folder,
    write_zip,
)
from tests.helpers.real_data import real_data

SOURCE = "class-folders"
COLOUR = [noise(seed, 4, 5, 3) for seed in range(5)]
GREY = noise(9, 4, 5)
PNG = encoded(COLOUR[0])
RGB, LUMA = noise(0, 6, 5, 3), noise(1, 6, 5)
PLAIN = {
    "train/cat/b.png": encoded(COLOUR[1]),
    "train/cat/a.bmp": encoded(COLOUR[0], "BMP"),
    "train/ant/z.PNG": encoded(COLOUR[2]),
    "test/cat/a.png": encoded(COLOUR[3]),
}

Writer = Callable[[Path, dict[str, bytes]], Path]


def zipped(root: Path, files: dict[str, bytes]) -> Path:
    return write_zip(root / "images.zip", files)


def foldered(root: Path, files: dict[str, bytes]) -> Path:
    return write_folder(root / "images", files)


def wrapped(root: Path, files: dict[str, bytes]) -> Path:
    return write_zip(root / "images.zip", {f"wrap/{name}": files[name] for name in files})


written = pytest.mark.parametrize("write", [foldered, zipped, wrapped])


@written
def test_labels_names_and_pixels(tmp_path: Path, write: Writer) -> None:
    root = write(tmp_path, PLAIN)
    pool = pool_of(SOURCE, root)
    assert pool.classes == ("ant", "cat")
    assert pool.shape == (3, 4, 5)
    assert columns_of(pool.train) == ([0, 1, 1], None, None)
    assert pool.test.labels.tolist() == [1]
    inside = f"{root.name}/wrap" if write is wrapped else root.name
    assert list(pool.train.names) == [
        f"{inside}/train/{name}" for name in ("ant/z.PNG", "cat/a.bmp", "cat/b.png")
    ]
    expected = np.stack([COLOUR[2], COLOUR[0], COLOUR[1]]).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(pixels_of(pool.train), expected)
    loaded = pool.train.load(np.array([2, 0, 2]))
    np.testing.assert_array_equal(loaded.pixels, expected[[2, 0, 2]])
    assert pool.train.load(np.array([], dtype=np.int64)).pixels.shape == (0, 3, 4, 5)


def columns_of(split: ImageSplit) -> tuple[list[Any] | None, ...]:
    columns = (split.labels, split.clients, split.stages)
    return tuple(None if column is None else column.tolist() for column in columns)


@written
@pytest.mark.parametrize(
    ("places", "train", "test"),
    [
        (
            "ann/stage-10/train/cat ann/stage-2/test/ant b/stage-1/train/ant b/stage-1/test/cat",
            ([1, 0], ["ann", "b"], [9, 0]),
            ([0, 1], ["ann", "b"], [1, 0]),
        ),
        ("a/train/cat a/test/cat b/train/cat", ([0, 0], ["a", "b"], None), ([0], ["a"], None)),
        ("stage-3/train/cat stage-3/test/cat", ([0], None, [2]), ([0], None, [2])),
        ("train/test test/test train/train", ([0, 1], None, None), ([0], None, None)),
    ],
    ids=["both", "clients", "stages", "classes called as a split"],
)
def test_clients_and_stages(
    tmp_path: Path, write: Writer, places: str, train: Any, test: Any
) -> None:
    pool = pool_of(SOURCE, write(tmp_path, {f"{place}/x.png": PNG for place in places.split()}))
    assert (columns_of(pool.train), columns_of(pool.test)) == (train, test)


IN_COLOUR = encoded(np.stack([GREY, GREY // 2, 255 - GREY], axis=2))


def test_grey_images_in_files_for_colours_stay_grey(tmp_path: Path) -> None:
    alike = encoded(np.repeat(GREY[:, :, None], 3, axis=2))
    files = {"train/a/1.png": encoded(GREY), "train/a/2.png": alike, "test/a/1.png": alike}
    pool = pool_of(SOURCE, foldered(tmp_path / "grey", files))
    assert (pool.shape, pool.notes) == ((1, 4, 5), {})
    np.testing.assert_array_equal(pixels_of(pool.train), np.stack([GREY, GREY])[:, None])
    pool = pool_of(SOURCE, foldered(tmp_path / "rgb", PLAIN | {"train/cat/c.png": encoded(GREY)}))
    np.testing.assert_array_equal(pixels_of(pool.train)[3], np.stack([GREY] * 3))


@pytest.mark.parametrize("grey_first", [True, False])
def test_a_grey_site_beside_one_in_colour_is_read_as_colour_and_noted(
    tmp_path: Path, *, grey_first: bool
) -> None:
    grey, colour = ("a", "b") if grey_first else ("b", "a")
    files = {f"{grey}/{split}/cat/1.png": encoded(GREY) for split in ("train", "test")}
    files |= {f"{colour}/{split}/cat/1.png": IN_COLOUR for split in ("train", "test")}
    pool = pool_of(SOURCE, foldered(tmp_path, files))
    assert pool.shape == (3, 4, 5)
    assert pool.notes == {
        grey: f"grey images such as {grey}/train/cat/1.png are read as colour, as is "
        f"{colour}/train/cat/1.png"
    }
    pixels = dict(zip(pool.train.clients.tolist(), pixels_of(pool.train), strict=True))
    np.testing.assert_array_equal(pixels[grey], np.stack([GREY] * 3))
    assert (pixels[colour][0] != pixels[colour][2]).any()


def test_colour_that_nobody_expected_is_never_made_grey(tmp_path: Path) -> None:
    files = {"train/a/1.png": encoded(GREY), "train/a/2.png": IN_COLOUR, "test/a/1.png": IN_COLOUR}
    pool = pool_of(SOURCE, foldered(tmp_path, files))
    with pytest.raises(DataError, match=r"train/a/2.png is in colour, but train/a/1.png"):
        pool.train.load(np.arange(2))


@written
def test_corrupt_images_are_rows_of_zeros_with_a_reason(tmp_path: Path, write: Writer) -> None:
    jpeg = encoded(noise(0, 4, 5, 3), "JPEG")
    bad = {
        "train/aa/1.png": b"",
        "train/aa/2.png": b"no image",
        "train/aa/3.jpg": jpeg[: len(jpeg) // 2],
        "train/aa/4.png": encoded(GREY.astype(np.uint16)),
        "train/aa/5.png": PNG[:-40],
        "train/aa/6.jpg": encoded(GREY, "GIF"),
    }
    pool = pool_of(SOURCE, write(tmp_path, bad | PLAIN))
    loaded = pool.train.load(np.array([8, 3, 1, 0, 5, 2, 4]))
    no_image = "not a JPEG, PNG or BMP image"
    reasons = [loaded.corrupt[row] for row in range(1, 7)]
    assert reasons[:4] == [
        "more than 8 bits a pixel; save it with 8 bits a channel",
        no_image,
        "empty file",
        no_image,
    ]
    assert all("truncated" in reason.lower() for reason in reasons[4:])
    assert set(loaded.corrupt) == set(range(1, 7))
    assert not loaded.pixels[1:].any()
    np.testing.assert_array_equal(loaded.pixels[0], COLOUR[1].transpose(2, 0, 1))


def test_a_damaged_member_of_an_archive_is_corrupt(tmp_path: Path) -> None:
    path = zipped(tmp_path, PLAIN)
    content = bytearray(path.read_bytes())
    content[content.index(PLAIN["train/cat/b.png"]) + 40] ^= 1
    path.write_bytes(content)
    assert "CRC" in pool_of(SOURCE, path).train.load(np.arange(3)).corrupt[2]


@written
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train/cat/c.png": encoded(noise(0, 5, 4, 3))},
            "cat/c.png has 4 × 5 pixels, but .*ant/z.PNG has 5 × 4; data.image-size scales",
        ),
        ({"test/dog/a.png": PNG}, "class 'dog' has test images but no train image"),
        ({"train/cat/sub/a.png": PNG}, "train/cat/sub/a.png: expected .<client>/"),
        ({"val/cat/a.png": PNG}, "val/cat/a.png: expected .<client>/"),
        ({"a.png": PNG}, "a.png: expected .<client>/"),
        ({"train/a.png": PNG}, "train/a.png: expected .<client>/"),
        ({"ann/train/cat/a.png": PNG}, "test/cat/a.png lies in no folder of a client, but .*ann/"),
        ({"stage-1/train/cat/a.png": PNG}, "lies in no folder of a stage, but .*stage-1/"),
        ({"stage-0/train/cat/a.png": PNG}, "stage-0/train/cat/a.png: stages count from 1"),
        ({"stage-99999999999999999999/train/cat/a.png": PNG}, "stages count from 1 to 9999"),
        ({"train/cat/c.webp": PNG}, "train/cat/c.webp: only images in .jpg, .jpeg"),
    ],
)
def test_files_outside_the_layout_are_refused(
    tmp_path: Path, write: Writer, changes: dict[str, bytes], message: str
) -> None:
    path = write(tmp_path, PLAIN | changes)
    with pytest.raises(DataError, match=f"^{path}: .*{message}"):
        pool_of(SOURCE, path).train.load(np.arange(4))  # the other size is seen when decoded


@written
def test_hidden_files_and_files_of_other_types_are_skipped(tmp_path: Path, write: Writer) -> None:
    extra = dict.fromkeys(("README.md", "train/cat/.a.png", ".git/x/train/y/a.png"), b"")
    assert len(pool_of(SOURCE, write(tmp_path, PLAIN | extra)).train.labels) == 3


@written
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_without_images_is_refused(tmp_path: Path, write: Writer, split: str) -> None:
    files = {name: PLAIN[name] for name in PLAIN if not name.startswith(split)}
    with pytest.raises(DataError, match=f"no image in a folder {split}/<class>"):
        pool_of(SOURCE, write(tmp_path, files))


def test_nothing_readable_is_refused(tmp_path: Path) -> None:
    files = {"train/a/x.png": b"", "train/a/y.png": b"?", "test/a/x.png": PNG}
    with pytest.raises(DataError, match=r"not one train image .* first, train/a/x.png: empty file"):
        pool_of(SOURCE, foldered(tmp_path, files))


def test_a_class_of_the_test_split_alone_may_be_listed(tmp_path: Path) -> None:
    path = foldered(tmp_path, PLAIN | {"test/dog/a.png": PNG})
    pool = pool_of(SOURCE, path, classes="dog, cat ,ant,yak")
    assert pool.classes == ("dog", "cat", "ant", "yak")
    assert pool.train.labels.tolist() == [2, 1, 1]
    assert pool.test.labels.tolist() == [1, 0]
    with pytest.raises(DataError, match=r"class 'dog' is not in data\.classes = cat,ant"):
        pool_of(SOURCE, path, classes="cat,ant")


@pytest.mark.parametrize("directory", [True, False])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, directory: bool) -> None:
    root = foldered(tmp_path, PLAIN)
    outside = write_folder(tmp_path / "outside", {"a.png": PNG})
    link = root / "train" / ("dog" if directory else "cat/linked.png")
    link.symlink_to(outside if directory else outside / "a.png")
    with pytest.raises(DataError, match=f"^{link}: a link to {outside}"):
        pool_of(SOURCE, root)


def test_links_within_the_folder_and_to_the_folder_are_followed(tmp_path: Path) -> None:
    root = foldered(tmp_path, PLAIN)
    (root / "train/dog").symlink_to(root / "train/cat")
    (tmp_path / "entry").symlink_to(root)
    pool = pool_of(SOURCE, tmp_path / "entry")
    assert pool.train.labels.tolist() == [0, 1, 1, 2, 2]


def test_links_in_a_circle_end_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    root = foldered(tmp_path, PLAIN)
    (root / "train/cat/up").symlink_to(root)
    with pytest.raises(DataError, match="more than 8 folders deep"):
        pool_of(SOURCE, root)
    (root / "train/cat/up").unlink()
    os.mkfifo(root / "train/cat/pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png: neither a file nor a folder"):
        pool_of(SOURCE, root)


@pytest.mark.parametrize("name", ["../train/cat/a.png", "/train/cat/a.png", "x/../train/cat/a.png"])
def test_members_that_lead_out_of_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="leads out of the archive"):
        pool_of(SOURCE, zipped(tmp_path, PLAIN | {name: PNG}))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_with_a_name_twice_or_encrypted_are_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path, PLAIN)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"train/cat/b.png", b"train/cat/a.bmp"))
    with pytest.raises(DataError, match=r"two files are named 'train/cat/a\.bmp'"):
        pool_of(SOURCE, path)
    flags = content.index(b"PK\x01\x02") + 8  # in the first directory entry
    path.write_bytes(content[:flags] + bytes([content[flags] | 1]) + content[flags + 1 :])
    with pytest.raises(DataError, match=r"'train/cat/b\.png' is encrypted"):
        pool_of(SOURCE, path)
    path.write_bytes(b"neither")
    with pytest.raises(DataError, match=f"^{path}: neither a folder nor a zip archive"):
        pool_of(SOURCE, path)


def test_a_file_that_vanishes_is_an_error_not_a_corrupt_image(tmp_path: Path) -> None:
    root = foldered(tmp_path, PLAIN)
    train = pool_of(SOURCE, root).train
    (root / "train/cat/b.png").unlink()
    with pytest.raises(DataError, match=r"b\.png: cannot be read: .*No such file"):
        train.load(np.arange(3))


@written
def test_threads_may_load_at_once(tmp_path: Path, write: Writer) -> None:
    files = {f"train/a/{n:03}.png": encoded(noise(n, 8, 8, 3)) for n in range(60)}
    train = pool_of(SOURCE, write(tmp_path, files | {"test/a/x.png": files["train/a/000.png"]}))
    orders = [np.random.default_rng(n).permutation(60) for n in range(8)]
    with ThreadPoolExecutor(4) as threads:
        for order, loaded in zip(orders, threads.map(train.train.load, orders), strict=True):
            expected = np.stack([noise(n, 8, 8, 3) for n in order]).transpose(0, 3, 1, 2)
            np.testing.assert_array_equal(loaded.pixels, expected)


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_never_escapes_as_another_error(tmp_path: Path, data: st.DataObject) -> None:
    path = zipped(tmp_path, PLAIN)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2]))])
    try:
        pool = pool_of(SOURCE, path)
        pool.train.load(np.arange(len(pool.train.labels)))
    except DataError:
        pass


def test_cifar_10_as_files() -> None:
    pool = pool_of(SOURCE, real_data("cifar10_jpeg.zip"))
    assert pool.classes[:3] == ("airplane", "automobile", "bird")
    assert pool.shape == (3, 32, 32)
    assert np.bincount(pool.train.labels).tolist() == [5000] * 10
    assert np.bincount(pool.test.labels).tolist() == [1000] * 10
    loaded = pool.test.load(np.arange(0, 10_000, 500))
    assert loaded.corrupt == {}
    assert loaded.pixels.std(axis=(1, 2, 3)).min() > 10


def png(image: Image.Image, **options: bytes) -> bytes:
    image.save(buffer := BytesIO(), "PNG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize(("kind", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_colours_of_16_bits_are_refused(kind: int, channels: int) -> None:
    """Pillow reads colours, grey with alpha, and colours with alpha as if they had 8 bits."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    for bits in (8, 16):
        row = b"\0" + bytes(5 * channels * bits // 8)
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 4, bits, kind, 0, 0, 0))
        body = head + chunk(b"IDAT", zlib.compress(4 * row)) + chunk(b"IEND", b"")
        image = b"\x89PNG\r\n\x1a\n" + body
        if bits == 8:
            assert decode(image).shape[1:] == (4, 5)
        else:
            with pytest.raises(ValueError, match="more than 8 bits a pixel"):
                decode(image)


def test_images_are_scaled_by_averaging() -> None:
    stripes = np.repeat([[0, 200], [100, 60]], 4, axis=0).repeat(4, axis=1).astype(np.uint8)
    assert decode(encoded(stripes), 8).tolist() == [stripes.tolist()]
    assert decode(encoded(np.full((9, 30, 3), 70, np.uint8)), 4).tolist() == [[[70] * 4] * 4] * 3
    (small,) = decode(encoded(stripes), 1)
    assert abs(int(small[0, 0]) - 90) <= 1  # the mean


def test_jpeg_is_near() -> None:
    smooth = np.add.outer(np.arange(0, 160, 10), np.arange(0, 80, 5)).astype(np.uint8)
    assert decode(encoded(smooth, "JPEG")).shape == (1, 16, 16)
    three = decode(encoded(np.stack([smooth, smooth // 2, 255 - smooth], 2), "JPEG"))
    expected = np.stack([smooth, smooth // 2, 255 - smooth])
    assert np.abs(three.astype(int) - expected).mean() < 8


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_keeps_its_colours_and_loses_its_transparency(mode: str) -> None:
    black_and_white = np.where(LUMA > 127, 255, 0).astype(np.uint8)
    image = Image.fromarray(black_and_white).convert(mode)
    grey = mode in ("1", "L", "LA")
    channels = 1 if grey else 3
    np.testing.assert_array_equal(decode(png(image)), np.stack([black_and_white] * channels))


def test_a_palette_with_transparency_gives_no_warning() -> None:
    image = Image.fromarray(np.array([[0, 1]], dtype=np.uint8), "L").convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60])
    pixels = decode(png(image, transparency=bytes([0, 128])))
    assert pixels[:, 0].T.tolist() == [[10, 20, 30], [40, 50, 60]]


def test_a_damaged_png_never_gives_wrong_pixels() -> None:
    """Its checksums reveal damage, and bytes after the last pixel do not matter."""
    content = encoded(RGB)
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
            np.testing.assert_array_equal(pixels, RGB.transpose(2, 0, 1))
    assert refused > 0.8 * len(damaged)


def test_a_small_file_with_huge_pixels_is_refused_before_it_is_decoded() -> None:
    """20 kB that would take 1.9 GB."""
    content = png(Image.new("1", (13_000, 13_000)))
    assert len(content) < 50_000
    with pytest.raises(ValueError, match="13000 x 13000 pixels, more than 67108864"):
        decode(content)


@pytest.mark.parametrize("write", [zipped, foldered])
def test_folders_of_sites_and_classes_are_divided_by_chance(tmp_path: Path, write: Writer) -> None:
    """A fifth of each site's images of each class, the same in a folder and in an archive."""
    counts = {("east", "ant"): 10, ("east", "cat"): 2, ("west", "ant"): 1}
    files = {
        f"{site}/{label}/{number}.png": PNG
        for (site, label), count in counts.items()
        for number in range(count)
    }
    pool = pool_of(SOURCE, write(tmp_path, files))

    def counts_in(split: ImageSplit) -> dict[tuple[str, str], int]:
        assert split.clients is not None
        labels = [pool.classes[label] for label in split.labels]
        pairs = list(zip(split.clients.tolist(), labels, strict=True))
        return {pair: pairs.count(pair) for pair in counts}

    assert list(counts_in(pool.train).values()) == [8, 1, 1]
    assert list(counts_in(pool.test).values()) == [2, 1, 0]
    assert not set(pool.train.names) & set(pool.test.names)
    (second_folder := tmp_path / "again").mkdir()
    assert pool_of(SOURCE, write(second_folder, files)).test.names == pool.test.names
