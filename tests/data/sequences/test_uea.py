from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.pool import SequencePool
from tests.data.sequences.made_sequences import sequences_of
from tests.helpers.real_data import real_data

HEADER = """# about the data
@problemName Two
@timeStamps false
@univariate false
@dimensions 2
@classLabel true up down
"""
CASES = "1,2,3:4,5,6:down\n-1.5:2e1: up \n"
TARGETS = HEADER.replace("@classLabel true up down", "@targetlabel true")


def read(folder: Path, text: str, encoding: str = "utf-8") -> SequencePool:
    path = folder / "Two.ts"
    path.write_text(text, encoding)
    return sequences_of("uea-ts", path)


def test_cases_of_two_dimensions_and_different_lengths(tmp_path: Path) -> None:
    pool = read(tmp_path, f"{HEADER}\n@data\n{CASES}\n")
    assert pool.classes == ("up", "down")
    assert pool.targets.tolist() == [1, 0]
    assert pool.sequences[0].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert pool.sequences[1].tolist() == [[-1.5, 20]]
    assert pool.dimensions == ("dimension-1", "dimension-2")
    assert pool.is_test is None


def test_targets_of_an_unknown_class_or_numbers(tmp_path: Path) -> None:
    pool = read(tmp_path, f"{HEADER}\n@data\n{CASES}\n7:8:?\n")
    assert pool.classes == ("up", "down")
    assert pool.targets.tolist() == [1, 0, -1]
    numbers = read(tmp_path, f"{TARGETS}@data\n1:2:0.5\n1:2:-3\n")
    assert numbers.classes == ()
    assert numbers.targets.tolist() == [0.5, -3]
    header = HEADER.replace("up down", "up down ?")
    assert read(tmp_path, f"{header}\n@data\n{CASES}\n7:8:?\n").targets.tolist() == [1, 0, -1]


def test_a_folder_of_train_and_test(tmp_path: Path) -> None:
    (tmp_path / "Two_TRAIN.ts").write_text(f"{HEADER}@data\n{CASES}")
    with pytest.raises(DataError, match=r"Two_TRAIN\.ts is there, but Two_TEST\.ts is not"):
        sequences_of("uea-ts", tmp_path)
    turned = HEADER.replace("up down", "down up")
    (tmp_path / "Two_TEST.ts").write_text(f"{turned}@data\n7:8:down\n")
    pool = sequences_of("uea-ts", tmp_path)
    assert pool.is_test.tolist() == [False, False, True]
    assert pool.classes == ("up", "down")
    assert pool.targets.tolist() == [1, 0, 1]
    (tmp_path / "Two_TEST.ts").write_text(f"{HEADER.replace('down', 'left')}@data\n7:8:left\n")
    with pytest.raises(DataError, match=r"Two_TEST\.ts: its @classLabel differs from that of Two_"):
        sequences_of("uea-ts", tmp_path)
    (tmp_path / "One_TRAIN.ts").write_text("")
    with pytest.raises(DataError, match=r"found One_TRAIN\.ts, Two_TRAIN\.ts"):
        sequences_of("uea-ts", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n", "line 1: '1,2,3' before @data: expected a tag"),
        ("@colour true\n@data\n", "line 1: '@colour true' before @data"),
        (HEADER, "no line @data"),
        (f"{HEADER}@data\n", "no case after @data"),
        (HEADER.replace("false", "true", 1) + "@data\n" + CASES, "@timeStamps true: steps with"),
        (HEADER.replace("true up down", "false") + "@data\n" + CASES, "expected either '@classLab"),
        (f"{HEADER}@targetLabel true\n@data\n{CASES}", "expected either '@classLabel true' with"),
        (HEADER.replace("2", "two") + "@data\n" + CASES, "@dimensions two: expected a number"),
        (f"{HEADER}@data\n1,2:up\n", "line 8: 1 dimensions and a label .* expected 2"),
        (f"{HEADER}@data\n1:2:up\n1:?:up\n", "line 9, dimension 2: a value is missing"),
        (f"{HEADER}@data\n1:NaN:up\n", "line 8, dimension 2: a value is missing"),
        (f"{HEADER}@data\n1:x:up\n", "line 8, dimension 2: could not convert .* 'x'"),
        (f"{HEADER}@data\n1,2:1,2,3:up\n", "line 8: dimensions of different lengths, 2 to 3 steps"),
        (f"{HEADER}@data\n1:2:left\n", "line 8: class 'left' is not in @classLabel"),
        (f"{TARGETS}@data\n1:2:left\n", "line 8: target 'left' is not a number"),
        (f"{HEADER}@data\n1:inf:up\n", "sequence 0: dimension-2 at step 0 is inf"),
        (
            HEADER.replace("@dimensions 2\n", "") + "@data\n1:2:up\n1:up\n",
            "line 8: 1 dimensions, but .*line 7 has 2",
        ),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path / 'Two.ts'}: .*{message}"):
        read(tmp_path, text)
    with pytest.raises(DataError, match="looks like UTF-16 text; save it as UTF-8"):
        read(tmp_path, text, "utf-16")


