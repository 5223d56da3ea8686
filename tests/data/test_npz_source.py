from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.settings import DataSettings

MATRIX = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def read(path: Path) -> list[ClientSeries]:
    return load_series(DataSettings(source="npz", path=str(path)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
def test_a_matrix_with_names(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "x.npz", values=MATRIX.astype(dtype), names=np.array(["a", "b"]))
    first, second = read(tmp_path / "x.npz")
    assert (first.name, second.name, second.start) == ("a", "b", 0)
    np.testing.assert_array_equal(second.values, [2, 4, 6])
    assert second.values.dtype == np.float64


def test_a_matrix_without_names(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", values=MATRIX)
    assert [series.name for series in read(tmp_path / "x.npz")] == ["client-000", "client-001"]


def test_an_array_per_client(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", long=np.array([1.0, np.nan, 3.0]), short=np.array([7]))
    assert [(s.name, len(s.values)) for s in read(tmp_path / "x.npz")] == [
        ("long", 3),
        ("short", 1),
    ]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.array([1, "x"], dtype=object)}, "array 'a' holds pickled Python objects"),
        ({"values": MATRIX, "names": np.array(["a", "b"], dtype=object)}, "'names' holds pickled"),
        ({"a": np.array(["1", "2"])}, "array 'a' holds <U1, not numbers"),
        ({"a": np.array([1 + 2j])}, "array 'a' holds complex128, not numbers"),
        ({"a": MATRIX}, r"array 'a' has shape \(3, 2\), expected 1-D"),
        ({"values": MATRIX[0]}, r"array 'values' has shape \(2,\), expected time steps × clients"),
        ({"values": MATRIX, "names": np.array(["a"])}, "1 names for 2 columns"),
        ({"values": MATRIX, "names": np.array(["a", "a"])}, "two clients are named 'a'"),
        ({"values": MATRIX, "label": MATRIX[0]}, "beside 'values' only 'names' .* found label"),
        ({"a": np.array([1.0, np.inf])}, "client 'a': value number 2 is infinite"),
        ({}, "no client in it"),
    ],
)
def test_bad_archives_are_refused(
    tmp_path: Path, arrays: dict[str, NDArray[np.generic]], message: str
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"a,b\n1,2\n"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DataError, match="not an npz archive"):
        read(tmp_path / "x.npz")


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, MATRIX)
    with pytest.raises(DataError, match="a single npy array"):
        read(tmp_path / "x.npz")


def test_more_than_there_is_memory_for_is_refused_by_name(tmp_path: Path) -> None:
    """A header of 120 bytes that declares half an exabyte."""
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w") as archive,
        archive.open("values.npy", "w") as member,
    ):
        declared = {"descr": "<f8", "fortran_order": False, "shape": (2**56, 1)}
        npy.write_array_header_1_0(member, declared)
    with pytest.raises(DataError, match=r"x.npz: array 'values': .* GiB when it is read, more"):
        read(tmp_path / "x.npz")
