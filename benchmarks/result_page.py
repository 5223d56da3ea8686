"""A page of docs/results and the command that makes it, given the page's experiments.

An `Experiment` is a table; each row summarises runs that differ only in their seed. A run whose
folder holds a finished run is not repeated. Rows of the page whose runs are not here stay. A run
that was made with other settings than its row has now is refused. An experiment without a section
on the page is printed only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.machine import processors
from benchmarks.pages import (
    ROOT,
    RUN_NOTE,
    CannotMerge,
    Lines,
    data_root,
    has_section,
    merge,
    parse_provenance,
    parse_table,
    provenance,
    read_section,
    table_texts,
    write_section,
)
from fedproto_app.report.runs import Group, Run, read_run
from fedproto_app.settings import (
    defaults_of,
    flat_settings,
    settings_from,
    without_other_methods,
)
from fedproto_app.settings.reading import flat
from fedproto_app.tasks.metrics import UNKNOWN, percent_text

# No figure depends on these settings: a run may have been made with other values.
_IRRELEVANT = ("data.path", "seed", "device", "threads", "cohort-size", "encoder.path")
_VERSIONS = ("fedproto-app", "flwr", "torch")

Changes = Mapping[str, object]
Table = Callable[[Mapping[str, Group]], Lines]
Arrange = Callable[[Lines], Lines]


@dataclass(frozen=True)
class Job:
    """One run: its folder under the output folder, its file in configs/, changed settings.

    A string among the settings is passed to `--set` as it is; other values are written as TOML.
    """

    name: str
    config: str
    changes: Changes


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed: `<folder>-s<seed>` under the output folder.

    encoder: the row whose run of the same seed trains the encoder that these runs use.
    """

    folder: str
    changes: Changes
    encoder: Row | None = None

    def run_name(self, seed: int) -> str:
        return f"{self.folder}-s{seed}"

    def with_changes(self, changes: Changes) -> Row:
        encoder = self.encoder and self.encoder.with_changes(changes)
        return Row(self.folder, {**self.changes, **changes}, encoder)

    def job(self, experiment: Experiment, seed: int, output: Path) -> Job:
        paths: dict[str, object] = {}
        if experiment.data:
            paths["data.path"] = data_root() / experiment.data
        if self.encoder:
            paths["encoder.path"] = output / self.encoder.run_name(seed)
        changes = {"seed": seed, **paths, **self.changes}
        return Job(self.run_name(seed), experiment.config, changes)


def _unchanged(lines: Lines) -> Lines:
    return lines


@dataclass(frozen=True)
class Experiment:
    """A table.

    data: the file under `data_root()`, empty for embedded data. about: what the note below the
    table says about the runs. on_request: made only if it is named. keys: the number of cells
    that identify a row. arrange: orders and marks the rows, new and old, by their texts.
    """

    config: str
    data: str
    seeds: tuple[int, ...]
    rows: Mapping[str, Row]
    table: Table
    about: Callable[[Sequence[Run]], str]
    on_request: bool = False
    keys: int = 1
    arrange: Arrange = _unchanged

    @property
    def is_possible(self) -> bool:
        return not self.data or (data_root() / self.data).exists()

    def quick(self, changes: Changes) -> Experiment:
        """Return the same experiment with these settings and one seed."""
        rows = {name: row.with_changes(changes) for name, row in self.rows.items()}
        return replace(self, rows=rows, seeds=self.seeds[:1])

    def waves(self, seeds: Sequence[int], only: Sequence[str], output: Path) -> list[list[Job]]:
        """Return the runs, and after them the runs that use an encoder which the first train.

        only: rows to make, with the runs that they need; empty for all.
        """
        chosen = [row for key, row in self.rows.items() if not only or key in only]
        learners = [row.encoder for row in chosen if row.encoder]
        first = {row.folder: row for row in [*learners, *chosen] if not row.encoder}
        dependent = [row for row in chosen if row.encoder]
        return [
            [row.job(self, seed, output) for seed in seeds for row in wave]
            for wave in (list(first.values()), dependent)
        ]


@dataclass(frozen=True)
class Page:
    """A page and the module that writes it, `benchmarks.<…>`.

    folder: of its runs, under runs/. experiments: by their name on the command line and in the
    page's markers. quick: the settings of --quick, on top of the rows' settings.
    """

    file: str
    maker: str
    folder: str
    experiments: Mapping[str, Experiment]
    quick: Changes

    @property
    def path(self) -> Path:
        return ROOT / "docs" / "results" / self.file


# --- runs ---------------------------------------------------------------------------------------


def is_finished(job: Job, output: Path) -> bool:
    return (output / job.name / "summary.json").exists()


def run(job: Job, output: Path) -> None:
    """Make the job's run with `fedproto run`, unless it is finished.

    An interrupted run resumes from its checkpoint if its command and configuration are the same.
    """
    folder = output / job.name
    if is_finished(job, output):
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


def _run_missing(name: str, jobs: Sequence[Job], output: Path, parallel: int) -> None:
    """Make the runs that are not finished, several at a time; each is one node on one core."""
    missing = [job for job in jobs if not is_finished(job, output)]
    if missing:
        with Progress() as progress, ThreadPoolExecutor(parallel) as pool:
            task = progress.add_task(f"{name}, {len(missing)} runs", total=len(missing))
            for _ in pool.map(lambda job: run(job, output), missing):
                progress.advance(task)


