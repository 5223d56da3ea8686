"""The programs that a page of the documentation prints."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def write_programs(page: str, folder: Path) -> dict[str, str]:
    """Write each program into the folder, under the name in its first line, and return them."""
    text = (DOCS / page).read_text(encoding="utf-8")
    programs = {}
    for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        name = program.split("\n", 1)[0].removeprefix("# ")
        (folder / name).write_text(program)
        programs[name] = program
    return programs
