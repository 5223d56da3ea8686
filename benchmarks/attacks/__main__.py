"""The tables of docs/robust.md: errors under attack, by method, attack and rule.

    python -m benchmarks.attacks [STUDY …] [--page]

Ten clients of an embedded data set, each on a node, in this process or in several. Some lie about
their trained arrays (`lies.py`) or train on poisoned data (`poisoned.py`); they know the model that
they received and what the first client sent. The figure is the mean over the honest clients, with
their models after the last round. In `declared.py` a node lies about its samples. Twelve minutes on
two cores.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from rich.console import Console
from rich.progress import track

from benchmarks.attacks import declared, sizes
from benchmarks.attacks.studies import NOTHING, STUDIES, Study
from benchmarks.attacks.trial import HOSTILE, Attack, Trial, figures_of, honest_mean
from benchmarks.machine import machine_line
from benchmarks.pages import ROOT, write_section

DECLARED = "declared"  # the study of `declared.py`

Figures = Mapping[Trial, Mapping[int, float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [*(study.name for study in STUDIES), DECLARED]
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(names)}")
    parser.add_argument("--page", action="store_true", help="write the tables to docs/robust.md")
    arguments = parser.parse_args()
    if unknown := set(arguments.studies) - set(names):
        parser.error(f"no study {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    console = Console()
    for study in STUDIES:
        if study.name in (arguments.studies or names):
            lines = [*table(study, _figures(study, console)), "", _footnote(study)]
            console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
            if arguments.page:
                section = f"attacks-{study.name}"
                write_section(ROOT / "docs" / "robust.md", section, "benchmarks.attacks", lines)
    if DECLARED in (arguments.studies or names):
        lines = [*declared.table(_errors(console)), "", _declared_footnote(), "", *sizes.table()]
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
        if arguments.page:
            page, section = ROOT / "docs" / "robust.md", f"attacks-{DECLARED}"
            write_section(page, section, "benchmarks.attacks", lines)


def _errors(console: Console) -> Mapping[declared.Trial, float | None]:
    trials = list(declared.trials())
    with ProcessPoolExecutor(os.cpu_count(), initializer=_quiet) as pool:
        done = pool.map(declared.error_of, trials)
        return dict(
            zip(trials, track(done, DECLARED, total=len(trials), console=console), strict=True)
        )


def _declared_footnote() -> str:
    return (
        "One node of three declares 10⁹ samples for each client. It sends −5 in place of every "
        "value (sums: of opposite targets, times 10⁶), or its honest step reversed, as long as it "
        "may be (sums: of as many samples as it may claim). "
        f"`python -m benchmarks.attacks {DECLARED} --page`: mean error of the honest clients, "
        f"5 rounds on series, 4 on images; {machine_line()}. Below, the share of honest clients "
        "that the first limit cuts, and of samples, over random draws."
    )


def _figures(study: Study, console: Console) -> Figures:
    trials = list(study.trials())
    with ProcessPoolExecutor(os.cpu_count(), initializer=_quiet) as pool:
        done = pool.map(figures_of, trials)
        shown = track(done, study.name, total=len(trials), console=console)
        return dict(zip(trials, shown, strict=True))


def _quiet() -> None:
    logging.disable(logging.WARNING)


def table(study: Study, figures: Figures) -> list[str]:
    """Return a line for each attack and share of hostile clients; a line's best rule is bold."""
    rules = [f"`{rule}`" for rule in study.rules]
    lines = [["attack", "hostile", *rules], ["---", "---:", *["---:"] * len(rules)]]
    for attack in (NOTHING, *study.attacks):
        title = "none: same clients" if attack is NOTHING else attack.says
        for hostile in HOSTILE if attack is NOTHING else HOSTILE[1:]:
            cells = [_cell(study, figures, attack, rule, hostile) for rule in study.rules]
            lines.append([title, f"{10 * hostile}%", *cells])
            title = ""
    return [f"| {' | '.join(line)} |" for line in lines]


def _cell(study: Study, figures: Figures, attack: Attack, rule: str, hostile: int) -> str:
    def figure(rule_name: str) -> float:
        liars = 0 if attack is NOTHING else hostile
        return honest_mean(figures[study.trial(rule_name, attack, liars)], hostile)

    if math.isnan(figure(rule)):
        return "stopped"
    return _marked(figure(rule), [figure(name) for name in study.rules], study.higher)


def _marked(value: float, figures: Sequence[float], higher: bool) -> str:
    finite = [figure for figure in figures if not math.isnan(figure)]
    best = max(finite) if higher else min(finite)
    return f"**{value:.3g}**" if value == best and len(figures) > 1 else f"{value:.3g}"


def _footnote(study: Study) -> str:
    settings = study.settings
    rounds = f"{settings['rounds']} round{'s' if settings['rounds'] > 1 else ''}"
    kind = "accuracy, higher is better" if study.higher else "MSE, lower is better"
    return (
        f"`python -m benchmarks.attacks {study.name} --page`: `{settings['method']}`, test {kind}, "
        f"{rounds}; {machine_line()}."
    )


if __name__ == "__main__":
    main()
