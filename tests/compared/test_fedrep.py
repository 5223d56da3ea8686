"""FedRep's client: two phases, a shared encoder, a head of its own that stays at the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedproto_app.core.messages import Arrays, Guidance, Order
from fedproto_app.data.shard import Shard
from fedproto_app.models.forecaster import DECODER
from fedproto_app.models.model import ENCODER
from fedproto_app.node.store import ClientStore, unflatten
from fedproto_app.strategies.common.learner import Learner
from tests.helpers.tiny_cohort import (
    NAMES,
    global_model,
    tiny_cohort,
    tiny_learner,
    tiny_windows,
    train,
)
from tests.helpers.whole_orders import WholeNode

BATCHES = 5  # of each tiny client


def order(arrays: Arrays, server_round: int = 1) -> Order:
    return Order("run", "t", server_round, NAMES, guidance=Guidance(arrays))


def node(fedrep: Learner[Any], folder: Path) -> WholeNode:
    windows = {client.name: client for client in tiny_windows(fedrep.task.settings)}
    return WholeNode(fedrep, Shard(windows, {}), ClientStore(folder))


def part(parameters: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name: value for name, value in parameters.items() if name.startswith(prefix)}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def assert_all_moved(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first
    assert all((first[name] != second[name]).flatten(1).any(dim=1).all() for name in first)


def test_the_head_learns_first_then_the_encoder() -> None:
    fedrep = tiny_learner("fedrep", **{"fedrep.head-epochs": 3, "local-epochs": 2})
    phases = [(phase.trainable, phase.epochs) for phase in fedrep.phases()]
    assert phases == [((DECODER,), 3), ((ENCODER,), 2)]


@pytest.mark.parametrize(
    ("phase", "learns", "rests"), [(0, DECODER, ENCODER), (1, ENCODER, DECODER)]
)
def test_each_phase_leaves_the_other_part_untouched(
    monkeypatch: pytest.MonkeyPatch, phase: int, learns: str, rests: str
) -> None:
    fedrep = tiny_learner("fedrep")
    only = [fedrep.phases()[phase]]
    monkeypatch.setattr(fedrep, "phases", lambda: only)
    before = tiny_cohort(fedrep)
    _, _, after = train(fedrep, Guidance(global_model(fedrep)))
    assert_equal(part(after.parameters, rests), part(before.parameters, rests))
    assert_all_moved(part(after.parameters, learns), part(before.parameters, learns))
    for moment in (after.optimizer.first, after.optimizer.second):
        assert all((value == 0).all() for value in part(moment, rests).values())
    steps = {name: value.tolist() for name, value in after.optimizer.steps.items()}
    assert steps == {name: [BATCHES if name.startswith(learns) else 0] * 2 for name in steps}


def test_head_and_moments_wait_at_the_node_for_the_next_round(tmp_path: Path) -> None:
    """Two rounds by nodes that know each other only by their disk, and the same two in memory."""
    fedrep = tiny_learner("fedrep")
    first = node(fedrep, tmp_path).train(order(global_model(fedrep), 1))
    node(fedrep, tmp_path).train(order(first.arrays, 2))

    clients = tiny_cohort(fedrep)
    train(fedrep, Guidance(global_model(fedrep)), clients, 1)
    for name, received in first.arrays.items():  # a new encoder, and Adam afresh for it
        clients.parameters[name].copy_(torch.from_numpy(received))
        for moment in (clients.optimizer.first, clients.optimizer.second, clients.optimizer.steps):
            moment[name].zero_()
    train(fedrep, Guidance(first.arrays), clients, 2)

    expected = {
        "parameters": clients.parameters,
        "first": clients.optimizer.first,
        "second": clients.optimizer.second,
        "steps": clients.optimizer.steps,
    }
    for row, client in enumerate(NAMES):
        [(_, states)] = ClientStore(tmp_path).read_states([client], upto=2)
        state = {name: value[0] for name, value in states.items()}
        assert len(state) == len(expected) * len(part(clients.parameters, DECODER))
        for group, tensors in expected.items():
            client_values = {name: value[row] for name, value in part(tensors, DECODER).items()}
            assert_equal(unflatten(state, group), client_values)
    assert set(clients.optimizer.steps[DECODER + "weight"].tolist()) == {2 * BATCHES}
