"""npz archives, and HDF5 files, which are read as pandas writes them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.settings import DataSettings

MATRIX = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
TIMES = pd.date_range("2012-03-01 00:10", periods=6, freq="5min")


def read(path: Path) -> list[ClientSeries]:
    source = "hdf5" if path.suffix == ".h5" else "npz"
    return load_series(DataSettings(source=source, path=str(path), period=288))


def read_npz(folder: Path, **arrays: NDArray[np.generic]) -> list[ClientSeries]:
    np.savez(folder / "x.npz", **arrays)
    return read(folder / "x.npz")


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
def test_a_matrix_with_and_without_names(tmp_path: Path, dtype: str) -> None:
    values = MATRIX.astype(dtype)
    first, second = read_npz(tmp_path, values=values, names=np.array(["a", "b"]))
    assert (first.name, second.name, second.start) == ("a", "b", 0)
    np.testing.assert_array_equal(second.values, [2, 4, 6])
    assert second.values.dtype == np.float64
    unnamed = read_npz(tmp_path, values=values)
    assert [series.name for series in unnamed] == ["client-000", "client-001"]


def test_an_array_per_client(tmp_path: Path) -> None:
    clients = read_npz(tmp_path, long=np.array([1.0, np.nan, 3.0]), short=np.array([7]))
    assert [(s.name, len(s.values)) for s in clients] == [("long", 3), ("short", 1)]


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
def test_bad_archives_are_refused(tmp_path: Path, arrays: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_npz(tmp_path, **arrays)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    for content in (b"", b"PK\x03\x04 cut short", b"a,b\n1,2\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not an npz archive"):
            read(path)
    with path.open("wb") as file:
        np.save(file, MATRIX)
    with pytest.raises(DataError, match="a single npy array"):
        read(path)


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


def frame(**columns: object) -> pd.DataFrame:
    speeds = {"773869": [64.0, 0, 62, 61, 60, 59], "767541": [1.0, 2, 3, 4, 5, 6]}
    return pd.DataFrame({**speeds, **columns}, index=TIMES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metr-la.h5"


@pytest.fixture
def intact(path: Path) -> Path:
    frame().to_hdf(path, key="df")
    return path


BLOCKS = frame(whole=range(6), single=np.arange(6, dtype=np.float32))


@pytest.mark.parametrize(
    ("written", "key"),
    [
        (frame().set_axis(TIMES.as_unit("ns")), "df"),  # METR-LA's key
        (frame().set_axis(TIMES.as_unit("us")), "speed"),  # PEMS-BAY's
        (BLOCKS[["773869", "whole", "single", "767541"]], "df"),  # one of each type
    ],
    ids=["ns", "us", "blocks"],
)
def test_a_frame_as_pandas_writes_it(path: Path, written: pd.DataFrame, key: str) -> None:
    written.to_hdf(path, key=key)
    clients = read(path)
    assert [series.name for series in clients] == list(written.columns)
    assert {series.start % 288 for series in clients} == {2}  # 00:10 is the third slot of the day
    for series in clients:
        np.testing.assert_array_equal(series.values, written[series.name])


def test_the_older_attribute_without_a_unit_means_nanoseconds(path: Path) -> None:
    frame().set_axis(TIMES.as_unit("ns")).to_hdf(path, key="df")
    with h5py.File(path, "a") as file:
        file["df/axis1"].attrs["kind"] = np.bytes_(b"datetime64")
    assert read(path)[0].start % 288 == 2


def test_integer_names_and_rows_that_are_only_counted(path: Path) -> None:
    pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=[400001, 400017]).to_hdf(path, key="speed")
    first, second = read(path)
    assert (first.name, second.name, first.start) == ("400001", "400017", 0)
    np.testing.assert_array_equal(second.values, [2, 4])


def test_a_missing_hour_becomes_nan_and_zeros_stay(path: Path) -> None:
    frame().drop(TIMES[2]).to_hdf(path, key="df")
    np.testing.assert_array_equal(read(path)[0].values, [64, 0, np.nan, 61, 60, 59])


@pytest.mark.filterwarnings("ignore::pandas.errors.PerformanceWarning")
@pytest.mark.parametrize(
    ("written", "message"),
    [
        (frame(text=list("abcdef")), "/df/block1_values holds pickled Python objects"),
        (frame().rename(columns={"767541": 1}), "/df/axis0 holds pickled Python objects"),
        (frame(when=TIMES), r"column 'when' holds datetime64\[us\], not numbers"),
        (frame()[:0], "the DataFrame 'df' is empty"),
        (frame()["773869"], "key 'df' is a pandas 'series'"),
        (frame().set_index(pd.Index(list("abcdef"))), "rows are labelled by 'string'"),
    ],
    ids=["text", "mixed-names", "dates", "empty", "series", "text-rows"],
)
def test_frames_of_other_content_are_refused(path: Path, written: Any, message: str) -> None:
    written.to_hdf(path, key="df")
    with pytest.raises(DataError, match=f"^{path}: {message}"):
        read(path)


def test_files_without_one_fixed_frame_are_refused(path: Path) -> None:
    frame().to_hdf(path, key="df", format="table")
    with pytest.raises(DataError, match="key 'df' is a pandas 'frame_table'"):
        read(path)
    frame().to_hdf(path, key="one", mode="w")
    frame().to_hdf(path, key="two")
    with pytest.raises(DataError, match="one DataFrame is expected, found one, two"):
        read(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="not a readable HDF5 DataFrame"):
        read(path)


def test_other_data_and_a_frame_behind_a_link_are_not_read(path: Path) -> None:
    frame().to_hdf(path.with_name("other.h5"), key="df")
    with h5py.File(path, "w") as file:
        file["away"] = h5py.ExternalLink(str(path.with_name("other.h5")), "df")
        file["speeds"] = [1.0, 2.0]
        file["speeds"].attrs["pandas_type"] = "frame"  # but it is an array
    with pytest.raises(DataError, match="no pandas DataFrame in it, only the link away, speeds"):
        read(path)


ARRAYS = ["axis0", "axis1", "block0_items", "block0_values"]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("outside", [True, False], ids=["other file", "same file"])
def test_no_array_of_the_frame_may_be_a_link(intact: Path, array: str, outside: bool) -> None:
    frame().to_hdf(intact.with_name("other.h5"), key="df")
    with h5py.File(intact, "a") as file:
        file.move(f"df/{array}", "moved")
        elsewhere = h5py.ExternalLink("other.h5", f"df/{array}")
        file[f"df/{array}"] = elsewhere if outside else h5py.SoftLink("/moved")
    with pytest.raises(DataError, match=f"^{intact}: /df/{array} is a link, which is not followed"):
        read(intact)


@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "external"])
def test_values_kept_in_another_file_are_not_read(intact: Path, virtual: bool) -> None:
    raw = intact.with_name("raw.bin")
    raw.write_bytes(np.zeros((6, 2)).tobytes())
    with h5py.File(intact, "a") as file:
        del file["df/block0_values"]
        if virtual:
            layout = h5py.VirtualLayout((6, 2), "f8")
            layout[:] = h5py.VirtualSource(str(intact.with_name("other.h5")), "values", (6, 2))
            file["df"].create_virtual_dataset("block0_values", layout)
        else:
            external = [(str(raw), 0, raw.stat().st_size)]
            file["df"].create_dataset("block0_values", (6, 2), "f8", external=external)
    message = "/df/block0_values keeps its values in another file, which is not read"
    with pytest.raises(DataError, match=f"^{intact}: {message}"):
        read(intact)


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize(
    ("content", "fault"),
    [(1.0, "has 0 dim"), (np.ones((1, 1, 1)), "has 3 dim"), ({}, "is no array"), (None, "is miss")],
    ids=["number", "cube", "group", "nothing"],
)
def test_a_damaged_frame_is_refused(intact: Path, array: str, content: object, fault: str) -> None:
    with h5py.File(intact, "a") as file:
        del file[f"df/{array}"]
        if isinstance(content, dict):
            file.create_group(f"df/{array}")
        elif content is not None:
            file[f"df/{array}"] = content
    with pytest.raises(DataError, match=f"^{intact}: /df/{array} {fault}"):
        read(intact)


@pytest.mark.parametrize(("zone", "end"), [(None, "00:40:00"), ("UTC", "00:40:00+00:00")])
def test_a_series_knows_its_clock(path: Path, zone: str | None, end: str) -> None:
    frame().set_axis(TIMES.tz_localize(zone)).to_hdf(path, key="df")
    client, _ = read(path)
    assert client.clock.time(client.start + len(client.values)) == f"2012-03-01 {end}"
