"""The runs behind the pages of docs/results: made several at a time, none twice, and written up.

A page's script names its runs as `Job`s, has them made, and writes each table between two markers
of its page; everything outside the markers is written by hand and stays.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.progress import Progress

from benchmarks.machine import processors

ROOT = Path(__file__).parents[1]
MADE = "made.json"  # beside a run's artefacts: the day and the machine that it was made on
Changes = Mapping[str, object]


@dataclass(frozen=True)
class Job:
    """One run: its folder under the output folder, its file in configs/, settings over the file's.

    A text among the settings stands as `--set` reads it; other values are TOML's.
    """

    name: str
    config: str
    changes: Changes


def data_root() -> Path:
    """Where the real data lies: FEDPROTO_DATA, by default a sibling of the repository."""
    return Path(os.environ.get("FEDPROTO_DATA", ROOT.parent / "shared" / "data"))


def is_finished(job: Job, output: Path) -> bool:
    return (output / job.name / "summary.json").exists()


def run(job: Job, output: Path) -> None:
    """`fedproto run` of the job, unless its folder is there and finished.

    One that was cut off goes on from its checkpoint, if it was asked for the same.
    """
    folder = output / job.name
    if is_finished(job, output):
        return
    begun, command = folder.with_name(f".{folder.name}.begun"), _command(job, folder)
    asked = "\n".join([*command, (ROOT / "configs" / job.config).read_text(encoding="utf-8")])
    same = begun.exists() and begun.read_text(encoding="utf-8") == asked
    if same and (folder / "checkpoint").exists():
        command = ["run", "--resume", str(folder), "--nodes", "1", "--quiet"]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        begun.write_text(asked, encoding="utf-8")
    fedproto = str(Path(sys.executable).with_name("fedproto"))
    done = subprocess.run([fedproto, *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{job.name} failed:\n{done.stderr}")
    begun.unlink()
    shutil.rmtree(folder / "state", ignore_errors=True)  # gigabytes over all runs
    made = {"date": date.today().isoformat(), "machine": processors()}
    (folder / MADE).write_text(json.dumps(made) + "\n", encoding="utf-8")


def _command(job: Job, folder: Path) -> list[str]:
    settings = {
        "output.dir": folder.parent,
        "output.name": folder.name,
        "output.pictures": False,
        **job.changes,
    }
    changes = [part for k, v in settings.items() for part in ("--set", f"{k}={_text(v)}")]
    config = str(ROOT / "configs" / job.config)
    return ["run", config, "--app", str(ROOT), "--nodes", "1", "--quiet", *changes]


def run_all(
    title: str, jobs: Sequence[Job], output: Path, parallel: int, progress: Progress
) -> None:
    """The jobs, several at a time: each is one node on one core."""
    task = progress.add_task(f"{title}, {len(jobs)} runs", total=len(jobs))
    with ThreadPoolExecutor(parallel) as pool:
        for _ in pool.map(lambda job: run(job, output), jobs):
            progress.advance(task)


def made_line(folders: Sequence[Path]) -> str:
    """The days and the machines that the runs were made on.

    A run without that note counts by the day of its summary, its machine is not told.
    """
    days, machines = set(), dict[str, None]()
    for folder in folders:
        if (folder / MADE).exists():
            made = json.loads((folder / MADE).read_text(encoding="utf-8"))
            days.add(made["date"])
            machines[made["machine"]] = None
        else:
            finished = (folder / "summary.json").stat().st_mtime
            days.add(date.fromtimestamp(finished).isoformat())
    span = " to ".join(sorted({min(days), max(days)}))
    return "; ".join([span, *machines])


def read_section(page: Path, name: str, maker: str) -> list[str]:
    """The lines of the page between the section's markers."""
    begin, end = _markers(name, maker)
    _, rest = page.read_text(encoding="utf-8").split(begin)
    return rest.split(end)[0].split("\n")[1:-1]


def write_section(page: Path, name: str, maker: str, lines: Sequence[str]) -> None:
    """Replace the part of the page between the section's markers; `maker`: what they name."""
    begin, end = _markers(name, maker)
    before, rest = page.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    page.write_text("\n".join([before + begin, *lines, end]) + after, encoding="utf-8")


def _markers(name: str, maker: str) -> tuple[str, str]:
    return f"<!-- {name}: written by {maker} -->", f"<!-- /{name} -->"


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | Path) else json.dumps(value)
