"""Files and situations from people's public reports, without which these tests are skipped.

`FEDPROTO_CASES` names a folder with `make_cases.py`, which writes the files `r…`, and `files/` with
the files `u…`. Every row of the folder's `cases.md` has a test, nearly all of them in tests/cases/.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest

from tests.helpers.real_data import REPOSITORY

ROOT = (REPOSITORY / os.environ.get("FEDPROTO_CASES", "../shared/cases")).resolve()


def reported_case(name: str, folder: Path) -> Path:
    """Return a case's file or folder. A file `r…` is written into the folder first.

    name: of the file or folder, for instance "r03-quarters.csv". Skips the test without the cases.
    """
    script = ROOT / "make_cases.py"
    if not script.exists():
        pytest.skip(f"needs {name}: set FEDPROTO_CASES to the folder of make_cases.py")
    if name.startswith("u"):
        return ROOT / "files" / name
    runpy.run_path(str(script))["MAKERS"][name[:3]](folder)
    return folder / name
