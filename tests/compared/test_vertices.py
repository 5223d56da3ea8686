"""Files with weights of edges or with places, and invalid files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_compared.common.vertices import cell_of, read_places, read_weights


@pytest.mark.parametrize(
    "text", ["a,b\n1,0.5\n0.25,1\n", ",a,b\na,1,0.5\nb,0.25,1\n", "name,a,b\na,1,0.5\nb,0.25,1"]
)
def test_the_larger_weight_of_both_directions_counts(tmp_path: Path, text: str) -> None:
    path = tmp_path / "edges.csv"
    path.write_text(text)
    names, weights = read_weights(path)
    assert names == ("a", "b")
    assert weights.tolist() == [[0.0, 0.5], [0.5, 0.0]]
    assert weights.dtype == np.float32


def test_numbers_alone_have_their_names_in_the_data(tmp_path: Path) -> None:
    path, data = tmp_path / "edges.csv.gz", tmp_path / "data.csv"
    with gzip.open(path, "wt") as file:
        file.write("1,0.5\n0.25,1\n")
    for header in ("773869,767541", "time,773869,767541"):
        data.write_text(f"{header}\n{'1,' * header.count(',')}2\n")
        assert read_weights(path, str(data))[0] == ("773869", "767541")


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        ("", "", "not a readable CSV"),
        ("1,0\n0,1\n", "", "graph.names"),
        ("a,b,c\n1,0,1\n", "", "1 × 3 weights for 3 names"),
        ("a,b\n1,0\n", "", "its first line holds no names"),
        ("1,0\n0,1\n", "a,b,c\n1,2,3\n", "2 × 2 weights for 3 names"),
        ("a,a\n1,0\n0,1\n", "", "'a' is named twice"),
        ("a,b\n1,-2\n0,1\n", "", "weights from -2 to 1"),
        ("a,b\n1,\n0,1\n", "", "could not convert"),
        ("a,b\n1,nan\n0,1\n", "", "not finite"),
        ("a,b\n1,1e300\n0,1\n", "", "expected 0 to 1e"),
        ("a,b\n1,0,3\n0,1\n", "", "not a readable CSV"),
    ],
)
def test_invalid_adjacency_files_are_refused(
    tmp_path: Path, text: str, names: str, message: str
) -> None:
    path = tmp_path / "edges.csv"
    path.write_text(text)
    (tmp_path / "names.csv").write_text(names)
    with pytest.raises(DataError, match=message):
        read_weights(path, str(tmp_path / "names.csv") if names else "")


def test_places_have_names_and_degrees_become_lengths(tmp_path: Path) -> None:
    path = tmp_path / "places.csv"
    path.write_text("name,x,y\na,1,2\nb,3,4.5\n")
    assert read_places(path) == {"a": (1.0, 2.0), "b": (3.0, 4.5)}
    path.write_text("index,sensor_id,latitude,longitude\n0,7,59,10\n1,8,61,20\n")
    assert read_places(path)["7"] == pytest.approx((5.0, 59.0))  # cos 60° = ½
    path.write_text("name,x\na,1\n")
    with pytest.raises(DataError, match="no column 'y' or 'latitude'"):
        read_places(path)
    path.write_text("name,x,y\na,1,2\na,3,4\n")
    with pytest.raises(DataError, match="'a' has two places"):
        read_places(path)
    with pytest.raises(DataError, match=r"nowhere\.csv"):
        read_places(tmp_path / "nowhere.csv")


def test_a_cell_of_a_grid_tells_its_place() -> None:
    assert cell_of("cell_41_45") == (45.0, 41.0)
    assert cell_of("cell 41") is None
