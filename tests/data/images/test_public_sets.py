from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedproto_app.core.errors import DataError
from fedproto_app.data.images.sources import load_pool
from fedproto_app.settings import DataSettings
from tests.data.images.made_images import noise, pixels_of, pool_of, write_folder

BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


@pytest.fixture
def cifar_10(tmp_path: Path) -> Path:
    """Batches of 1, 2, 3, 4, 5 and 2 records, written byte by byte as the format says."""
    files = {"batches.meta.txt": b"airplane\ncat\ntruck\n\n"}
    for seed, (name, records) in enumerate(zip(BATCHES, [1, 2, 3, 4, 5, 2], strict=True)):
        pixels = noise(seed, records, 3072)
        files[name] = b"".join(bytes([(n + 1) % 3]) + pixels[n].tobytes() for n in range(records))
    return write_folder(tmp_path / "cifar", files)


def test_cifar_10(cifar_10: Path) -> None:
    pool = pool_of("cifar", cifar_10)
    assert pool.classes == ("airplane", "cat", "truck")
    assert pool.shape == (3, 32, 32)
    assert pool.train.labels.tolist() == [1, 1, 2, 1, 2, 0, 1, 2, 0, 1, 1, 2, 0, 1, 2]
    assert pool.test.labels.tolist() == [1, 2]
    assert pool.train.names[2] == "data_batch_2.bin/2"
    expected = np.concatenate([noise(seed, seed + 1, 3, 32, 32) for seed in range(5)])
    np.testing.assert_array_equal(pixels_of(pool.train), expected)
    order = np.array([14, 0, 3, 3, 9])
    np.testing.assert_array_equal(pool.train.load(order).pixels, expected[order])
    np.testing.assert_array_equal(pixels_of(pool.test), noise(5, 2, 3, 32, 32))
    in_another_order = pool_of("cifar", cifar_10, classes="truck,cat,airplane")
    assert in_another_order.test.labels.tolist() == [1, 0]


def test_cifar_100_counts_the_fine_label(tmp_path: Path) -> None:
    pixels = noise(0, 2, 3072)
    first, second = pixels[0].tobytes(), pixels[1].tobytes()
    files = {
        "fine_label_names.txt": b"apple\nbear\n",
        "coarse_label_names.txt": b"fruit\nbeast\n",
        "train.bin": b"\x09\x01" + first + b"\x07\x00" + second,
        "test.bin": b"\x00\x01" + second,
    }
    pool = pool_of("cifar", write_folder(tmp_path, files))
    assert pool.classes == ("apple", "bear")
    assert pool.train.labels.tolist() == [1, 0]
    assert pool.test.labels.tolist() == [1]
    np.testing.assert_array_equal(pixels_of(pool.train), pixels.reshape(2, 3, 32, 32))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_3.bin", bytes(3072), "3072 bytes, expected a multiple of 3073"),
        ("test_batch.bin", b"", "0 bytes, expected a multiple of 3073"),
        ("test_batch.bin", bytes(3073) + b"\x03" + bytes(3072), "record 2 has label 3, .* 0 … 2"),
        ("batches.meta.txt", b"cat\ncat\n", "expected one class name per line, none of them twice"),
        ("batches.meta.txt", b"\n", "expected one class name per line"),
        ("batches.meta.txt", b"\xff", "cannot be read"),
        ("data_batch_5.bin", None, "no such file"),
        ("batches.meta.txt", None, "no such file"),
    ],
)
def test_bad_files_are_refused(cifar_10: Path, name: str, content: Any, message: str) -> None:
    if content is None:
        (cifar_10 / name).unlink()
    else:
        (cifar_10 / name).write_bytes(content)
    with pytest.raises(DataError, match=f"^{cifar_10 / name}: {message}"):
        pool_of("cifar", cifar_10)


def test_a_folder_of_neither_or_of_both_is_refused(tmp_path: Path, cifar_10: Path) -> None:
    with pytest.raises(DataError, match=r"no file of the binary versions of CIFAR-10 \(batches"):
        pool_of("cifar", tmp_path)
    (cifar_10 / "train.bin").touch()
    with pytest.raises(DataError, match="files of both of the binary versions"):
        pool_of("cifar", cifar_10)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, cifar_10: Path) -> None:
    batch = cifar_10 / "test_batch.bin"
    batch.rename(tmp_path / "elsewhere.bin")
    batch.symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(DataError, match=f"^{batch}: a link to .*elsewhere.bin, outside"):
        pool_of("cifar", cifar_10)


def test_the_last_tenth_of_every_class_of_digits_is_for_tests() -> None:
    pool = load_pool(DataSettings(source="digits"))
    assert pool.classes == tuple("0123456789")
    assert pool.shape == (1, 8, 8)
    # 178, 182, 177, 183, 181, 182, 181, 179, 174 and 180 digits in all
    assert np.bincount(pool.test.labels).tolist() == [17, 18, 17, 18, 18, 18, 18, 17, 17, 18]
    assert len(pool.train.labels) + len(pool.test.labels) == 1797
    the_set, positions = load_digits(), []
    for split in (pool.train, pool.test):
        places = np.array([int(name.removeprefix("digits/")) for name in split.names])
        np.testing.assert_array_equal(split.labels, the_set.target[places])
        sixteenths = pixels_of(split)[:, 0] / 255 * 16
        np.testing.assert_allclose(sixteenths, the_set.images[places], atol=0.04)
        positions.append(places)
    for digit in range(10):
        last_train = positions[0][pool.train.labels == digit].max()
        assert last_train < positions[1][pool.test.labels == digit].min()
    assert pixels_of(pool.train).max() == 255
    order = np.array([5, 2])
    np.testing.assert_array_equal(pool.test.load(order).pixels, pixels_of(pool.test)[order])
