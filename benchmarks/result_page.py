"""A page of docs/results and the command that makes it, given the page's experiments.

An `Experiment` is a table; its rows are runs that differ in their seed alone. Finished runs in the
output folder are not repeated, and a table tells of all that there are, whichever call made them.
Lines of the page whose runs are not there stay (`benchmarks.page_tables`). A run there with other
settings than its row now has is refused.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress

from benchmarks.page_tables import CannotMerge, Lines, Section, footnotes, merge, parse, titles
from benchmarks.result_runs import (
    ROOT,
    Changes,
    Job,
    data_root,
    is_finished,
    made_line,
    read_section,
    run_all,
    write_section,
)
from fedproto_app.report.runs import Group, Run, flat, read_run
from fedproto_app.report.task_report import UNKNOWN, percent_text
from fedproto_app.settings import (
    defaults_of,
    flat_settings,
    settings_from,
    without_other_methods,
)

# Settings that no figure depends on: a run may have been made with others.
_OF_NO_MATTER = ("data.path", "seed", "device", "threads", "cohort-size", "encoder.path")
_MEGABYTE = 1e6

Table = Callable[[Mapping[str, Group]], Lines]
Arrange = Callable[[Lines], Lines]


def _as_made(lines: Lines) -> Lines:
    return lines


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed alone: in `folder`, `<folder>-s<seed>` under the output.

    encoder: the row whose run of the same seed learns the encoder that these take.
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


@dataclass(frozen=True)
class Experiment:
    """A table of the page.

    data: the file under `data_root()`, empty for the app's own. about: what the footnote says of
    the data and the rounds, by the table's runs. on_request: made only if it is named. keys: the
    cells by which a line is known. arrange: orders and marks the lines, of this and of earlier
    runs, by their texts.
    """

    config: str
    data: str
    seeds: tuple[int, ...]
    rows: Mapping[str, Row]
    table: Table
    about: Callable[[Sequence[Run]], str]
    on_request: bool = False
    keys: int = 1
    arrange: Arrange = _as_made

    @property
    def is_possible(self) -> bool:
        return not self.data or (data_root() / self.data).exists()

    def quick(self, changes: Changes) -> Experiment:
        """The same with these settings, and one seed."""
        rows = {name: row.with_changes(changes) for name, row in self.rows.items()}
        return replace(self, rows=rows, seeds=self.seeds[:1])

    def waves(self, seeds: Sequence[int], only: Sequence[str], output: Path) -> list[list[Job]]:
        """The runs, and after them those that take an encoder which one of the first learns.

        only: rows, with what they need; empty for all.
        """
        chosen = [row for key, row in self.rows.items() if not only or key in only]
        learners = [row.encoder for row in chosen if row.encoder]
        first = {row.folder: row for row in [*learners, *chosen] if not row.encoder}
        then = [row for row in chosen if row.encoder]
        return [
            [row.job(self, seed, output) for seed in seeds for row in wave]
            for wave in (list(first.values()), then)
        ]


@dataclass(frozen=True)
class Page:
    """A page and its script's module, `benchmarks.<…>`.

    folder: of its runs, under runs/. experiments: all tables by the name that the command line and
    the page's markers call them. quick: what --quick sets, over what rows say.
    """

    file: str
    maker: str
    folder: str
    experiments: Mapping[str, Experiment]
    quick: Changes

    @property
    def path(self) -> Path:
        return ROOT / "docs" / "results" / self.file


def finished(experiment: Experiment, output: Path) -> dict[str, Group]:
    """The finished runs of each row that has some, whatever their seed.

    Raises `SystemExit` for a run that was made with other settings than its row has now.
    """
    groups = {}
    for name, row in experiment.rows.items():
        found = [
            path.parent for path in (output / row.folder).parent.glob("*/summary.json")
            if path.parent.name.rpartition("-s")[0] == Path(row.folder).name
        ]  # fmt: skip
        runs = sorted((read_run(folder) for folder in found), key=lambda run: run.summary["seed"])
        for run in runs:
            _require_settings(run, experiment.config, row)
        if runs:
            groups[name] = Group(tuple(replace(run, summary=flat(run.summary)) for run in runs))
    return groups


def _require_settings(run: Run, config: str, row: Row) -> None:
    text = (ROOT / "configs" / config).read_text(encoding="utf-8")
    wanted = flat_settings(settings_from(flat(tomllib.loads(text)) | dict(row.changes)))
    # A setting that is younger than the run: what it then did is the default now.
    found = {**defaults_of(run.method), **without_other_methods(run.settings, run.method)}
    pairs = [
        (key, found[key], value)
        for key, value in wanted.items()
        if key not in _OF_NO_MATTER and not key.startswith(("output.", "nodes."))
    ]
    # Where the runs lie does not matter, whose encoder it is does.
    learner = row.encoder.run_name(run.summary["seed"]) if row.encoder else ""
    path = Path(str(run.settings.get("encoder.path", "")))
    pairs.append(("encoder.path", path.parts[-2:], Path(learner).parts))
    for key, made, value in pairs:
        if made != value:
            raise SystemExit(
                f"{run.folder}: made with {key} = {made!r}, which is {value!r} now; delete the "
                "folder to repeat the run"
            )


class Part(NamedTuple):
    """An experiment's part of the page.

    texts: its lines of text, empty without a finished run. kept: what to say of the page's lines
    that stay though there are runs of them here.
    """

    texts: list[str]
    kept: list[str]


def section(
    page: Page, name: str, experiment: Experiment, output: Path, old: Sequence[str] | None = None
) -> Part:
    """The experiment's part of the page by its finished runs.

    old: the part as it stands, whose other lines stay; None for the runs alone. The new footnote
    is of the runs behind the lines that are put onto the page.

    Raises `benchmarks.page_tables.CannotMerge` if the old part and the new lines do not fit.
    """
    groups = finished(experiment, output)
    if not groups:
        return Part([], [])
    table = experiment.table(groups)
    if old is None:
        note = _footnote(page, name, experiment, groups)
        return Part(Section(experiment.arrange(table), [note]).texts(), [])
    before = parse(old)
    merged = merge(before.lines, table, experiment.keys)
    stay = {
        "of more seeds": merged.of_more_seeds,
        "with figures that the runs here do not tell": merged.of_more_figures,
    }
    kept = [f"kept on the page, {why}: {'; '.join(of)}" for why, of in stay.items() if of]
    if not merged.made:
        return Part(list(old), kept)
    behind = _behind(experiment, groups, {*merged.of_more_seeds, *merged.of_more_figures})
    lines = experiment.arrange(merged.lines)
    note = _footnote(page, name, experiment, behind)
    notes = footnotes(before.paragraphs, note, lines, merged.made, experiment.keys)
    return Part(Section(lines, notes).texts(), kept)


def _behind(
    experiment: Experiment, groups: Mapping[str, Group], kept: set[str]
) -> Mapping[str, Group]:
    """The groups but those whose line was kept; all if no other is left.

    A group's line is the first one of its table without the other groups. One that only adds
    figures to another's line has none.
    """
    if not kept:
        return groups
    others = {
        name: group
        for name, group in groups.items()
        if kept.isdisjoint(titles(experiment.table({name: group}), experiment.keys)[:1])
    }
    return others or groups


def _footnote(page: Page, name: str, experiment: Experiment, groups: Mapping[str, Group]) -> str:
    """What lines of the table were made with, by the artefacts of their runs."""
    runs = [run for group in groups.values() for run in group.runs]
    seeds = sorted({run.summary["seed"] for run in runs})
    versions = {
        ", ".join(f"{k.removeprefix('versions.')} {run.summary[k]}" for k in _version_keys(run))
        for run in runs
    }
    devices = sorted({str(run.settings["device"]) for run in runs})
    seconds = sum(run.summary["seconds"] for run in runs)
    data = experiment.data or runs[0].settings["data.source"]
    return " ".join(
        [
            f"`python -m {page.maker} {name} --seeds {' '.join(map(str, seeds))}`, "
            f"`configs/{experiment.config}`. Data: {data}, {experiment.about(runs)}.",
            f"{'; '.join(sorted(versions))}. {len(runs)} runs, {seconds / 60:.0f} minutes of one "
            f"node on {', '.join(devices)}; {made_line([run.folder for run in runs])}.",
        ]
    )


def _version_keys(run: Run) -> list[str]:
    return [key for key in run.summary if key.startswith("versions.")]


def spread_text(group: Group, figure: str, text: Callable[[float | None], str]) -> str:
    """Mean ± sample standard deviation over seeds."""
    spread = group.spread(figure)
    return text(spread.mean) if spread.std is None else f"{text(spread.mean)} ± {text(spread.std)}"


def percent(group: Group, figure: str) -> str:
    """Mean ± sample standard deviation over seeds, in percent."""
    return spread_text(group, figure, percent_text)


def number(group: Group, figure: str, unit: float = 1.0) -> str:
    """The mean over seeds, in this unit."""
    mean = group.spread(figure).mean
    if mean is None:
        return UNKNOWN
    value = mean / unit
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def costs(group: Group) -> dict[str, str]:
    """The last columns of a table."""
    return {
        "values up": number(group, "parameters_up_per_client_round"),
        "MB up": number(group, "bytes_up", _MEGABYTE),
        "seconds": number(group, "seconds"),
        "seeds": str(len(group.runs)),
    }


def command(page: Page, description: str | None) -> None:
    """The script's command line: make the runs that are not there yet, write their tables.

    Ends with an error that names the tables into which the new lines could not be put.
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
                console.print(f"skipped {name}: {data_root() / experiment.data} is not there")
                continue
            finished(experiment, output)  # before hours of work: are the runs there of these rows?
            seeds = arguments.seeds or experiment.seeds
            for jobs in experiment.waves(seeds, arguments.only, output):
                _make(name, jobs, output, arguments.parallel, console)
        alone = arguments.quick or arguments.whole
        old = None if alone else read_section(page.path, name, page.maker)
        fits = True
        try:
            part = section(page, name, experiment, output, old)
        except CannotMerge as unlike:
            refused.append(f"{page.path.name}, {name}: {unlike}")
            part, fits = section(page, name, experiment, output), False
        said = part.texts or [f"{name}: no finished run in {output}"]
        told = "\n".join([*said, *part.kept])
        console.print(told, markup=False, highlight=False, soft_wrap=True)
        if part.texts and fits and not arguments.quick:
            write_section(page.path, name, page.maker, part.texts)
    if refused:
        raise SystemExit("\n".join(["not written:", *refused]))


