"""The first table of docs/privacy.md: errors with differential privacy, by ε.

    python -m benchmarks.privacy_results [--page]

Small runs on embedded data in this process, which takes minutes. Errors are on the test data, of
the clients' last models. privacy.toml declares the lines.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

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

SEED, DELTA, CLIENTS = 1, 1e-5, 10
EPSILONS = (100.0, 10.0, 3.0, 1.0)
PAGE, DECLARED = ROOT / "docs" / "privacy.md", ROOT / "benchmarks" / "privacy.toml"


def figure_of(case: Mapping[str, Any], task: Mapping[str, Any], epsilon: float | None) -> float:
    """Return a run's last figure, the mean over its clients.

    case, task: tables of privacy.toml. epsilon: of all rounds, None without noise, 0 without
    sharing.
    """
    noise: Mapping[str, Any] = {}
    if epsilon == 0:
        noise = {"privacy.unit": "client", "privacy.neighbours": "remove", **flat(case["alone"])}
    elif epsilon:
        privacy = {"privacy.mechanism": "gaussian", "privacy.epsilon": epsilon}
        exact = {"privacy.delta": DELTA, "privacy.metrics": "exact"}
        noise = {**privacy, **exact, **flat(case["clips"])}
    whole_case = {**small_run(case["task"]), **AT_ONCE, **flat(task), **flat(case["settings"])}
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_from({**whole_case, **noise, "seed": SEED, **output_in(Path(folder))})
        nodes = nodes_sharing(settings.data, 1, Path(folder) / "state")
        last = read_rounds(conducted(LocalGrid(settings, nodes), settings))[-1]
    assert not epsilon or last["privacy"]["epsilon"] <= epsilon * (1 + 1e-6)
    return float(last[case["figure"]])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--page", action="store_true", help="write the table to docs/privacy.md")
    arguments = parser.parse_args()
    become_worker()  # nodes of a simulation: the noise repeats
    declared = tomllib.loads(DECLARED.read_text(encoding="utf-8"))
    lines = [["method", "no sharing", "no noise", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]]
    console = Console()
    for case in track(declared["cases"], "cases", console=console):
        task = declared["tasks"][case["task"]]
        figures = [figure_of(case, task, epsilon) for epsilon in (0.0, None, *EPSILONS)]
        lines.append([case["title"], *(f"{figure:.3g}" for figure in figures)])
    note = (
        f"`python -m benchmarks.privacy_results --page`: {CLIENTS} clients, δ = {DELTA:g}, all "
        f"clients in every round, seed {SEED}, {machine_line()}."
    )
    shown = [*table_texts(lines), "", note]
    console.print("\n".join(shown), markup=False, highlight=False, soft_wrap=True)
    if arguments.page:
        write_section(PAGE, "by epsilon", "benchmarks.privacy_results", shown)


if __name__ == "__main__":
    main()
