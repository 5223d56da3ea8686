"""Time a new user's way from a table to a report: the block of commands in docs/your-data.md.

    python -m benchmarks.first_report                       # measures and prints
    python -m benchmarks.first_report --fedproto PROGRAM    # one installed elsewhere
    python -m benchmarks.first_report --pictures            # for docs/report.md

In an empty folder it writes the page's `loads.csv`, then runs the page's block of commands, one
after the other, with the page's settings alone. `.ci/wheel` does so with an installed wheel.
Processor seconds are of the command and all that it started. Seconds on the clock depend on what
else the machine does, so its load is printed beside them.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import processors
from benchmarks.pages import ROOT, table_texts
from benchmarks.parts import parser_of

PAGE = ROOT / "docs" / "your-data.md"
PROGRAM = "write_sites.py"
AIM = 180.0  # seconds, on two cores
WINDOWS = {1280: 665, 768: 645, 390: 750}  # pixels, up to the contents
_COMMAND = "fedproto "


@dataclass(frozen=True)
class Took:
    """Seconds of a command: of processors, and on the clock."""

    command: str
    processor: float
    clock: float


def program_of(page: str) -> str:
    """Return the program that writes the table."""
    (program,) = re.findall(rf"```python\n(# {re.escape(PROGRAM)}\n.*?)```", page, re.DOTALL)
    return str(program)


def block_of(page: str) -> tuple[str, list[str]]:
    """The page's ``loads.toml``, and its commands up to the report."""
    (block,) = re.findall(r"```\n(cat > loads\.toml <<END\n.*?)```", page, re.DOTALL)
    settings, command_lines = re.fullmatch(
        r"cat > .*? <<END\n(.*?)^END\n(.*)", block, re.S | re.M
    ).groups()  # type: ignore[union-attr]
    commands = [line for line in command_lines.splitlines() if line]
    if strange := [line for line in commands if not line.startswith(_COMMAND)]:
        raise SystemExit(f"{PAGE}: not a command of fedproto: {strange[0]}")
    return settings, commands


def measured(commands: Sequence[str], fedproto: Path, folder: Path) -> list[Took]:
    """Return each command's seconds, in this folder, or exit if a command fails."""
    took = []
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in commands:
        words = [str(fedproto), *command.removeprefix(_COMMAND).split()]
        before, start = _children(), time.monotonic()
        done = subprocess.run(
            words, cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{command} failed:\n{done.stdout}{done.stderr}")
        took.append(Took(command, _children() - before, time.monotonic() - start))
    return took


def _children() -> float:
    """Return the processor seconds of all ended children and their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_pictures(report: Path, folder: Path) -> None:
    """Write the report's first screen in windows of a desk, a tablet and a phone as small PNGs."""
    from PIL import Image  # where a wheel is tried, the tests' libraries are missing

    from tests.helpers import browser

    program = browser.installed()
    if program is None:
        raise SystemExit("--pictures needs Chromium on the path")
    with browser.Browser(program) as page:
        for width, height in WINDOWS.items():
            page.look(width, height)
            page.open(report)
            file = folder / f"report-{width}.png"
            page.picture(file, whole=False)
            with Image.open(file) as picture:
                small = picture.convert("RGB").quantize(256)
            small.save(file, optimize=True)


def lines_of(took: Sequence[Took], load: float) -> list[str]:
    """Return a table of the seconds, and the line below it."""
    rows = [["command", "processor seconds", "on the clock"]]
    for row in took:
        rows.append([f"`{row.command}`", f"{row.processor:.1f}", f"{row.clock:.1f}"])
    together = (sum(row.processor for row in took), sum(row.clock for row in took))
    rows.append(["together", *(f"{seconds:.1f}" for seconds in together)])
    note = f"{processors()}; load of the minute before it {load:.1f}, where 0 is an idle machine."
    return ["", *table_texts(rows, texts=None), "", note, ""]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--pictures", action="store_true", help="write pictures into docs")
    parser.add_argument("--fedproto", type=Path, help="the program; default: on the path")
    options = parser.parse_args(arguments)
    fedproto = options.fedproto or Path(shutil.which("fedproto") or "fedproto")
    page = PAGE.read_text(encoding="utf-8")
    settings, commands = block_of(page)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / PROGRAM).write_text(program_of(page), encoding="utf-8")
        subprocess.run([sys.executable, PROGRAM], cwd=folder, check=True)
        if options.pictures:
            measured(["fedproto demo"], fedproto.absolute(), folder)
            write_pictures(folder / "runs" / "demo" / "report.html", PAGE.parent)
            return
        (folder / "loads.toml").write_text(settings, encoding="utf-8")
        load = os.getloadavg()[0]
        took = measured(commands, fedproto.absolute(), folder)
        reports = [path for path in (folder / "runs").glob("*.html") if path.stat().st_size]
        if not reports:
            raise SystemExit("no report was made")
    print("\n".join(lines_of(took, load)))
    if (total := sum(row.processor for row in took)) > AIM:
        raise SystemExit(f"{total:.0f} processor seconds, above the aim of {AIM:.0f}")


if __name__ == "__main__":
    main()
