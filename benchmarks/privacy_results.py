"""The first table of docs/privacy.md: errors with differential privacy, by ε.

    python -m benchmarks.privacy_results [--page]

Small runs on embedded data in this process, which takes minutes. Errors are means over `SEEDS`, on
the test data, of the clients' last models. privacy.toml declares the lines.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.in_process import conducted
from benchmarks.machine import machine_line
from benchmarks.pages import ROOT, table_texts, write_section
from benchmarks.parts import output_in, parser_of
from fedproto_app.engine.local import AT_ONCE, LocalGrid, nodes_sharing
from fedproto_app.node.process import become_worker
from fedproto_app.report.runs import read_rounds
from fedproto_app.settings import settings_from
from fedproto_app.settings.reading import flat
from fedproto_app.tasks.table import small_run

SEEDS = (1,)
EPSILONS = (100.0, 10.0, 3.0, 1.0)
DELTA = 1e-5
CLIENTS = 10


@dataclass(frozen=True, eq=False)
class Case:
    """A line of a table, as privacy.toml declares it. settings: of a whole run."""

    title: str
    settings: Mapping[str, Any]
    clips: Mapping[str, Any]
    alone: Mapping[str, Any]
    figure: str


def _cases() -> Iterator[Case]:
    file = ROOT / "benchmarks" / "privacy.toml"
    declared = tomllib.loads(file.read_text(encoding="utf-8"))
    for case in declared["cases"]:
        of_task = {**small_run(case["task"]), **AT_ONCE, **flat(declared["tasks"][case["task"]])}
        yield Case(
            case["title"],
            {**of_task, **flat(case["settings"])},
            flat(case["clips"]),
            flat(case["alone"]),
            case["figure"],
        )


CASES = tuple(_cases())


@dataclass(frozen=True)
class Trial:
    """A run. epsilon: of all its rounds, None without noise, 0 without sharing."""

    case: Case
    epsilon: float | None
    seed: int


def trials() -> list[Trial]:
    """Return all runs of the table."""
    epsilons = (0.0, None, *EPSILONS)
    return [Trial(case, e, seed) for case in CASES for e in epsilons for seed in SEEDS]


def figure_of(trial: Trial) -> float:
    """Return the run's last figure, the mean over its clients."""
    case = trial.case
    noise: Mapping[str, Any] = {}
    if trial.epsilon == 0:
        noise = {"privacy.unit": "client", "privacy.neighbours": "remove", **case.alone}
    elif trial.epsilon:
        privacy = {"privacy.mechanism": "gaussian", "privacy.epsilon": trial.epsilon}
        noise = {**privacy, "privacy.delta": DELTA, "privacy.metrics": "exact", **case.clips}
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_from(
            {
                **case.settings,
                **noise,
                "seed": trial.seed,
                **output_in(Path(folder)),
            }
        )
        nodes = nodes_sharing(settings.data, 1, Path(folder) / "state")
        last = read_rounds(conducted(LocalGrid(settings, nodes), settings))[-1]
    assert not trial.epsilon or last["privacy"]["epsilon"] <= trial.epsilon * (1 + 1e-6)
    return float(last[case.figure])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--page", action="store_true", help="write the table to docs/privacy.md")
    arguments = parser.parse_args()
    become_worker()  # nodes of a simulation: the noise repeats
    console, figures = Console(), dict[Trial, float]()
    with Progress(console=console) as progress:
        for trial in progress.track(trials(), description="runs"):
            figures[trial] = figure_of(trial)
    shown = [*by_epsilon(figures), "", footnote()]
    console.print("\n".join(shown), markup=False, highlight=False, soft_wrap=True)
    if arguments.page:
        page = ROOT / "docs" / "privacy.md"
        write_section(page, "by epsilon", "benchmarks.privacy_results", shown)


def by_epsilon(figures: Mapping[Trial, float]) -> list[str]:
    """Return a line for each case."""
    heads = ["no sharing", "no noise", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]
    rows = [
        [case.title, *(_mean(figures, case, e) for e in (0.0, None, *EPSILONS))] for case in CASES
    ]
    return table_texts([["method", *heads], *rows])


def _mean(figures: Mapping[Trial, float], case: Case, epsilon: float | None) -> str:
    values = [figures[Trial(case, epsilon, seed)] for seed in SEEDS]
    return f"{np.mean(values):.3g}"


def footnote() -> str:
    """Return the note on how the tables were made."""
    return (
        f"`python -m benchmarks.privacy_results --page`: {CLIENTS} clients, "
        f"δ = {DELTA:g}, all clients in every round, seed "
        f"{' and '.join(map(str, SEEDS))}, {machine_line()}."
    )


if __name__ == "__main__":
    main()
