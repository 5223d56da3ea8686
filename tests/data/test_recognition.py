from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.recognition import advice, source_of
from fedproto_app.settings import DataSettings
from tests.data.images.made_images import encoded, noise, write_folder, write_zip

IMAGE = encoded(noise(0, 4, 4))
STEPS = b"u,v\n1,2\n3,4\n"


def test_the_source_is_recognised_by_the_path(tmp_path: Path) -> None:
    assert source_of(tmp_path) == "csv-folder"
    for name, source in [
        ("a.csv", "wide-csv"),
        ("A.CSV.GZ", "wide-csv"),
        ("metr-la.h5", "hdf5"),
        ("x.hdf5", "hdf5"),
        ("x.npz", "npz"),
        ("x.tsv.gz", "wide-csv"),
        ("x.parquet", "wide-parquet"),
    ]:
        assert source_of(Path(name)) == source
    (tmp_path / "x.feather").touch()
    with pytest.raises(DataError, match=r"reads such a file \(write it with DataFrame.to_p"):
        source_of(tmp_path / "x.feather")
    with pytest.raises(DataError, match="no such file or folder"):
        source_of(tmp_path / "y.weather")


@pytest.mark.parametrize(
    "layout", ["train/cat", "stage-1/train/cat", "ann/train/cat", "ann/stage-2/train/cat"]
)
def test_folders_of_classes_are_recognised(tmp_path: Path, layout: str) -> None:
    folder = write_folder(tmp_path, {f"{layout}/1.PNG": IMAGE, "labels.csv": b"a\n1\n"})
    assert source_of(folder) == "class-folders"


def test_a_folder_without_an_image_holds_series(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"a.csv": b"a\n1\n", "train/old/b.csv": b"a\n1\n"})
    assert source_of(folder) == "csv-folder"


@pytest.mark.parametrize("file", ["data_batch_3.bin", "fine_label_names.txt"])
def test_a_cifar_folder_even_an_incomplete_one(tmp_path: Path, file: str) -> None:
    assert source_of(write_folder(tmp_path, {file: b""})) == "cifar"


def test_archives_are_recognised_by_their_files(tmp_path: Path) -> None:
    assert source_of(write_zip(tmp_path / "x.ZIP", {"train/cat/1.png": IMAGE})) == "class-folders"
    np.savez(tmp_path / "images.npz", x_train=noise(0, 2, 4, 4))
    np.savez(tmp_path / "series.npz", values=np.ones((5, 2)))
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04")
    assert source_of(tmp_path / "images.npz") == "image-npz"
    assert source_of(tmp_path / "series.npz") == "npz"
    assert source_of(tmp_path / "torn.npz") == "npz"


@pytest.mark.parametrize(
    ("arrays", "source"),
    [
        ({"points": (9, 3), "offsets": (3,), "label": (2,)}, "sequence-npz"),
        ({"points": (9,), "other": (3,)}, "npz"),  # two clients of those names
        ({"x": (5, 4, 3), "y": (5,)}, "sequence-npz"),
        ({"x": (50,), "y": (50,)}, "npz"),
        ({"values": (50, 3)}, "npz"),
        ({"x_train": (5, 4, 30)}, "sequence-npz"),
        ({"x_train": (5, 8, 8, 3)}, "image-npz"),
    ],
)
def test_npz_archives_are_recognised_by_their_arrays(
    tmp_path: Path, arrays: dict[str, tuple[int, ...]], source: str
) -> None:
    np.savez(tmp_path / "a.npz", **{name: np.zeros(shape) for name, shape in arrays.items()})
    assert source_of(tmp_path / "a.npz") == source


@pytest.mark.parametrize(("width", "source"), [(28, "image-npz"), (2, "sequence-npz")])
def test_grey_images_are_wider_than_steps_of_bytes(tmp_path: Path, width: int, source: str) -> None:
    np.savez(tmp_path / "a.npz", x_train=np.zeros((5, 8, width), np.uint8))
    assert source_of(tmp_path / "a.npz") == source


def test_a_damaged_archive_is_left_to_a_reader(tmp_path: Path) -> None:
    for name, source in (("a.npz", "npz"), ("a.zip", "class-folders")):
        (tmp_path / name).write_bytes(b"no archive")
        assert source_of(tmp_path / name) == source


@pytest.mark.parametrize(
    ("files", "source"),
    [
        (("up/1.csv", "down/1.csv.gz"), "sequence-folder"),
        (("ann/up/1.csv", "bob/up/1.csv"), "sequence-folder"),
        (("a.csv", "b.csv"), "csv-folder"),
        (("a.csv", "old/b.csv"), "csv-folder"),
        (("A_TRAIN.ts", "A_TEST.ts"), "uea-ts"),
        (("train/cat/1.png", "lists/all.csv"), "class-folders"),
    ],
)
def test_folders_are_recognised_by_their_files(
    tmp_path: Path, files: tuple[str, ...], source: str
) -> None:
    image = encoded(noise(0, 4, 4, 3))
    contents = {name: image if name.endswith("png") else STEPS for name in files}
    assert source_of(write_folder(tmp_path / "data", contents)) == source
    if source in ("sequence-folder", "class-folders"):
        assert source_of(write_zip(tmp_path / "data.zip", contents)) == source


def test_a_ts_file(tmp_path: Path) -> None:
    assert source_of(tmp_path / "A.TS") == "uea-ts"  # whether it is there or not, its reader tells


@pytest.mark.parametrize("columns", ["load,load", "load,"])
def test_no_advice_on_columns_that_no_setting_can_name(tmp_path: Path, columns: str) -> None:
    """The reader reports the fault in the file instead."""
    file = tmp_path / "loads.csv"
    rows = (f"2026-01-01 {hour:02d}:00,text{hour},{hour}.5,{hour}.7" for hour in range(24))
    file.write_text("\n".join([f"time,site,{columns}", *rows]))
    assert advice(DataSettings(source="wide-csv", path=str(file))) == ""
