"""The real data that some tests read, which are skipped without the data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = (REPOSITORY / os.environ.get("FEDPROTO_DATA", "../shared/data")).resolve()


def real_data(name: str) -> Path:
    """Return the path of a real data file, or skip the test without it."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"needs {name}: set FEDPROTO_DATA to the folder of real data")
    return path
