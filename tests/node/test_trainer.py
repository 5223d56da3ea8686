"""How a node trains cohorts and stores their tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.messages import Guidance, Order
from fedproto_app.data.shard import Shard
from fedproto_app.maths.steps import length
from fedproto_app.node.store import ClientStore
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, Context, make_learner
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.table import load_shard, make_task, small_run
from tests.helpers.whole_orders import WholeNode

HUGE = 3e38  # two of them are over what a float32 holds


def learner_and_shard(
    method: str, cohort_size: int, **changes: Any
) -> tuple[AnyLearner, Shard, list[str]]:
    settings = settings_from(
        {
            **small_run("forecasting"),
            "method": method,
            "cohort-size": cohort_size,
            "data.synthetic.clients": 5,
            "data.synthetic.days": 8,
            "data.horizon": 3,
            **changes,
        }
    )
    shard = load_shard(settings, 0, 1)
    return make_learner(settings, make_task(settings, shard.shape)), shard, list(shard.clients)


@pytest.mark.parametrize(
    ("values", "fails"),
    [
        ([0.0, 1.0, -2.0], False),
        ([HUGE, HUGE, 1.0], False),  # finite, though their sum is not
        ([1.0, float("nan"), 1.0], True),
        ([1.0, float("inf"), 1.0], True),
        ([float("inf"), float("-inf"), 1.0], True),
    ],
)
def test_a_client_fails_if_a_parameter_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], fails: bool
) -> None:
    learner, shard, names = learner_and_shard("solo", cohort_size=5)

    def spoil(self: AnyLearner, cohort: Cohort, context: Context) -> dict[str, Tensor]:
        cohort.parameters["decoder.bias"][1] = torch.tensor(values)
        return {}

    monkeypatch.setattr(type(learner), "conclude", spoil)
    reply = WholeNode(learner, shard, ClientStore(tmp_path)).train(Order("run", "", 1, names))
    assert list(reply.failed) == (sorted(names)[1:2] if fails else [])


def test_a_kept_model_without_a_number_for_its_error_is_replaced(tmp_path: Path) -> None:
    learner, shard, names = learner_and_shard("solo", cohort_size=5)
    store = ClientStore(tmp_path)
    node = WholeNode(learner, shard, store)
    node.train(Order("run", "", 1, names, evaluate=True))
    first = store.record(names[0])
    store.keep(names[0], replace(first, metrics=dict.fromkeys(first.metrics, float("nan"))))
    node.train(Order("run", "", 2, names, evaluate=True))
    assert store.record(names[0]).kept_round == 2


@pytest.mark.parametrize("method", ["solo", "fuels"])
def test_where_state_waits_changes_nothing(tmp_path: Path, method: str) -> None:
    """Clients come and go, and cohorts with them: a node's replies, bit for bit."""
    answers = []
    for store in (
        ClientStore(tmp_path / "disk"),
        ClientStore(tmp_path / "memory", 10**9, lasting=True),
        ClientStore(tmp_path / "little", 10**4, lasting=True),
        ClientStore(tmp_path / "none", 10**4, lasting=True, clients=5),
    ):
        learner, shard, names = learner_and_shard(method, cohort_size=2)
        node, replies = WholeNode(learner, shard, store), []
        for server_round, digits in enumerate(["01234", "042", "13", "43210"], start=1):
            clients = [names[int(digit)] for digit in digits]
            reply = node.train(Order("run", "", server_round, clients, evaluate=True))
            arrays = {name: value.tobytes() for name, value in reply.arrays.items()}
            replies.append({**vars(reply), "arrays": arrays, "seconds": 0})
            if server_round == 2:
                store.flush()
        answers.append(replies)
    assert answers[0][-1]["names"] == sorted(names)
    assert all(answer == answers[0] for answer in answers[1:])


class Visits(NamedTuple):
    """A memory of every kind: a flag, a counter, and tensors by name."""

    visited: Tensor
    rounds: Tensor
    sums: dict[str, Tensor]


class VisitingLearner(SoloLearner):
    """A learner that counts its rounds, adds up their numbers, and sends neither."""

    def initial_memory(self) -> Visits:
        return Visits(torch.tensor(False), torch.tensor(-1), {"of.rounds": torch.zeros(2)})

    def conclude(self, cohort: Cohort, context: Context) -> dict[str, Tensor]:
        cohort.memory.visited.fill_(True)
        cohort.memory.rounds.add_(1)
        cohort.memory.sums["of.rounds"].add_(cohort.server_round)
        return {}


