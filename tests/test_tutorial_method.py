"""The methods that docs/tutorial-your-method.md builds do what it says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedproto_app.data.shape import DataShape
from fedproto_app.halves import make_learner
from fedproto_app.invariants import SmallRuns, invariants_of
from fedproto_app.learners.batches import pairs_of
from fedproto_app.node.inference import kept_model, open_state
from fedproto_app.report.runs import read_clients, read_rounds
from fedproto_app.settings import settings_from
from fedproto_app.tasks.forecasting.task import Batch
from fedproto_app.tasks.table import make_task
from tests.made_series import forecasts_have_the_reported_errors
from tests.page_programs import write_programs

BABU, AHEAD = "my_fedbabu:METHOD", "my_perfedavg:METHOD"


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The page's programs by their names, importable."""
    found = write_programs("tutorial-your-method.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield found
    for name in found:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_both_are_short(programs: dict[str, str]) -> None:
    assert programs.keys() == {"my_fedbabu.py", "my_perfedavg.py"}
    assert all(len(program.splitlines()) < 60 for program in programs.values())


@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("forecasting", BABU),
        ("forecasting", AHEAD),
        ("classification", BABU),
        ("sequence-regression", AHEAD),  # where some clients have one batch only
    ],
)
def test_the_invariants_hold(tmp_path: Path, task: str, method: str) -> None:
    runs = SmallRuns(task, method, tmp_path)
    deviations = {name: check(runs) for name, check in invariants_of(task).items()}
    assert {name: one for name, one in deviations.items() if not one.held} == {}
    losses = [line["loss"]["total"] for line in read_rounds(runs.run("one-node", 1))]
    assert losses[-1] != losses[0]


@pytest.mark.parametrize(
    ("method", "changes"), [(BABU, {}), (BABU, {"own.whole": True}), (AHEAD, {})]
)
def test_the_clients_own_models_forecast(
    tmp_path: Path, method: str, changes: dict[str, bool]
) -> None:
    forecasts_have_the_reported_errors(tmp_path, method=method, **changes)


def test_the_next_round_starts_without_the_fine_tuning(tmp_path: Path) -> None:
    """Whatever the tuning, the body learns the same; the more of it, the better a client's fit."""
    errors, bodies = [], []
    for epochs in (1, 40):
        runs = SmallRuns(
            "forecasting", BABU, tmp_path / str(epochs), **{"own.tuning-epochs": epochs}
        )
        run = runs.run("babu", 1)
        bodies.append((run / "model" / "global.safetensors").read_bytes())
        errors.append([float(row["validation_mse"]) for row in read_clients(run)])
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
        stored = state.store.read_state(client, state.settings.rounds)
        kept = kept_model(state.store, client, learner)
        assert stored is not None
        for name in heads:
            assert torch.equal(stored[f"parameters/{name}"], start[name])
            assert not torch.equal(kept[name], start[name])


def test_per_fedavg_is_the_gradient_after_the_step() -> None:
    """By hand: of the loss at θ − α∇F(θ; first), on the second batch, the gradient there."""
    settings = settings_from({"method": AHEAD, "own.step-size": 0.1})
    task = make_task(settings, DataShape())
    learner = make_learner(settings, task)
    start = {name: value.unsqueeze(0) for name, value in task.initial_parameters().items()}

    def batch(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(1, 24, 6, generator=generator)
        return Batch(inputs, None, inputs[..., 0] * seed, torch.ones(1, 24), torch.zeros(1))

    def gradients(parameters: dict[str, torch.Tensor], of: Batch) -> list[torch.Tensor]:
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        loss = task.loss(task.predict(leaves, task.represent(leaves, of)), of)
        return list(torch.autograd.grad(loss.sum(), list(leaves.values())))

    [pair] = pairs_of(iter([batch(1), batch(2)]))
    stepped = {
        name: value - 0.1 * gradient
        for (name, value), gradient in zip(start.items(), gradients(start, batch(1)), strict=True)
    }
    leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
    total = learner.loss(leaves, pair, learner.context(None, None))["prediction"].sum()
    found = torch.autograd.grad(total, list(leaves.values()))
    for ours, theirs in zip(found, gradients(stepped, batch(2)), strict=True):
        torch.testing.assert_close(ours, theirs)