def _arguments(page: Page, description: str | None) -> argparse.Namespace:
    """The command line's; `experiments` is what it means if it names none."""
    known = page.experiments
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(known))
    parser.add_argument("--output", type=Path, help=f"default: runs/{page.folder}")
    parser.add_argument("--parallel", type=int, default=max(1, (os.cpu_count() or 1)))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: each experiment's own")
    parser.add_argument("--only", default="", metavar="ROW,ROW", help="run these rows alone")
    parser.add_argument("--quick", action="store_true", help="a try-out, not on the page")
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="write tables of the runs that are here alone: the page's other lines go",
    )
    arguments = parser.parse_args()
    for name in arguments.experiments:
        if name not in known:
            parser.error(f"unknown experiment {name!r}; known: {', '.join(known)}")
    arguments.experiments = arguments.experiments or [
        name for name in known if arguments.page_only or not known[name].on_request
    ]
    arguments.only = [row for row in arguments.only.split(",") if row]
    rows = {row for name in arguments.experiments for row in known[name].rows}
    for row in arguments.only:
        if row not in rows:
            parser.error(f"--only {row}: unknown row; known: {', '.join(sorted(rows))}")
    return arguments


def _make(name: str, jobs: Sequence[Job], output: Path, parallel: int, console: Console) -> None:
    """The runs that are not there yet."""
    missing = [job for job in jobs if not is_finished(job, output)]
    if missing:
        with Progress(*Progress.get_default_columns(), console=console) as progress:
            run_all(name, missing, output, parallel, progress)
