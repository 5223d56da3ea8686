from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.recognition import advice, reading_of
from fedproto_app.data.table_form import Column, form_of
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import names_in, text_of
from tests.data.images.made_images import encoded, noise, write_folder, write_zip

CONTENTS = {".png": encoded(noise(0, 4, 4, 3)), ".csv": b"u,v\n1,2\n3,4\n"}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.csv", "wide-csv"),
        ("A.CSV.GZ", "wide-csv"),
        ("x.tsv.gz", "wide-csv"),
        ("x.parquet", "wide-parquet"),
        ("metr-la.h5", "hdf5"),
        ("x.hdf5", "hdf5"),
        ("x.npz", "npz"),
        ("A.TS", "uea-ts"),
        ("A_TEST.tsv", "ucr-text"),
        ("sales_test.tsv", "wide-csv"),
        ("a.zip", "class-folders"),
    ],
)
def test_missing_or_damaged_files_go_by_name(tmp_path: Path, name: str, source: str) -> None:
    assert reading_of(tmp_path / name).source == source
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    assert reading_of(tmp_path / name).source == source


def test_what_no_source_reads(tmp_path: Path) -> None:
    (tmp_path / "x.feather").touch()
    with pytest.raises(DataError, match=r"reads such a file \(write it with DataFrame.to_p"):
        reading_of(tmp_path / "x.feather")
    with pytest.raises(DataError, match="no such file or folder"):
        reading_of(tmp_path / "y.weather")


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ("", "csv-folder"),
        ("a.csv b.csv", "csv-folder"),
        ("a.csv old/b.csv", "csv-folder"),
        ("a.csv train/old/b.csv", "csv-folder"),
        ("up/1.csv down/1.csv.gz", "sequence-folder"),
        ("ann/up/1.csv bob/up/1.csv", "sequence-folder"),
        ("A_TRAIN.ts A_TEST.ts", "uea-ts"),
        ("A_TRAIN.ts A_TEST.ts A_TRAIN.txt A_TEST.txt A.txt", "uea-ts"),
        ("A_TRAIN.tsv A_TEST.tsv README.md", "ucr-text"),
        ("A_TRAIN A_TEST", "ucr-text"),
        ("data_batch_3.bin", "cifar"),  # even an incomplete folder
        ("fine_label_names.txt", "cifar"),
        ("train/cat/1.png lists/all.csv", "class-folders"),
        ("train/cat/1.PNG labels.csv", "class-folders"),
        ("stage-1/train/cat/1.PNG labels.csv", "class-folders"),
        ("ann/train/cat/1.PNG labels.csv", "class-folders"),
        ("ann/stage-2/train/cat/1.PNG labels.csv", "class-folders"),
        ("cat/1.png ant/1.png", "class-folders"),
        ("east/cat/1.png west/ant/1.png", "class-folders"),
        ("plots/north/1.png north.csv", "csv-folder"),
    ],
)
def test_folders_are_recognised_by_their_files(tmp_path: Path, files: str, source: str) -> None:
    names = files.split()
    contents = {name: CONTENTS.get(Path(name).suffix.lower(), b"") for name in names}
    (tmp_path / "data").mkdir()
    assert reading_of(write_folder(tmp_path / "data", contents)).source == source
    if source in ("sequence-folder", "class-folders"):
        assert reading_of(write_zip(tmp_path / "data.ZIP", contents)).source == source


@pytest.mark.parametrize(
    ("arrays", "dtype", "source"),
    [
        ({"points": (9, 3), "offsets": (3,), "label": (2,)}, np.float64, "sequence-npz"),
        ({"points": (9,), "other": (3,)}, np.float64, "npz"),  # two clients of those names
        ({"x": (5, 4, 3), "y": (5,)}, np.float64, "sequence-npz"),
        ({"x": (50,), "y": (50,)}, np.float64, "npz"),
        ({"values": (50, 3)}, np.float64, "npz"),
        ({"x_train": (5, 4, 30)}, np.float64, "sequence-npz"),
        ({"x_train": (5, 8, 8, 3)}, np.float64, "image-npz"),
        ({"x_train": (5, 8, 28)}, np.uint8, "image-npz"),  # grey images are wider …
        ({"x_train": (5, 8, 2)}, np.uint8, "sequence-npz"),  # … than steps of bytes
        ({"x": (5, 8, 8), "y": (5,)}, np.uint8, "image-npz"),
        ({"x": (5, 8, 8, 3), "y": (5,)}, np.uint8, "image-npz"),
        ({"x": (5, 8, 8), "y": (5,)}, np.float64, "sequence-npz"),
        ({"x": (5, 90, 6), "y": (5,)}, np.uint8, "sequence-npz"),
    ],
)
def test_npz_archives_are_recognised_by_their_arrays(
    tmp_path: Path, arrays: dict[str, tuple[int, ...]], dtype: type, source: str
) -> None:
    zeros = {name: np.zeros(shape, dtype) for name, shape in arrays.items()}
    np.savez(tmp_path / "a.npz", **zeros)
    assert reading_of(tmp_path / "a.npz").source == source


@pytest.mark.parametrize("columns", ["load,load", "load,"])
def test_no_advice_on_columns_that_no_setting_can_name(tmp_path: Path, columns: str) -> None:
    """The reader reports the fault in the file instead."""
    file = tmp_path / "loads.csv"
    rows = (f"2026-01-01 {hour:02d}:00,text{hour},{hour}.5,{hour}.7" for hour in range(24))
    file.write_text("\n".join([f"time,site,{columns}", *rows]))
    assert advice(DataSettings(source="wide-csv", path=str(file))) == ""


@pytest.mark.parametrize("name", ["load, total", "load\n[kW]", 'the "load"'])
def test_any_name_of_a_column_can_be_in_the_settings(tmp_path: Path, name: str) -> None:
    """Excel writes names with a line break where a cell is wrapped."""
    numbers = [f"{hour}.5" for hour in range(24)]
    columns = [
        Column("time", [f"2026-01-01 {hour:02d}:00" for hour in range(24)]),
        Column("weather", [f"text {number}" for number in numbers]),
        *(Column(title, numbers) for title in (name, "b")),
    ]
    assert form_of(columns).settings["data.clients"] == text_of([name, "b"])
    assert names_in(text_of([name, "b"])) == (name, "b")