def test_comments_of_either_kind(tmp_path: Path) -> None:
    """Comments start with % in aeon's files, with # in others."""
    plain = "@problemName Two\n@univariate true\n@classLabel true a b\n@data\n1,2:a\n3,4:b\n"
    for text in (plain, "%% source\n#\n" + plain.replace("1,2", "% the cases\n1,2")):
        pool = read(tmp_path, text)
        assert [steps.tolist() for steps in pool.sequences] == [[[1], [2]], [[3], [4]]]


def versions(folder: Path, lacks: str, **values: int) -> Path:
    """Write a folder like aeon's: a problem in several versions, each with a different value."""
    folder.mkdir()
    for version, value in values.items():
        for part in ("TRAIN", "TEST"):
            name = f"Two{version.removeprefix('plain')}_{part}.ts"
            tags = f"@missing {lacks if version == 'plain' else 'false'}\n@univariate true\n"
            lines = f"{tags}@classLabel true a b\n@data\n{value}:a\n{value}:b\n"
            (folder / name).write_text(lines)
    return folder


def test_the_original_or_complete_version_is_read(tmp_path: Path) -> None:
    for number, (lacks, values, expected) in enumerate(
        [
            ("false", {"plain": 1, "_eq": 2}, 1),
            ("false", {"plain": 1, "_eq": 2, "_nmv": 3}, 1),
            ("true", {"plain": 1, "_eq": 2, "_nmv": 3}, 3),
            ("true", {"plain": 1, "_eq": 2}, 2),
            ("true", {"_eq": 2}, 2),
        ]
    ):
        pool = sequences_of("uea-ts", versions(tmp_path / str(number), lacks, **values))
        assert pool.is_test.tolist() == [False, False, True, True]
        assert pool.sequences[0][0, 0] == expected
    (tmp_path / "0" / "Other_TRAIN.ts").write_text("")
    with pytest.raises(DataError, match=r"expected one file <name>_TRAIN.*, found Other_TRAIN"):
        sequences_of("uea-ts", tmp_path / "0")


def test_real_japanese_vowels() -> None:
    """270 and 370 utterances of 7 to 29 steps, as the archive describes them."""
    pool = sequences_of("uea-ts", real_data("JapaneseVowels"))
    assert ((~pool.is_test).sum(), pool.is_test.sum()) == (270, 370)
    lengths = [len(steps) for steps in pool.sequences]
    assert (min(lengths), max(lengths)) == (7, 29)
    assert {steps.shape[1] for steps in pool.sequences} == {12}
    assert pool.classes == tuple("123456789")
    assert np.bincount(pool.targets[~pool.is_test].astype(np.int64)).tolist() == [30] * 9
    np.testing.assert_allclose(
        pool.sequences[0][:2, :2], [[1.860936, -0.207383], [1.891651, -0.193249]]
    )
