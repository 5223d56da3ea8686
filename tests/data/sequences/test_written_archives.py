"""The programs that docs/sequences.md prints write archives that the app reads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.settings import DataSettings

REPOSITORY = Path(__file__).resolve().parents[3]
# Two lines as UCI's files have them.
LINES = (
    " 47,100, 27, 81, 57, 37, 26,  0,  0, 23, 56, 53,100, 90, 40, 98, 8\n"
    "  0, 89, 27,100, 42, 75, 29, 45, 15, 15, 37,  0, 69,  2,100,  6, 2\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the page's programs in it."""
    text = (REPOSITORY / "docs" / "sequences.md").read_text()
    for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        (tmp_path / program.split("\n", 1)[0].removeprefix("# ")).write_text(program)
    return tmp_path


def written(folder: Path, name: str) -> SequencePool:
    subprocess.run([sys.executable, f"write_{name}.py"], cwd=folder, check=True)
    return load_sequences(DataSettings(source="sequence-npz", path=str(folder / f"{name}.npz")))


def test_pen_digits_become_eight_positions_in_two_splits(folder: Path) -> None:
    (folder / "pendigits.tra").write_text(LINES)
    (folder / "pendigits.tes").write_text(LINES)
    pool = written(folder, "pendigits")
    assert pool.classes == ("2", "8")
    assert pool.targets.tolist() == [1, 0, 1, 0]
    assert pool.is_test is not None
    assert pool.is_test.tolist() == [False, False, True, True]
    assert [steps.shape for steps in pool.sequences] == [(8, 2)] * 4
    assert pool.sequences[0][:3].tolist() == [[47, 100], [27, 81], [57, 37]]


def test_recordings_of_any_lengths_keep_their_writers(folder: Path) -> None:
    pool = written(folder, "airwriting")
    assert pool.classes == tuple("0123456789")
    assert len({len(steps) for steps in pool.sequences}) > 50
    assert pool.clients is not None
    assert pool.clients[:6].tolist() == [*(f"writer-{n}" for n in range(5)), "writer-0"]
    pairs = set(zip(pool.clients.tolist(), pool.targets.tolist(), strict=True))
    assert len(pairs) == 50  # every writer writes every digit
    assert all(np.isfinite(steps).all() for steps in pool.sequences)
