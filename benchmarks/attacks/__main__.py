"""The tables of docs/robust.md and docs/attacks: errors under attack, by method, attack and rule.

    python -m benchmarks.attacks [STUDY …] [--page]

Ten clients of an embedded data set, each on a node, in this process or in several. Some lie about
their trained arrays (`lies.py`) or train on poisoned data (`poisoned.py`). They know the model that
they received and what the first client sent. The figure is the mean over the honest clients, with
their models after the last round. In `declared.py` a node lies about its samples, in `joint.py` it
sends the worst sums that pass, and in `masked.py` it lies in a masked sum. `honest.py` shows what
the limits that stop the first cost honest clients, on real data where they are. A quarter of an
hour on two cores, and three quarters of an hour for the last.
"""

from __future__ import annotations

import csv
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from benchmarks.attacks import declared, honest, joint, masked, sizes
from benchmarks.attacks.studies import HONEST, STUDIES, Study
from benchmarks.attacks.trial import HOSTILE, Attack, Trial, figures_of, honest_mean
from benchmarks.machine import machine_line
from benchmarks.pages import ROOT, table_texts, write_section
from benchmarks.parts import parser_of, require_names

# Studies of a module each: its jobs, the function of a job, and the rest of the module.
MODULES: Mapping[str, tuple[Callable[[], Iterable[Any]], Callable[[Any], Any], ModuleType]] = {
    "declared": (declared.trials, declared.error_of, declared),
    "joint": (joint.trials, joint.error_of, joint),
    "masked": (masked.trials, masked.error_of, masked),
    "honest": (honest.jobs, honest.cost_of, honest),
}
SIZES, MASKED = "sizes", "masked"

PAGE, FILES = ROOT / "docs" / "robust.md", ROOT / "docs" / "attacks"

Figures = Mapping[Trial, Mapping[int, float]]
Job = TypeVar("Job")
Result = TypeVar("Result")


def main() -> None:
    parser = parser_of(__doc__)
    names = [*STUDIES, SIZES, *MODULES]
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(names)}")
    parser.add_argument("--page", action="store_true", help="write docs/robust.md and docs/attacks")
    arguments = parser.parse_args()
    require_names(parser, arguments.studies, names, "study")
    console = Console()
    for name in names:
        if name in (arguments.studies or names):
            lines = _lines_of(name, console)
            console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
            if arguments.page and name == MASKED:
                write_section(PAGE, f"attacks-{name}", "benchmarks.attacks", lines)
            elif arguments.page:  # the other studies are files beside the page
                write_csv(name, lines)


def write_csv(name: str, lines: Sequence[str]) -> None:
    """Write a study's table beside the page, with the line on how it was made as a comment."""
    *_, note = lines
    rows = [line[2:-2].replace("*", "").replace("`", "").split(" | ") for line in lines]
    cells, title = [row for line, row in zip(lines, rows, strict=True) if line[0:1] == "|"], ""
    FILES.mkdir(exist_ok=True)
    with (FILES / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {note}\n")
        writer = csv.writer(file, lineterminator="\n")
        for row in (cells[0], *cells[2:]):  # without the rule below the titles
            title = row[0] or title
            writer.writerow([title, *row[1:]])


def _lines_of(name: str, console: Console) -> list[str]:
    """Compute a study, and return its table and the line below it."""
    compute = partial(_computed, title=name, console=console)
    origin = {"command": f"`python -m benchmarks.attacks {name} --page`", "machine": machine_line()}
    if name in MODULES:
        jobs, result_of, module = MODULES[name]
        return [*module.table(compute(result_of, list(jobs()))), "", module.NOTE.format(**origin)]
    if name == SIZES:
        return [*sizes.table(), "", sizes.NOTE.format(**origin)]
    study = STUDIES[name]
    lines = table(study, compute(figures_of, list(study.trials())))
    kind = "accuracy, higher is better" if study.higher else "MSE, lower is better"
    rounds = study.settings["rounds"]
    note = f"{origin['command']}: `{study.settings['method']}`, test {kind}, {rounds} "
    note += f"round{'s' if rounds > 1 else ''}, {origin['machine']}."
    return [*lines, "", note]


def _computed(
    compute: Callable[[Job], Result], jobs: Sequence[Job], title: str, console: Console
) -> dict[Job, Result]:
    """Return each job's result, computed in as many processes as there are cores."""
    with ProcessPoolExecutor(os.cpu_count(), initializer=_quiet) as pool:
        done = track(pool.map(compute, jobs), title, total=len(jobs), console=console)
        return dict(zip(jobs, done, strict=True))


def _quiet() -> None:
    logging.disable(logging.WARNING)


def table(study: Study, figures: Figures) -> list[str]:
    """Return a line for each attack and share of hostile clients, with its best rule in bold."""
    rules = [f"`{rule}`" for rule in study.rules]
    lines = [["attack", "hostile", *rules]]
    for attack in (HONEST, *study.attacks):
        title = "none: same clients" if attack is HONEST else attack.says
        for hostile in HOSTILE if attack is HONEST else HOSTILE[1:]:
            cells = [_cell(study, figures, attack, rule, hostile) for rule in study.rules]
            lines.append([title, f"{10 * hostile}%", *cells])
            title = ""
    return table_texts(lines)


def _cell(study: Study, figures: Figures, attack: Attack, rule: str, hostile: int) -> str:
    def figure(rule_name: str) -> float:
        liars = 0 if attack is HONEST else hostile
        return honest_mean(figures[study.trial(rule_name, attack, liars)], hostile)

    if math.isnan(figure(rule)):
        return "stopped"
    return _marked(figure(rule), [figure(name) for name in study.rules], study.higher)


def _marked(value: float, figures: Sequence[float], higher: bool) -> str:
    finite = [figure for figure in figures if not math.isnan(figure)]
    best = max(finite) if higher else min(finite)
    return f"**{value:.3g}**" if value == best and len(figures) > 1 else f"{value:.3g}"


if __name__ == "__main__":
    main()