def finished(experiment: Experiment, output: Path) -> dict[str, Group]:
    """Return the finished runs of each row that has some, whatever their seed.

    Raises `SystemExit` for a run that was made with other settings than its row has now.
    """
    groups = {}
    for name, row in experiment.rows.items():
        folders = [
            path.parent
            for path in (output / row.folder).parent.glob("*/summary.json")
            if path.parent.name.rpartition("-s")[0] == Path(row.folder).name
        ]
        runs = sorted((read_run(folder) for folder in folders), key=lambda run: run.summary["seed"])
        for summary_run in runs:
            _require_settings(summary_run, experiment.config, row)
        if runs:
            groups[name] = Group(tuple(replace(run, summary=flat(run.summary)) for run in runs))
    return groups


def _require_settings(run: Run, config: str, row: Row) -> None:
    text = (ROOT / "configs" / config).read_text(encoding="utf-8")
    row_settings = flat_settings(settings_from(flat(tomllib.loads(text)) | dict(row.changes)))
    # If a setting is newer than the run, the run behaved as today's default.
    actual = {**defaults_of(run.method), **without_other_methods(run.settings, run.method)}
    pairs = [
        (key, actual[key], value)
        for key, value in row_settings.items()
        if key not in _IRRELEVANT and not key.startswith(("output.", "nodes."))
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


# --- tables -------------------------------------------------------------------------------------


def section(
    name: str, experiment: Experiment, output: Path, old: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the text of an experiment's section, and titles of old rows that new rows did not
    replace. Both are empty without a finished run.

    old: the section on the page, whose other rows stay.

    Raises `CannotMerge` if the old section and the new rows do not fit.
    """
    groups = finished(experiment, output)
    if not groups:
        return [], []
    page, paragraph = parse_table(old)
    lines, stay = merge(page, experiment.table(groups), experiment.keys)
    runs = [run for group in groups.values() for run in group.runs]
    versions = {
        f"{package} {run.summary[f'versions.{package}']}"
        for run in runs
        for package in _VERSIONS
        if f"versions.{package}" in run.summary
    }
    summary = provenance([run.folder for run in runs], versions)
    summary = summary | (parse_provenance(paragraph) or summary)
    note = f"`{name}`, `configs/{experiment.config}`: {experiment.about(runs)}. {summary.text()}"
    return [*table_texts(experiment.arrange(lines)), "", note], stay


def spread_text(group: Group, figure: str, text: Callable[[float | None], str]) -> str:
    """Format the mean ± sample standard deviation over seeds."""
    spread = group.spread(figure)
    return text(spread.mean) if spread.std is None else f"{text(spread.mean)} ± {text(spread.std)}"


def percent(group: Group, figure: str) -> str:
    """Format the mean ± sample standard deviation over seeds, in percent."""
    return spread_text(group, figure, percent_text)


def number(group: Group, figure: str) -> str:
    """Format the mean over seeds."""
    mean = group.spread(figure).mean
    if mean is None:
        return UNKNOWN
    return f"{mean:,.0f}" if mean >= 100 or mean == round(mean) else f"{mean:.3g}"


# --- the command --------------------------------------------------------------------------------


def command(page: Page, description: str | None) -> None:
    """Run the script: make the missing runs, write their tables.

    Ends with an error that names the tables into which the new rows did not fit.
    """
    arguments = _arguments(page, description)
    folder = f"{page.folder}-quick" if arguments.quick else page.folder
    output = (arguments.output or ROOT / "runs" / folder).resolve()

    console = Console()
    refused = []
    for name in arguments.experiments:
        experiment = page.experiments[name]
        if arguments.quick:
            experiment = experiment.quick(page.quick)
        if not arguments.page_only:
            if not experiment.is_possible:
                console.print(f"skipped {name}: {data_root() / experiment.data} is missing")
                continue
            finished(experiment, output)  # before hours of work: do the runs belong to the rows?
            seeds = arguments.seeds or experiment.seeds
            for jobs in experiment.waves(seeds, arguments.only, output):
                _run_missing(name, jobs, output, arguments.parallel)
        is_shown = not arguments.quick and has_section(page.path, name, page.maker)
        merges = is_shown and not arguments.whole
        old = read_section(page.path, name, page.maker) if merges else []
        try:
            texts, stay = section(name, experiment, output, old)
        except CannotMerge as error:
            refused.append(f"{page.path.name}, {name}: {error}")
            is_shown = False
            texts, stay = section(name, experiment, output)
        shown = list(texts) or [f"{name}: no finished run in {output}"]
        if stay:
            shown.append(f"kept on the page, of more seeds or figures: {'; '.join(stay)}")
        console.print("\n".join(shown), markup=False, highlight=False, soft_wrap=True)
        if texts and is_shown:
            write_section(page.path, name, page.maker, texts)
    if refused:
        raise SystemExit("\n".join(["not written:", *refused]))


def _arguments(page: Page, description: str | None) -> argparse.Namespace:
    experiments = page.experiments
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(experiments))
    parser.add_argument("--output", type=Path, help=f"default: runs/{page.folder}")
    parser.add_argument("--parallel", type=int, default=max(1, (os.cpu_count() or 1)))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: each experiment's seeds")
    parser.add_argument("--only", default="", metavar="ROW,ROW", help="make only these rows")
    parser.add_argument("--quick", action="store_true", help="a small trial, not on the page")
    parser.add_argument("--page-only", action="store_true", help="make no run")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="replace tables by the rows whose runs are here: other rows of the page go",
    )
    arguments = parser.parse_args()
    for name in arguments.experiments:
        if name not in experiments:
            parser.error(f"unknown experiment {name!r}; known: {', '.join(experiments)}")
    arguments.experiments = arguments.experiments or [
        name for name in experiments if arguments.page_only or not experiments[name].on_request
    ]
    arguments.only = [row for row in arguments.only.split(",") if row]
    rows = {row for name in arguments.experiments for row in experiments[name].rows}
    for row in arguments.only:
        if row not in rows:
            parser.error(f"--only {row}: unknown row; known: {', '.join(sorted(rows))}")
    return arguments
