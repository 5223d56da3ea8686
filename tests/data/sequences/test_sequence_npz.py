from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.recognition import reading_of
from fedproto_app.data.sequences.pool import SequencePool
from tests.data.sequences.made_sequences import sequences_of
from tests.helpers.real_data import real_data

POINTS = {
    "points": np.arange(12.0).reshape(6, 2),
    "offsets": np.array([0, 1, 4, 6]),
    "label": np.array([10, 9, 10]),
}
ROWS = {"x": np.arange(24, dtype=np.uint8).reshape(3, 4, 2), "y": np.array(["b", "a", "b"])}
SPLITS = {
    "x_train": np.zeros((2, 4, 1)),
    "y_train": np.array([0, 1]),
    "x_test": np.ones((3, 5, 1)),
    "y_test": np.array([1, 1, 2], np.int8),
}


def read(folder: Path, arrays: dict[str, Any], **changes: Any) -> SequencePool:
    """Return the pool of the archive with some arrays changed, or removed by None."""
    present = {name: values for name, values in (arrays | changes).items() if values is not None}
    np.savez(folder / "x.npz", **present)
    return sequences_of("sequence-npz", folder / "x.npz")


def test_points_between_offsets(tmp_path: Path) -> None:
    pool = read(tmp_path, POINTS, flagged=np.zeros(3, np.bool_))
    assert [steps.tolist() for steps in pool.sequences] == [
        [[0, 1]],
        [[2, 3], [4, 5], [6, 7]],
        [[8, 9], [10, 11]],
    ]
    assert pool.classes == ("9", "10")
    assert pool.targets.tolist() == [1, 0, 1]
    assert pool.dimensions == ("dimension-1", "dimension-2")
    assert pool.clients is None
    assert pool.is_test is None


def test_rows_with_texts_as_labels_or_numbers_as_targets(tmp_path: Path) -> None:
    pool = read(tmp_path, ROWS)
    assert pool.classes == ("a", "b")
    assert pool.targets.tolist() == [1, 0, 1]
    assert pool.sequences[1].tolist() == [[8, 9], [10, 11], [12, 13], [14, 15]]
    pool = read(tmp_path, ROWS, y=np.array([0.5, 2, -1], np.float32))
    assert pool.classes == ()
    assert pool.targets.tolist() == [0.5, 2, -1]
    assert pool.targets.dtype == np.float64


def test_rows_with_one_value_a_step(tmp_path: Path) -> None:
    pool = read(tmp_path, ROWS, x=np.arange(6.0).reshape(3, 2))
    assert [steps.tolist() for steps in pool.sequences] == [[[0], [1]], [[2], [3]], [[4], [5]]]
    assert reading_of(tmp_path / "x.npz").source == "sequence-npz"
    np.savez(tmp_path / "series.npz", x=np.arange(6.0))
    assert reading_of(tmp_path / "series.npz").source == "npz"


@pytest.mark.parametrize("client", ["client", "subject"])
def test_clients_and_groups(tmp_path: Path, client: str) -> None:
    labels = {client: np.array([7, 8, 7]), "group": np.array(["l", "r", "l"])}
    pool = read(tmp_path, POINTS, **labels)
    assert pool.clients.tolist() == ["7", "8", "7"]
    assert pool.groups == {"7": "l", "8": "r"}


def test_the_values_of_a_step_have_names(tmp_path: Path) -> None:
    for arrays, count in ((ROWS, ROWS["x"].shape[2]), (SPLITS, 1)):
        names = [f"axis {number}" for number in range(count)]
        assert read(tmp_path, arrays, dimensions=np.array(names)).dimensions == tuple(names)
    with pytest.raises(DataError, match="'dimensions' has 2 values for 1 values a step"):
        read(tmp_path, SPLITS, dimensions=np.array(["x", "y"]))
    with pytest.raises(DataError, match="none of them twice"):
        read(tmp_path, POINTS, dimensions=np.array(["x", "x"]))


