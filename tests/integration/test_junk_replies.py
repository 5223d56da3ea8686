"""A node that fills the server's disk, in a federation of real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults.untrusted import junk_replies


@pytest.mark.exhaustive  # two minutes
@pytest.mark.integration
def test_junk_is_refused_before_it_is_stored_and_the_run_continues(tmp_path: Path) -> None:
    (row,) = junk_replies(tmp_path / "trial", array=40, allowed=32)
    assert row.good, row.happened