def visiting() -> tuple[AnyLearner, Shard, list[str]]:
    learner, shard, names = learner_and_shard("solo", cohort_size=2)
    return VisitingLearner(learner.training, learner.section, learner.task), shard, names


@pytest.mark.parametrize("waits", [False, True])
def test_memory_of_every_dtype_outlives_rounds_and_restarts(tmp_path: Path, waits: bool) -> None:
    learner, shard, names = visiting()

    def store() -> ClientStore:
        return ClientStore(tmp_path, 10**9, lasting=waits)

    present_store = store()
    for server_round, digits in enumerate(["01234", "042", "13"], start=1):
        clients = [names[int(digit)] for digit in digits]
        order = Order("run", "", server_round, clients, evaluate=True)
        WholeNode(learner, shard, present_store).train(order)
        present_store.flush()
        present_store = store() if server_round == 2 else present_store
    for client, rounds, total in ((names[0], 1, 3.0), (names[1], 1, 4.0)):
        [(_, state)] = ClientStore(tmp_path).read_states([client], 3)
        assert state["memory/visited"].tolist() == [True]
        assert (state["memory/rounds"].dtype, int(state["memory/rounds"])) == (torch.int64, rounds)
        assert state["memory/sums/of.rounds"].tolist() == [[total, total]]
        model = ClientStore(tmp_path).read_kept(client)
        assert model is not None
        assert {name.split("/")[0] for name in model} == {"parameters", "memory"}


def test_a_client_fails_if_what_it_remembers_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, shard, names = visiting()

    def spoil(self: AnyLearner, cohort: Cohort, context: Context) -> dict[str, Tensor]:
        cohort.memory.sums["of.rounds"][0, 1] = torch.nan
        return {}

    monkeypatch.setattr(VisitingLearner, "conclude", spoil)
    reply = WholeNode(learner, shard, ClientStore(tmp_path)).train(Order("run", "", 1, names[:1]))
    assert list(reply.failed) == names[:1]


def test_a_state_that_does_not_fit_the_learner_is_refused_by_name(tmp_path: Path) -> None:
    """One is of an earlier version, the other of before a site's width-factor changed."""
    learner, shard, names = learner_and_shard("solo", cohort_size=2)
    WholeNode(learner, shard, ClientStore(tmp_path)).train(Order("run", "", 1, names))
    newer, _, _ = visiting()
    wider, _, _ = learner_and_shard("solo", cohort_size=2, **{"model.representation-dim": 32})
    for changed, fault in (
        (newer, r"has no 'memory/rounds'; continue with the version"),
        (wider, r"is of a model of another size: 'parameters/"),
    ):
        node = WholeNode(changed, shard, ClientStore(tmp_path))
        with pytest.raises(FedProtoError, match=fault):
            node.train(Order("run", "", 2, names))


def test_a_client_counts_with_no_more_samples_than_the_order_allows(tmp_path: Path) -> None:
    """Sums shrink to the allowed share of the declared samples, and so does the weight."""
    learner, shard, names = learner_and_shard("analytic", cohort_size=5)
    count = shard.clients[names[0]].train_samples
    plain = WholeNode(learner, shard, ClientStore(tmp_path / "a")).train(Order("run", "", 1, names))
    order = Order("run", "", 1, names, most_samples=count // 4)
    reply = WholeNode(learner, shard, ClientStore(tmp_path / "b")).train(order)
    assert plain.samples == [count] * len(names)
    assert reply.samples == [count // 4] * len(names)
    for name, value in plain.arrays.items():
        np.testing.assert_allclose(reply.arrays[name], value * (count // 4) / count, rtol=1e-5)


def test_a_node_shortens_the_steps_of_its_mean_and_reports_them(tmp_path: Path) -> None:
    changes = {"aggregation.step-limit": 2.0}
    learner, shard, names = learner_and_shard("fedavg", cohort_size=5, **changes)
    start = {n: v.numpy() for n, v in learner.initial_parameters().items()}
    replies = {}
    for longest in (0.0, 1e-3):
        node = WholeNode(learner, shard, ClientStore(tmp_path / str(longest)))
        order = Order("run", "", 1, names, guidance=Guidance(start), longest_step=longest)
        replies[longest] = node.train(order)
    assert min(replies[0.0].steps) > 1e-3
    assert replies[1e-3].steps == [1e-3] * len(names)
    assert length(replies[1e-3].arrays, start) <= 1.001e-3