def test_a_split_of_its_own(tmp_path: Path) -> None:
    clients = {"client_train": np.array(["a", "b"]), "client_test": np.array(["b", "b", "a"])}
    pool = read(tmp_path, SPLITS, **clients)
    assert pool.is_test.tolist() == [False, False, True, True, True]
    assert [steps.shape for steps in pool.sequences] == [(4, 1)] * 2 + [(5, 1)] * 3
    assert pool.targets.tolist() == [0, 1, 1, 1, 2]
    assert pool.clients.tolist() == ["a", "b", "b", "b", "a"]


@pytest.mark.parametrize(
    ("arrays", "changes", "message"),
    [
        (ROWS, {"x": None}, "expected one of the arrays points, x, x_train, found y"),
        (ROWS, {"points": np.zeros((2, 2))}, "expected one of the arrays"),
        (ROWS, {"y": None}, "no array y"),
        (ROWS, {"label": np.zeros(3)}, "beside x, y only client, group, dimensions are .* label"),
        (ROWS, {"y": np.array([1, 2])}, "array 'y' has 2 values for 3 sequences"),
        (ROWS, {"y": np.zeros((3, 1))}, r"array 'y' has shape \(3, 1\), expected 1-D"),
        (ROWS, {"y": np.array([True, False, True])}, "array 'y' holds bool, expected integers or"),
        (ROWS, {"y": np.array([0.0, np.inf, 1])}, "sequence 1 has the target inf"),
        (ROWS, {"y": np.array([{}, {}, {}])}, "pickled Python objects"),
        (ROWS, {"x": np.zeros(3)}, r"array 'x' has shape \(3,\), expected \[n, T, d\]"),
        (ROWS, {"x": np.zeros((3, 0, 2))}, r"has shape \(3, 0, 2\), expected"),
        (ROWS, {"x": np.array([[["a"]]])}, "array 'x' holds <U1, not numbers"),
        (ROWS, {"x": np.full((3, 4, 2), 1e39)}, "sequence 0: dimension-1 at step 0 is inf"),
        (ROWS, {"group": np.array([1, 1, 1])}, "`group` needs an array of clients"),
        (POINTS, {"offsets": np.array([0, 1, 4, 5])}, "must begin with 0 and end with 6"),
        (POINTS, {"offsets": np.array([1, 1, 4, 6])}, "must begin with 0 and end with 6"),
        (POINTS, {"offsets": np.array([0, 4, 4, 6])}, "sequence 1 has 0 points"),
        (POINTS, {"offsets": np.array([0, 4, 3, 6])}, "sequence 1 has -1 points"),
        (POINTS, {"offsets": np.array([0.0, 1, 4, 6])}, "'offsets' holds float64, .* integers$"),
        (POINTS, {"client": np.ones(3, np.int8), "subject": np.ones(3, np.int8)}, "both 'subject'"),
        (
            POINTS,
            {"client": np.array(["a", "b", "a"]), "group": np.array([1, 1, 2])},
            "client 'a' is in the groups '1', '2'",
        ),
        (SPLITS, {"y_test": np.array(["1", "1", "2"])}, "y_train holds int64, y_test <U1"),
        (SPLITS, {"x_test": np.ones((3, 5, 2))}, r"sequence 2 has shape \(5, 2\), expected \[T, 1"),
        (SPLITS, {"client_test": np.array([1, 1, 1])}, "client_test is given for one split only"),
    ],
)
def test_bad_archives(tmp_path: Path, arrays: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path / 'x.npz'}: .*{message}"):
        read(tmp_path, arrays, **changes)


def test_real_air_writing_of_ten_subjects() -> None:
    pool = sequences_of("sequence-npz", real_data("airwriting_leap_1183_10subjects.npz"))
    assert len(pool.sequences) == 1183
    assert pool.classes == tuple("0123456789")
    assert sorted(set(pool.clients.tolist())) == list("ABCDEFGHIJ")
    assert sum(map(len, pool.sequences)) == 160320
    np.testing.assert_allclose(pool.sequences[0][0], [35.928394, 304.96884, -78.3019])


def test_real_pen_digits() -> None:
    pool = sequences_of("sequence-npz", real_data("pendigits.npz"))
    assert (~pool.is_test).sum() == 7494
    assert pool.is_test.sum() == 3498
    assert {steps.shape for steps in pool.sequences} == {(8, 2)}
    assert pool.sequences[0][0].tolist() == [47, 100]
