"""The tables of docs/privacy.md: what noise that protects clients costs, by ε.

    python -m benchmarks.privacy_results [--page]

Small runs on embedded data in this process, which takes minutes. A method's clip is the one of three
whose clients have the best validation error at one ε; the search is not counted in ε. The error is
that of the models that clients keep.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks.machine import machine_line
from benchmarks.result_runs import ROOT, write_section
from fedproto_app.engine.local import AT_ONCE, LocalGrid, nodes_sharing
from fedproto_app.maths.privacy_loss import epsilon_of
from fedproto_app.node.process import become_worker
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_rounds
from fedproto_app.server_app import conduct
from fedproto_app.settings import settings_from
from fedproto_app.tasks.table import small_run

EPSILONS = (100.0, 10.0, 3.0, 1.0)
DELTA = 1e-5
CHOSEN_AT = 10.0  # the ε at which clips are compared
CLIENTS = (10, 40, 160)  # of the second table
SAMPLE: Mapping[str, Any] = {"privacy.unit": "sample", "privacy.neighbours": "replace"}
SERIES: Mapping[str, Any] = {
    "data.synthetic.clients": 10,
    "data.synthetic.days": 28,
    "rounds": 10,
    "keep": "best-validation",
}
IMAGES: Mapping[str, Any] = {
    "data.partition.clients": 10,
    "data.partition.classes": 4,
    "data.partition.stages": 1,
    "data.partition.validation-share": 0.2,
    "data.partition.samples": 30,
    "rounds": 10,
    "keep": "best-validation",
}
SEQUENCES: Mapping[str, Any] = {
    "data.clusters.clients": 10,
    "encoder.rounds": 5,
    "rounds": 5,
    "keep": "best-validation",
}


@dataclass(frozen=True)
class Case:
    """A line of the first table.

    clips: settings by the name of a clip. figure: of rounds.jsonl; validation: what clips are
    chosen by, the less the better if `less`. alone: settings of the run without sharing.
    """

    title: str
    task: str
    settings: Mapping[str, Any]
    clips: Mapping[str, Mapping[str, Any]]
    figure: str
    validation: str
    less: bool
    alone: Mapping[str, Any]


def _clips(*lengths: float, step: bool = False, both: bool = False) -> dict[str, dict[str, float]]:
    keys = ["privacy.step-clip"] if step else ["privacy.clip"]
    keys += ["privacy.step-clip"] if both else []
    return {f"{length:g}": dict.fromkeys(keys, length) for length in lengths}


_MSE = ("kept_test_mse", "validation_mse", True)
CASES = (
    Case(
        "`fuels`, MSE",
        "forecasting",
        {**SERIES, "method": "fuels"},
        _clips(0.1, 1.0, 3.0),
        *_MSE,
        {"method": "solo"},
    ),
    Case(
        "`fedavg`, MSE",
        "forecasting",
        {**SERIES, "method": "fedavg"},
        _clips(0.03, 0.1, 0.3, step=True),
        *_MSE,
        {"method": "solo"},
    ),
    Case(
        "`analytic`, MSE",
        "forecasting",
        {**SERIES, "method": "analytic"},
        _clips(1.0, 2.0, 4.0),
        *_MSE,
        {"analytic.sharing": "none"},
    ),
    Case(
        "`analytic`, one model for all, MSE",
        "forecasting",
        {**SERIES, "method": "analytic", "analytic.sharing": "federated"},
        _clips(1.0, 2.0, 4.0),
        *_MSE,
        {"analytic.sharing": "none"},
    ),
    Case(
        "the same, ε of a sample, MSE",
        "forecasting",
        {**SERIES, **SAMPLE, "method": "analytic", "analytic.sharing": "federated"},
        _clips(1.0, 2.0, 4.0),
        *_MSE,
        {"analytic.sharing": "none"},
    ),
)


def figures_of(case: Case, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The last line of rounds.jsonl of a run."""
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_from(
            {
                **small_run(case.task),
                **AT_ONCE,
                **case.settings,
                **changes,
                "output.dir": folder,
                "output.name": "run",
                "output.pictures": False,
            }
        )
        nodes = nodes_sharing(settings.data, 1, Path(folder) / "state")
        with RunFolder(settings) as run:
            conduct(LocalGrid(settings, nodes), settings, run)
            found: dict[str, Any] = read_rounds(run.path)[-1]
    return found


def main() -> None:
    become_worker()
    for case in CASES:
        print(case.title, {k: v for k, v in figures_of(case, {}).items() if not isinstance(v, dict)})
        for name, clip in case.clips.items():
          for eps in (100.,10.):
            f = figures_of(case, {**clip, "privacy.mechanism":"gaussian","privacy.epsilon":eps})
            print(name, eps, f.get(case.figure), f.get(case.validation), f["privacy"]["releases"], f["refused"][:1])


if __name__ == "__main__":
    main()
