"""The tables of docs/results/classification.md: methods on images in stages, with a long tail.

    python -m benchmarks.classification_results                      # all of it
    python -m benchmarks.classification_results digits --seeds 0 1 2
    python -m benchmarks.classification_results cifar10-if50 --only gldp,fedavg
    python -m benchmarks.classification_results --page-only          # from the runs that there are

Each row is a `fedproto run`; finished runs in the output folder are not repeated, so the command
can be interrupted; delete a run's folder to repeat it. A table tells of all finished runs of its
experiment, whichever call made them. A run there with other settings than its row now has is
refused. Test images choose nothing: between variants the errors on validation images choose.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks.result_runs import (
    ROOT,
    Changes,
    Job,
    data_root,
    is_finished,
    made_line,
    run_all,
    write_section,
)
from fedproto_app.report.runs import Group, Run, flat, read_run
from fedproto_app.report.task_report import UNKNOWN, percent_text

PAGE = ROOT / "docs" / "results" / "classification.md"
MAKER = "benchmarks.classification_results"
CIFAR10 = "cifar10_jpeg.zip"
# The rows of a table of methods; the second is what validation chose over the first.
METHODS: dict[str, Changes] = {
    "gldp": {"method": "gldp"},
    "gldp-shared": {"method": "gldp", "gldp.prototype-encoder": "shared"},
    **{name: {"method": name} for name in ("fedavg", "fedprox", "fedrep", "apfl", "solo")},
}

# What gldp is compared with in the ablation; the full method's row is that of cifar10-if50.
ABLATION: dict[str, Changes] = {
    "lambda-0": {"gldp.balance": 0.0},
    "lambda-1": {"gldp.balance": 1.0},
    "neither-loss": {"gldp.relations": False},
    "predictions": {"gldp.balance": 1.0, "gldp.local-relation": "prediction"},
}
# For --quick: small enough to see that everything works, too small for any figure to count.
QUICK: Changes = {
    "rounds": 2,
    "evaluate-every": 1,
    "local-epochs": 1,
    "gldp.encoder-epochs": 1,
    "gldp.head-epochs": 1,
    "fedrep.encoder-epochs": 1,
    "fedrep.head-epochs": 1,
    "data.partition.clients": 4,
    "data.partition.stages": 2,
}

# The paper's figures in percent. A_glo and A_loc: tables 2 and 3, CIFAR-10 [20, 4, 5].
INFERENCES = {
    "local-prototypes": "local prototypes",
    "global-prototypes": "global prototypes",
    "head": "head",
}
PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "cifar10-if50": {
        "local-prototypes": (65.36, 65.36),
        "global-prototypes": (65.22, 65.22),
        "fedavg": (59.94, 38.77),
        "fedprox": (59.23, 38.80),
        "fedrep": (62.68, 60.97),
        "apfl": (60.32, 36.02),
    },
    "cifar10-if100": {
        "local-prototypes": (71.32, 71.32),
        "global-prototypes": (71.19, 71.19),
        "fedavg": (64.33, 39.26),
        "fedprox": (62.60, 40.52),
        "fedrep": (66.91, 65.27),
        "apfl": (65.11, 37.94),
    },
}
# A_glo and A_sel: table 4, CIFAR-10.
PAPER_ABLATION = {
    "gldp": (65.22, 64.61),
    "lambda-0": (65.09, 63.47),
    "lambda-1": (61.56, 60.52),
    "neither-loss": (62.68, 41.78),
}
ABLATION_TITLES = {
    "gldp": "gldp",
    "lambda-0": "λ = 0: without L_LP",
    "lambda-1": "λ = 1: without L_GP",
    "neither-loss": "neither L_LP nor L_GP",
    "predictions": "λ = 1, L_LP between predictions (eq. 8)",
}

# Settings that no figure depends on: a run may have been made with others.
_OF_NO_MATTER = ("data.path", "seed", "device", "threads", "cohort-size")
_PERCENT_POINT = 0.01
_MEGABYTE = 1e6

Table = Callable[[Mapping[str, Group]], list[str]]


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed alone: in `folder`, `<folder>-s<seed>` under the output."""

    folder: str
    changes: Changes

    def job(self, config: str, seed: int) -> Job:
        return Job(f"{self.folder}-s{seed}", config, {"seed": seed, **self.changes})


@dataclass(frozen=True)
class Experiment:
    """A table of the page.

    data: the file under `data_root()`, empty for the app's own.
    """

    config: str
    data: str
    seeds: tuple[int, ...]
    rows: Mapping[str, Row]
    table: Table

    @property
    def is_possible(self) -> bool:
        return not self.data or (data_root() / self.data).exists()


