"""The docs' site builds without a warning and loads nothing from other servers; the notebook
runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def test_the_pages_of_the_equations_and_the_house_name_the_same_modules() -> None:
    page = (DOCS / "api" / "equations.md").read_text()
    modules = sorted(path.stem for path in (ROOT / "fedproto_app" / "maths").glob("[!_]*.py"))
    assert re.findall(r"automodule:: fedproto_app\.maths\.(\w+)", page) == modules


@pytest.mark.exhaustive
def test_the_site_builds_without_a_warning_and_asks_no_other_server(tmp_path: Path) -> None:
    """Every link within the docs leads somewhere, and every page stands in the contents."""
    site, doctrees = tmp_path / "site", tmp_path / "doctrees"
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        doctrees,
        DOCS,
        site,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "softmax" in (site / "api" / "equations.html").read_text()
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"([^\"]*)\"", text)
        assert [link for link in loaded if re.match(r"(https?:)?//", link)] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", style.read_text()), style


@pytest.mark.exhaustive
def test_the_notebook_runs_without_a_word_on_stderr(tmp_path: Path) -> None:
    """The cells run one after the other, as a script, without a kernel's output."""
    cells = json.loads((DOCS / "tour.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = tmp_path / "tour.py"
    script.write_text("\n".join(code))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "of 12 shops are better off" in done.stdout
