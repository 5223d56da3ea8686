"""The oracle is pandas itself, which writes the files."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
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


def test_a_frame_behind_a_link_is_not_found(path: Path) -> None:
    frame().to_hdf(path.with_name("other.h5"), key="df")
    with h5py.File(path, "w") as file:
        file["df"] = h5py.ExternalLink(str(path.with_name("other.h5")), "df")
    with pytest.raises(DataError, match="no pandas DataFrame in it, only the link df"):
        read(path)


ARRAYS = ["axis0", "axis1", "block0_items", "block0_values"]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("outside", [True, False], ids=["other file", "same file"])
def test_no_array_of_the_frame_may_be_a_link(path: Path, array: str, outside: bool) -> None:
    frame().to_hdf(path, key="df")
    frame().to_hdf(path.with_name("other.h5"), key="df")
    with h5py.File(path, "a") as file:
        file.move(f"df/{array}", "moved")
        file[f"df/{array}"] = (
            h5py.ExternalLink(str(path.with_name("other.h5")), f"df/{array}")
            if outside
            else h5py.SoftLink("/moved")
        )
    with pytest.raises(DataError, match=f"^{path}: /df/{array} is a link, which is not followed"):
        read(path)


@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "external"])
def test_values_kept_in_another_file_are_not_read(path: Path, virtual: bool) -> None:
    frame().to_hdf(path, key="df")
    raw = path.with_name("raw.bin")
    raw.write_bytes(np.zeros((6, 2)).tobytes())
    with h5py.File(path, "a") as file:
        del file["df/block0_values"]
        if virtual:
            layout = h5py.VirtualLayout((6, 2), "f8")
            layout[:] = h5py.VirtualSource(str(path.with_name("other.h5")), "values", (6, 2))
            file["df"].create_virtual_dataset("block0_values", layout)
        else:
            external = [(str(raw), 0, raw.stat().st_size)]
            file["df"].create_dataset("block0_values", (6, 2), "f8", external=external)
    message = "/df/block0_values keeps its values in another file, which is not read"
    with pytest.raises(DataError, match=f"^{path}: {message}"):
        read(path)


@pytest.mark.parametrize("array", ARRAYS)
def test_a_group_where_an_array_belongs_is_refused(path: Path, array: str) -> None:
    frame().to_hdf(path, key="df")
    with h5py.File(path, "a") as file:
        del file[f"df/{array}"]
        file.create_group(f"df/{array}")
    with pytest.raises(DataError, match=f"^{path}: /df/{array} is no array"):
        read(path)


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("content", [1.0, np.ones((1, 1, 1)), None], ids=["one", "cube", "none"])
def test_a_damaged_frame_is_refused(path: Path, array: str, content: object) -> None:
    frame().to_hdf(path, key="df")
    with h5py.File(path, "a") as file:
        del file[f"df/{array}"]
        if content is not None:
            file[f"df/{array}"] = content
    with pytest.raises(DataError, match=f"^{path}: /df/{array} (has|is missing)"):
        read(path)


def test_a_data_set_that_calls_itself_a_frame_is_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["df"] = [1.0, 2.0]
        file["df"].attrs["pandas_type"] = "frame"
    with pytest.raises(DataError, match="no pandas DataFrame in it, only df"):
        read(path)


@pytest.mark.parametrize(("zone", "end"), [(None, "00:40:00"), ("UTC", "00:40:00+00:00")])
def test_a_series_knows_its_clock(path: Path, zone: str | None, end: str) -> None:
    written = frame()
    written.index = TIMES.tz_localize(zone)
    written.to_hdf(path, key="df")
    client, _ = read(path)
    assert client.clock is not None
    assert client.clock.time(client.start + len(client.values)) == f"2012-03-01 {end}"