def experiments(quick: bool) -> dict[str, Experiment]:
    """All tables, by the name that the command line and the page's markers call them."""

    def rows(folder: str, variants: Mapping[str, Changes], common: Changes) -> dict[str, Row]:
        last = QUICK if quick else {}
        return {
            name: Row(f"{folder}/{name}", {**common, **changes, **last})
            for name, changes in variants.items()
        }

    def cifar10(imbalance: float) -> Changes:
        return {"data.path": data_root() / CIFAR10, "data.partition.imbalance-factor": imbalance}

    if50, if100 = (
        rows(f"cifar10-if{factor}", METHODS, cifar10(float(factor))) for factor in (50, 100)
    )
    uniform = rows(
        "cifar10-if50-uniform",
        METHODS,
        {**cifar10(50.0), "data.partition.class-draw": "uniform"},
    )
    without = {name: {**METHODS["gldp"], **changes} for name, changes in ABLATION.items()}
    ablation = {"gldp": if50["gldp"], **rows("ablation", without, cifar10(50.0))}
    digits = rows("digits", METHODS, {})

    def beside(name: str) -> Table:
        return lambda groups: methods_table(groups, PAPER[name])

    def of_cifar10(rows: Mapping[str, Row], table: Table) -> Experiment:
        return Experiment("gldp-cifar10.toml", CIFAR10, (0,), rows, table)

    return {
        "digits": Experiment("gldp-digits.toml", "", (0, 1, 2), digits, methods_table),
        "cifar10-if50": of_cifar10(if50, beside("cifar10-if50")),
        "cifar10-if100": of_cifar10(if100, beside("cifar10-if100")),
        "cifar10-if50-uniform": of_cifar10(uniform, beside("cifar10-if50")),
        "ablation": of_cifar10(ablation, ablation_table),
    }


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
    wanted = flat(tomllib.loads(text)) | dict(row.changes)
    for key, value in wanted.items():
        if key in _OF_NO_MATTER or key.startswith(("output.", "nodes.")):
            continue
        if run.settings.get(key) != value:
            raise SystemExit(
                f"{run.folder}: made with {key} = {run.settings.get(key)!r}, which is {value!r} "
                "now; delete the folder to repeat the run"
            )


def methods_table(
    groups: Mapping[str, Group], paper: Mapping[str, tuple[float, float]] | None = None
) -> list[str]:
    """One row a method, for gldp one an inference; beside the paper's figures where given."""
    beside = ["paper's A_glo", "paper's A_loc"] if paper else []
    lines = [
        [
            *("method", "A_glo", "A_loc", *beside, "A_sel", "forgetting, own", "averaged"),
            *("many", "medium", "few", "validation error, own", "averaged"),
            *("values up", "MB up", "seconds", "seeds"),
        ]
    ]
    for name, group in groups.items():
        costs = [
            _number(group, "parameters_up_per_client_round"),
            _number(group, "bytes_up", _MEGABYTE),
            _number(group, "seconds"),
            str(len(group.runs)),
        ]
        rest = [
            _percent(group, figure)
            for figure in (
                *("accuracy_selected", "forgetting_local", "forgetting_global"),
                *("many_local", "medium_local", "few_local"),
            )
        ]
        rest += _validation_errors(group)

        if not name.startswith("gldp"):
            scores = [_percent(group, f"accuracy_{model}") for model in ("global", "local")]
            lines.append([name, *scores, *_papers(paper, name), *rest, *costs])
            continue
        chosen = str(group.runs[0].settings["gldp.inference"])
        for inference, title in INFERENCES.items():
            scores = [
                _percent(group, f"by_inference.{inference}.{model}")
                for model in ("global", "local")
            ]
            # Only of the chosen inference are there more figures than these.
            more = rest if inference == chosen else [UNKNOWN] * len(rest)
            lines.append([f"{name}, {title}", *scores, *_papers(paper, inference), *more, *costs])
    return _markdown(lines)


def _validation_errors(group: Group) -> list[str]:
    """Of own and of averaged models; a method that averages nothing has own models alone."""
    own, averaged = "validation_error_local", "validation_error"
    if group.spread(own).mean is None:
        own, averaged = averaged, own
    return [_percent(group, own), _percent(group, averaged)]


def ablation_table(groups: Mapping[str, Group]) -> list[str]:
    """One row a variant of gldp, beside the paper's.

    A_glo stands there by global prototypes as well: by its table 2 that is what table 4 tells.
    """
    head = ["variant", "A_glo", "A_glo, global prototypes", "A_sel", "paper's A_glo"]
    more = ["forgetting, own", "averaged", "validation error, own", "averaged", "seeds"]
    lines = [[*head, "paper's A_sel", *more]]
    for name, group in groups.items():
        by_global = "by_inference.global-prototypes.global"
        figures = ("accuracy_global", by_global, "accuracy_selected")
        scores = [_percent(group, figure) for figure in figures]
        lost = [_percent(group, f"forgetting_{model}") for model in ("local", "global")]
        papers = _papers(PAPER_ABLATION, name)
        rest = [*lost, *_validation_errors(group), str(len(group.runs))]
        lines.append([ABLATION_TITLES[name], *scores, *papers, *rest])
    return _markdown(lines)


