"""Where the real data lie that some tests read; they are skipped where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOT = (REPOSITORY / os.environ.get("FEDPROTO_DATA", "../shared/data")).resolve()


def real_data(name: str) -> Path:
    """The path of a real data file; skips the test that asks where the file is absent."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"needs {name}: set FEDPROTO_DATA to the folder of real data")
    return path
