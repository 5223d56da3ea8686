from __future__ import annotations

from pathlib import Path

import pytest

from fedproto_app.core.errors import DataError
from tests.data.sequences.made_sequences import sequences_of


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (".tsv", "2\t0.5\t-1\t3\n-1\t1e1\tNaN\tNaN\n"),  # the archive of 2018
        ("", "2,0.5,-1,3\n-1,1e1,NaN,NaN\n"),  # the archive of 2015
        (".txt", "  2.0000000e+00  0.5 -1 3\n -1.0000000e+00  10 NaN NaN\n\n"),
    ],
)
def test_a_folder_of_train_and_test(tmp_path: Path, ending: str, text: str) -> None:
    (tmp_path / f"Two_TRAIN{ending}").write_text(text)
    with pytest.raises(DataError, match=f"Two_TRAIN{ending} is there, but Two_TEST{ending} is not"):
        sequences_of("ucr-text", tmp_path)
    (tmp_path / f"Two_TEST{ending}").write_text(text.splitlines()[0])
    pool = sequences_of("ucr-text", tmp_path)
    assert [steps.tolist() for steps in pool.sequences] == [
        *([[0.5], [-1], [3]], [[10]]),
        [[0.5], [-1], [3]],
    ]
    assert pool.classes == ("-1", "2")
    assert pool.targets.tolist() == [1, 0, 1]
    assert pool.is_test is not None
    assert pool.is_test.tolist() == [False, False, True]
    alone = sequences_of("ucr-text", tmp_path / f"Two_TRAIN{ending}")
    assert alone.targets.tolist() == [1, 0]
    assert alone.is_test is None


def test_classes_with_names_follow_those_with_numbers(tmp_path: Path) -> None:
    (tmp_path / "A_TRAIN.tsv").write_text("b 1\n10 1\na 1\n9 1\n")
    assert sequences_of("ucr-text", tmp_path / "A_TRAIN.tsv").classes == ("9", "10", "a", "b")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1 2 3\n1 2 NaN 3\n", "line 2: a value is missing; sequences must be complete"),
        ("1 2 3\n1 NaN\n", "line 2: no value after the class 1"),
        ("1 2 3\n1\n", "line 2: no value after the class 1"),
        ("1 2 x\n", "line 1: could not convert string to float: .*x"),
        ("\n\n", "the file is empty"),
        ("1 2 inf\n", "inf"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "A_TRAIN.tsv").write_text(text)
    with pytest.raises(DataError, match=fault):
        sequences_of("ucr-text", tmp_path / "A_TRAIN.tsv")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_text("1 2 3\n")
    (folder / "A_TRAIN.tsv").write_text("1 2 3\n")
    (folder / "A_TEST.tsv").symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match="outside the data folder"):
        sequences_of("ucr-text", folder)
