"""The oracle is pandas itself, which writes the files."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.errors import DataError
from fedproto_app.settings import DataSettings

TIMES = pd.date_range("2012-03-01 00:10", periods=6, freq="5min")


def frame(**columns: object) -> pd.DataFrame:
    speeds = {"773869": [64.0, 0, 62, 61, 60, 59], "767541": [1.0, 2, 3, 4, 5, 6]}
    return pd.DataFrame({**speeds, **columns}, index=TIMES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metr-la.h5"


def read(path: Path) -> list[ClientSeries]:
    return load_series(DataSettings(source="hdf5", path=str(path), period=288))


@pytest.mark.parametrize("unit", ["ns", "us"])
@pytest.mark.parametrize("key", ["df", "speed"])  # METR-LA's and PEMS-BAY's
def test_a_frame_as_pandas_writes_it(path: Path, key: str, unit: str) -> None:
    written = frame()
    written.index = TIMES.as_unit(unit)
    written.to_hdf(path, key=key)
    clients = read(path)
    assert [series.name for series in clients] == ["773869", "767541"]
    assert {series.start % 288 for series in clients} == {2}  # 00:10 is the third slot of the day
    for series in clients:
        np.testing.assert_array_equal(series.values, written[series.name])


def test_the_older_attribute_without_a_unit_means_nanoseconds(path: Path) -> None:
    written = frame()
    written.index = TIMES.as_unit("ns")
    written.to_hdf(path, key="df")
    with h5py.File(path, "a") as file:
        file["df/axis1"].attrs["kind"] = np.bytes_(b"datetime64")
    assert read(path)[0].start % 288 == 2


def test_integer_names_and_rows_that_are_only_counted(path: Path) -> None:
    pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=[400001, 400017]).to_hdf(path, key="speed")
    first, second = read(path)
    assert (first.name, second.name, first.start) == ("400001", "400017", 0)
    np.testing.assert_array_equal(second.values, [2, 4])


def test_several_blocks_keep_the_order_of_the_columns(path: Path) -> None:
    written = frame()
    written.insert(1, "whole", range(6))
    written.insert(2, "single", np.arange(6, dtype=np.float32))
    written.to_hdf(path, key="df")
    clients = read(path)
    assert [series.name for series in clients] == list(written.columns)
    for series in clients:
        np.testing.assert_array_equal(series.values, written[series.name])


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
def test_frames_that_are_no_table_of_numbers_are_refused(
    path: Path, written: pd.DataFrame, message: str
) -> None:
    written.to_hdf(path, key="df")
    with pytest.raises(DataError, match=f"^{path}: {message}"):
        read(path)


def test_the_table_format_is_refused(path: Path) -> None:
    frame().to_hdf(path, key="df", format="table")
    with pytest.raises(DataError, match="key 'df' is a pandas 'frame_table'"):
        read(path)


def test_several_frames_are_refused(path: Path) -> None:
    frame().to_hdf(path, key="one")
    frame().to_hdf(path, key="two")
    with pytest.raises(DataError, match="one DataFrame is expected, found one, two"):
        read(path)


def test_other_hdf5_and_other_files_are_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["speeds"] = [1.0, 2.0]
    with pytest.raises(DataError, match="no pandas DataFrame in it, only speeds"):
        read(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="not a readable HDF5 DataFrame"):
        read(path)


def test_a_link_to_another_file_is_not_followed(path: Path) -> None:
    other = path.with_name("other.h5")
    frame().to_hdf(other, key="df")
    with h5py.File(path, "w") as file:
        file["df"] = h5py.ExternalLink(str(other), "df")
    with pytest.raises(DataError, match="no pandas DataFrame in it"):
        read(path)
