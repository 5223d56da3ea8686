"""Runs on sequences whose artefacts the server's own writers wrote, with chosen metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedproto_app.core.clients import ClientFacts
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.core.round import Round
from fedproto_app.report.artefacts import RunFolder, round_line
from fedproto_app.server.round_log import RoundLog
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.findings import ClusterHistory
from tests.report.made_federation import MadeFederation

COSTS = {"parameters_up": 1000, "parameters_down": 1, "bytes_up": 2, "bytes_down": 3}


def made_federation(
    metrics: dict[str, dict[Metric, float]], task: str = "sequence-classification", **settings: Any
) -> Any:
    """Return a federation of these clients under Fed-REACT with two encoder rounds."""
    federation = MadeFederation(metrics)
    config = {"task": task, "method": "fed-react", "encoder.rounds": 2, **settings}
    federation.settings = settings_from(config)
    return federation


def make_sequence_run(
    folder: Path,
    task: str = "sequence-classification",
    clients: int = 10,
    groups: int = 3,
    rounds: int = 6,
    shaky: int = 2,
    known_groups: bool = True,
    **settings: Any,
) -> Path:
    """A finished run of Fed-REACT: in its first `shaky` rounds clients are in any cluster."""
    draws = np.random.default_rng(0)
    names = [f"client-{number:03}" for number in range(clients)]
    truth = dict(zip(names, draws.permutation(np.arange(clients) % groups), strict=True))
    place = {"output.dir": str(folder.parent), "output.name": folder.name}
    federation = made_federation({name: {} for name in names}, task, **place, **settings)
    for key in federation.history.results:
        group = f"cluster-{truth[key.client] + 1}" if known_groups else ""
        federation.members.facts[key] = ClientFacts(100, group, 0.0)
    run = RunFolder(federation.settings)
    history = ClusterHistory()
    for number in range(1, rounds + 3):
        log = RoundLog(losses={key: {"total": 3 / number} for key in federation.history.results})
        log.parameters_up = log.parameters_down = 1000
        if number > 2:
            _one_round(federation, history, log, number, truth, shaky, groups, draws)
        line = round_line(log, federation.history.results, {"total": 1.0}, number > 2, task)
        run.append_round(number, line)
    run.write_findings(history.findings(list(federation.history.results), federation.members.facts))
    run.write_clients(federation)
    costs = COSTS | {"trainings": 3}
    run.write_summary(federation, costs, rounds + 2, "rounds")
    return run.path


def _one_round(
    federation: Any,
    history: ClusterHistory,
    log: RoundLog,
    number: int,
    truth: dict[str, int],
    shaky: int,
    groups: int,
    draws: np.random.Generator,
) -> None:
    keys = list(federation.history.results)
    labels = {
        key: int(draws.integers(groups) if number - 2 <= shaky and draws.random() < 0.3 else group)
        for key, group in zip(keys, truth.values(), strict=True)
    }
    flat = np.array(list(truth.values()))
    matrix = np.where(flat[:, None] == flat, 0.4, 0.1) + draws.normal(
        0, 0.6 / number, (len(keys),) * 2
    )
    matrix = ((matrix + matrix.T) / 2).astype(np.float32)
    np.fill_diagonal(matrix, 1)
    right = float(np.mean([labels[key] == truth[key.client] for key in keys]))
    alpha = 1 - 1 / (number - 2)
    log.figures = {"rand_index": right, "forgetting_factor": alpha, "clusters": float(groups)}
    history.add(Round(number, federation.members.facts), labels, matrix, alpha)
    for result in federation.history.results.values():
        good = 0.9 - 0.5 / number + float(draws.normal(0, 0.04))
        if "regression" in federation.settings.task:
            metrics = {
                Metric("rmse"): 20 * (1 - good),
                Metric("mae"): 10 * (1 - good),
                Metric("validation-rmse"): 22 * (1 - good),
            }
        else:
            metrics = {Metric("accuracy"): good, Metric("validation-error"): 1 - good + 0.02}
        kept_metrics = {replace(name, model=Model.KEPT): value for name, value in metrics.items()}
        local_metrics = {
            replace(name, model=Model.LOCAL): value * 0.9 for name, value in metrics.items()
        }
        result.metrics = metrics | kept_metrics | local_metrics
        result.kept_round = number
