"""Make the runs of a table with `fedproto run`, and read those that are finished."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path

from rich.progress import Progress

from benchmarks.machine import processors
from benchmarks.pages import ROOT, RUN_NOTE
from benchmarks.results.declared import Job, Row, Table
from fedproto_app.report.runs import Group, Run, read_run
from fedproto_app.settings import defaults_of, flat_settings, settings_from, without_other_methods
from fedproto_app.settings.reading import flat

# No figure depends on these settings: a run may have been made with other values.
_IRRELEVANT = ("data.path", "seed", "device", "threads", "cohort-size", "encoder.path")


def run_missing(name: str, jobs: Sequence[Job], output: Path, parallel: int) -> None:
    """Make the runs that are not finished, several at a time. Each is one node on one core."""
    missing = [job for job in jobs if not _is_finished(job, output)]
    if missing:
        with Progress() as progress, ThreadPoolExecutor(parallel) as pool:
            task = progress.add_task(f"{name}, {len(missing)} runs", total=len(missing))
            for _ in pool.map(lambda job: run(job, output), missing):
                progress.advance(task)


def _is_finished(job: Job, output: Path) -> bool:
    return (output / job.name / "summary.json").exists()


def run(job: Job, output: Path) -> None:
    """Make the job's run with `fedproto run`, unless it is finished.

    An interrupted run resumes from its checkpoint if its command and configuration are the same.
    """
    folder = output / job.name
    if _is_finished(job, output):
        return
    started, command = folder.with_name(f".{folder.name}.begun"), _command(job, folder)
    text = "\n".join([*command, (ROOT / "configs" / job.config).read_text(encoding="utf-8")])
    is_same = started.exists() and started.read_text(encoding="utf-8") == text
    if is_same and (folder / "checkpoint").exists():
        command = ["run", "--resume", str(folder), "--nodes", "1", "--quiet"]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        started.write_text(text, encoding="utf-8")
    fedproto = str(Path(sys.executable).with_name("fedproto"))
    done = subprocess.run([fedproto, *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{job.name} failed:\n{done.stderr}")
    started.unlink()
    shutil.rmtree(folder / "state", ignore_errors=True)  # gigabytes over all runs
    note = {"date": date.today().isoformat(), "machine": processors()}
    (folder / RUN_NOTE).write_text(json.dumps(note) + "\n", encoding="utf-8")


def _command(job: Job, folder: Path) -> list[str]:
    settings = {
        "output.dir": folder.parent,
        "output.name": folder.name,
        "output.pictures": False,
        **job.changes,
    }
    changes = [part for k, v in settings.items() for part in ("--set", f"{k}={_setting(v)}")]
    config = str(ROOT / "configs" / job.config)
    return ["run", config, "--app", str(ROOT), "--nodes", "1", "--quiet", *changes]


def _setting(value: object) -> str:
    return str(value) if isinstance(value, str | Path) else json.dumps(value)


def finished(table: Table, output: Path) -> dict[str, Group]:
    """Return the finished runs of each row that has some, whatever their seed.

    Raises `SystemExit` for a run that was made with other settings than its row has now.
    """
    groups = {}
    for name, row in table.rows.items():
        folders = [
            path.parent
            for path in (output / row.folder).parent.glob("*/summary.json")
            if path.parent.name.rpartition("-s")[0] == Path(row.folder).name
        ]
        runs = sorted((read_run(folder) for folder in folders), key=lambda run: run.summary["seed"])
        for summary_run in runs:
            _require_settings(summary_run, table.config, row)
        if runs:
            groups[name] = Group(tuple(replace(run, summary=flat(run.summary)) for run in runs))
    return groups


def _require_settings(run: Run, config: str, row: Row) -> None:
    text = (ROOT / "configs" / config).read_text(encoding="utf-8")
    row_settings = flat_settings(settings_from(flat(tomllib.loads(text)) | dict(row.changes)))
    # If a setting is newer than the run, the run behaved as today's default.
    actual = {**defaults_of(run.method), **without_other_methods(run.settings, run.method)}
    no_matter = ["output.", "nodes."]
    if not str(row_settings["task"]).startswith("sequence"):
        no_matter.append("data.sequences.")
    pairs = [
        (key, actual[key], value)
        for key, value in row_settings.items()
        if key not in _IRRELEVANT and not key.startswith(tuple(no_matter))
    ]
    # The folder of the runs does not matter, but which run trained the encoder does.
    learner = row.encoder.run_name(run.summary["seed"]) if row.encoder else ""
    path = Path(str(run.settings.get("encoder.path", "")))
    pairs.append(("encoder.path", path.parts[-2:], Path(learner).parts))
    for key, run_value, value in pairs:
        if run_value != value:
            raise SystemExit(
                f"{run.folder}: made with {key} = {run_value!r}, which is {value!r} now; "
                "delete the folder to repeat the run"
            )
