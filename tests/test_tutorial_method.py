"""The method that docs/extending.md builds does what it says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedproto_app.data.shape import DataShape
from fedproto_app.experiments.invariants import SmallRuns, invariants_of
from fedproto_app.report.runs import read_clients, read_rounds
from fedproto_app.serving import kept_model, open_state
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.tasks.table import make_task
from tests.helpers.made_series import forecasts_have_the_reported_errors
from tests.helpers.page_programs import write_programs

BABU = "my_fedbabu:METHOD"


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Return the page's programs by name, importable."""
    written = write_programs("extending.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield written
    for name in written:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_it_is_short(programs: dict[str, str]) -> None:
    assert len(programs["my_fedbabu.py"].splitlines()) < 60


@pytest.mark.parametrize(
    "task", ["forecasting", pytest.param("classification", marks=pytest.mark.exhaustive)]
)
def test_the_invariants_hold(tmp_path: Path, task: str) -> None:
    runs = SmallRuns(task, BABU, tmp_path, **{"rounds": 2, "fedbabu.tuning-epochs": 1})
    deviations = {name: check(runs) for name, check in invariants_of(runs).items()}
    assert {name: deviation for name, deviation in deviations.items() if not deviation.held} == {}
    losses = [line["loss"]["total"] for line in read_rounds(runs.run("one-node", 1))]
    assert losses[-1] != losses[0]


@pytest.mark.parametrize("changes", [{}, {"fedbabu.whole": True}])
def test_the_clients_own_models_forecast(tmp_path: Path, changes: dict[str, bool]) -> None:
    forecasts_have_the_reported_errors(tmp_path, method=BABU, **changes)


def test_the_next_round_starts_without_the_fine_tuning(tmp_path: Path) -> None:
    """The body learns the same with any tuning; more tuning improves a client's fit."""
    errors, bodies = [], []
    for epochs in (1, 40):
        runs = SmallRuns(
            "forecasting", BABU, tmp_path / str(epochs), **{"fedbabu.tuning-epochs": epochs}
        )
        run = runs.run("babu", 1)
        bodies.append((run / "model" / "global.safetensors").read_bytes())
        errors.append(read_clients(run)["validation_mse"])
    assert bodies[0] == bodies[1]
    assert sum(errors[1]) < 0.9 * sum(errors[0])


def test_of_fedbabu_only_the_kept_heads_leave_their_start(tmp_path: Path) -> None:
    runs = SmallRuns("forecasting", BABU, tmp_path)
    runs.run("babu", 1)
    state = open_state(runs.state("babu"))
    learner = make_learner(state.settings, make_task(state.settings, DataShape()))
    start, clients = learner.initial_parameters(), sorted(state.store.kept_clients())
    heads = [name for name in start if name.startswith(learner.task.head)]
    for client in clients:
        [(_, stored)] = state.store.read_states([client], state.settings.rounds)
        stored_model = kept_model(state.store, client, learner)
        for name in heads:
            assert torch.equal(stored[f"parameters/{name}"][0], start[name])
            assert not torch.equal(stored_model[name], start[name])
