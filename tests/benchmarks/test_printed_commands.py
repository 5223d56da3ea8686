"""The benchmarks that pages and the Makefile name exist, with the options given to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.pages import ROOT

PAGES = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "results").glob("*.md"))
COMMAND = re.compile(r"python -m (benchmarks[\w.]*)([^`|#\n]*)")


def source_of(module: str) -> str:
    """Return the module's text with that of the parts that parse options for several modules."""
    path = ROOT / module.replace(".", "/")
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return "\n".join(file.read_text() for file in [*files, ROOT / "benchmarks" / "parts.py"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_printed_benchmark_is_there_with_its_options(page: Path) -> None:
    for module, arguments in COMMAND.findall(page.read_text()):
        source = source_of(module.rstrip("."))
        for option in re.findall(r"--[a-z][a-z-]*", arguments):
            assert option == "--help" or f'"{option}"' in source, f"{module} {option}"
