from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from tests.data.images.made_images import noise, pixels_of, pool_of

BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def write_cifar_10(folder: Path) -> dict[str, bytes]:
    """Batches of 1, 2, 3, 4, 5 and 2 records, written byte by byte as the format says."""
    files = {"batches.meta.txt": b"airplane\ncat\ntruck\n\n"}
    for seed, (name, records) in enumerate(zip(BATCHES, [1, 2, 3, 4, 5, 2], strict=True)):
        pixels = noise(seed, records, 3072)
        files[name] = b"".join(bytes([(n + 1) % 3]) + pixels[n].tobytes() for n in range(records))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return files


def test_cifar_10(tmp_path: Path) -> None:
    write_cifar_10(tmp_path)
    pool = pool_of("cifar", tmp_path)
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


def test_cifar_100_counts_the_fine_label(tmp_path: Path) -> None:
    (tmp_path / "fine_label_names.txt").write_text("apple\nbear\n")
    (tmp_path / "coarse_label_names.txt").write_text("fruit\nbeast\n")
    pixels = noise(0, 2, 3072)
    (tmp_path / "train.bin").write_bytes(
        b"\x09\x01" + pixels[0].tobytes() + b"\x07\x00" + pixels[1].tobytes()
    )
    (tmp_path / "test.bin").write_bytes(b"\x00\x01" + pixels[1].tobytes())
    pool = pool_of("cifar", tmp_path)
    assert pool.classes == ("apple", "bear")
    assert pool.train.labels.tolist() == [1, 0]
    assert pool.test.labels.tolist() == [1]
    np.testing.assert_array_equal(pixels_of(pool.train), pixels.reshape(2, 3, 32, 32))


def test_the_order_of_the_classes_can_be_given(tmp_path: Path) -> None:
    write_cifar_10(tmp_path)
    pool = pool_of("cifar", tmp_path, classes="truck,cat,airplane")
    assert pool.test.labels.tolist() == [1, 0]


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
def test_bad_files_are_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    write_cifar_10(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"^{tmp_path / name}: {message}"):
        pool_of("cifar", tmp_path)


def test_a_folder_of_neither_or_of_both_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file of the binary versions of CIFAR-10 \(batches"):
        pool_of("cifar", tmp_path)
    write_cifar_10(tmp_path)
    (tmp_path / "train.bin").touch()
    with pytest.raises(DataError, match="files of both of the binary versions"):
        pool_of("cifar", tmp_path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_cifar_10(tmp_path / "in")
    batch = tmp_path / "in" / "test_batch.bin"
    batch.rename(tmp_path / "elsewhere.bin")
    batch.symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(DataError, match=f"^{batch}: a link to .*elsewhere.bin, outside"):
        pool_of("cifar", tmp_path / "in")