def footnote(name: str, experiment: Experiment, groups: Mapping[str, Group]) -> str:
    """What the table was made with, by the artefacts of its runs."""
    runs = [run for group in groups.values() for run in group.runs]
    settings, summary = runs[0].settings, runs[0].summary
    seeds = sorted({run.summary["seed"] for run in runs})
    versions = {
        ", ".join(f"{k.removeprefix('versions.')} {run.summary[k]}" for k in _version_keys(run))
        for run in runs
    }
    devices = sorted({str(run.settings["device"]) for run in runs})
    seconds = sum(run.summary["seconds"] for run in runs)
    classes, stages, imbalance = (
        settings[f"data.partition.{key}"] for key in ("classes", "stages", "imbalance-factor")
    )
    return " ".join(
        [
            f"`python -m {MAKER} {name} --seeds {' '.join(map(str, seeds))}`, "
            f"`configs/{experiment.config}`. Data: {experiment.data or settings['data.source']}, "
            f"[N, S, M] = [{summary['clients']}, {classes}, {stages}], IF {imbalance:g}; "
            f"{summary['rounds']} rounds.",
            f"{'; '.join(sorted(versions))}. {len(runs)} runs, {seconds / 60:.0f} minutes of one "
            f"node on {', '.join(devices)}; {made_line([run.folder for run in runs])}.",
        ]
    )


def section(name: str, experiment: Experiment, output: Path) -> list[str]:
    """The experiment's part of the page; empty without a finished run."""
    groups = finished(experiment, output)
    if not groups:
        return []
    return [*experiment.table(groups), "", footnote(name, experiment, groups)]


def _version_keys(run: Run) -> list[str]:
    return [key for key in run.summary if key.startswith("versions.")]


def _percent(group: Group, figure: str) -> str:
    """Mean ± sample standard deviation over seeds, in percent."""
    spread = group.spread(figure)
    if spread.std is None:
        return percent_text(spread.mean)
    return f"{percent_text(spread.mean)} ± {percent_text(spread.std)}"


def _number(group: Group, figure: str, unit: float = 1.0) -> str:
    mean = group.spread(figure).mean
    if mean is None:
        return UNKNOWN
    value = mean / unit
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def _papers(paper: Mapping[str, tuple[float, float]] | None, name: str) -> list[str]:
    if paper is None:
        return []
    known = paper.get(name)
    return [UNKNOWN] * 2 if known is None else [percent_text(f * _PERCENT_POINT) for f in known]


def _markdown(lines: Sequence[Sequence[str]]) -> list[str]:
    head, *rows = lines
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(line)} |" for line in (head, rule, *rows)]


def main() -> None:
    known = experiments(quick=False)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(known))
    parser.add_argument("--output", type=Path, help="default: runs/results-classification")
    parser.add_argument("--parallel", type=int, default=max(1, (os.cpu_count() or 1)))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2 for digits, else 0")
    parser.add_argument("--only", default="", metavar="ROW,ROW", help="run these rows alone")
    parser.add_argument("--quick", action="store_true", help="a try-out, not on the page")
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if arguments.quick:
        known = experiments(quick=True)
    chosen = {name: known[name] for name in arguments.experiments or known if name in known}
    for name in arguments.experiments:
        if name not in known:
            parser.error(f"unknown experiment {name!r}; known: {', '.join(known)}")
    only = [name for name in arguments.only.split(",") if name]
    rows = {row for experiment in chosen.values() for row in experiment.rows}
    for row in only:
        if row not in rows:
            parser.error(f"--only {row}: unknown row; known: {', '.join(sorted(rows))}")
    folder = "results-classification-quick" if arguments.quick else "results-classification"
    output = (arguments.output or ROOT / "runs" / folder).resolve()

    console = Console()
    for name, experiment in chosen.items():
        if not arguments.page_only:
            if not experiment.is_possible:
                console.print(f"skipped {name}: {data_root() / experiment.data} is not there")
                continue
            finished(experiment, output)  # before hours of work: are the runs there of these rows?
            _make(name, experiment, only, arguments, output, console)
        lines = section(name, experiment, output)
        said = "\n".join(lines or [f"{name}: no finished run in {output}"])
        console.print(said, markup=False, highlight=False, soft_wrap=True)
        if lines and not arguments.quick:
            write_section(PAGE, name, MAKER, lines)


def _make(
    name: str,
    experiment: Experiment,
    only: Sequence[str],
    arguments: Any,
    output: Path,
    console: Console,
) -> None:
    """The runs of the experiment that are not there yet."""
    jobs = [
        row.job(experiment.config, seed)
        for seed in arguments.seeds or experiment.seeds
        for key, row in experiment.rows.items()
        if not only or key in only
    ]
    jobs = [job for job in jobs if not is_finished(job, output)]
    if jobs:
        with Progress(*Progress.get_default_columns(), console=console) as progress:
            run_all(name, jobs, output, arguments.parallel, progress)


if __name__ == "__main__":
    main()
