"""A node's use of a simulated GPU: how often it waits and copies, and how much it copies."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch import Tensor

from fedproto_app.core.messages import Guidance, Order, Reply
from fedproto_app.node import orders, shares, trainer
from fedproto_app.node.merging import merged
from fedproto_app.node.shares import Share, fitting, shares_of, size_by_memory
from fedproto_app.node.store import ClientStore
from fedproto_app.node.trainer import Node
from fedproto_app.settings import flat_settings, settings_from
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, make_learner
from fedproto_app.tasks.table import load_shard, make_task, small_run
from tests.helpers.pretended_gpu import DEVICE, PretendedGpu

CPU = torch.device("cpu")
SMALL = {
    "forecasting": {
        "data.synthetic.clients": 4,
        "data.synthetic.days": 8,
        "model.representation-dim": 4,
    },
    "classification": {"model.width": 4, "model.representation-dim": 4},
}
GUIDANCE = ("positive", "negative")  # of FUELS
EVERYTHING = 10**9  # bytes: room for all there is


class Done(NamedTuple):
    """One order's reply, with the numbers of waits, copies and calls of the device."""

    reply: Reply
    waits: int
    copies: int
    calls: int


class OnDevice:
    """A node with clients, ready for orders."""

    def __init__(
        self, folder: Path, task: str, device: torch.device, room: int = 0, **changes: Any
    ) -> None:
        self.settings = settings_from({**small_run(task), **SMALL.get(task, {}), **changes})
        self.shard = load_shard(self.settings, 0, 1)
        self.learner = make_learner(
            self.settings, make_task(self.settings, self.shard.shape, device), server_round=1
        )
        clients = len(self.shard.clients)
        self.store = ClientStore(
            folder, EVERYTHING, lasting=True, clients=clients, device_limit=room
        )
        self.node = Node(self.settings, self.shard, self.store, self.learner)

    def order(self, clients: int, server_round: int = 1) -> Order:
        initial = self.learner.initial_parameters().items()
        arrays = {name: v.numpy() for name, v in initial if self.learner.is_shared(name)}
        names = list(self.shard.clients)[:clients]
        if self.settings.method == "fuels":
            shape = (
                clients,
                self.settings.data.period,
                self.settings.method_settings.prototype_dim,
            )
            rng = np.random.default_rng(server_round)
            arrays = {key: rng.normal(size=shape).astype(np.float32) for key in GUIDANCE}
        judged = self.settings.pretraining_rounds == 0
        return Order("run", "", server_round, names, judged, Guidance(arrays, names))

    def train(self, order: Order, size: int = 16) -> Done:
        cohorts = shares_of(order.clients, order.server_round, self.shard, self.learner.task, size)
        gpu = PretendedGpu()
        with nullcontext() if self.learner.task.device == CPU else gpu:
            reply = merged(self.node.train(order, cohorts))
        return Done(reply, gpu.waits.total(), gpu.copies.total(), gpu.calls)


def as_text(reply: Reply) -> str:
    """Return all of the reply, bit for bit."""
    arrays = {name: array.tolist() for name, array in reply.arrays.items()}
    return repr(replace(reply, arrays=arrays))


@pytest.mark.parametrize(
    ("task", "method", "length"),
    [
        ("forecasting", "fuels", "local-epochs"),
        ("forecasting", "fedavg", "local-epochs"),
        ("classification", "fedavg", "local-epochs"),
        ("sequence-classification", "fed-react", "encoder.steps"),
    ],
)
def test_neither_clients_nor_steps_make_a_cohort_wait(
    tmp_path: Path, task: str, method: str, length: str
) -> None:
    """More clients and steps cause no more waits. There is one copy per tensor and epoch."""

    def done(name: str, clients: int, times: int, device: torch.device = DEVICE) -> Done:
        changes = {"method": method, length: times}
        node = OnDevice(tmp_path / name, task, device, **changes)
        return node.train(node.order(clients))

    small, large, longer = done("few", 2, 1), done("many", 4, 1), done("longer", 4, 3)
    assert longer.calls > large.calls
    assert 0 < small.waits == large.waits == longer.waits
    assert small.copies == large.copies
    assert large.calls - small.calls <= 2 * 2  # two more models in the sum
    assert longer.copies - large.copies <= 2 * 3  # order, age or presence, and how images move
    on_cpu = done("here", 4, 1, CPU)
    for name, losses in on_cpu.reply.losses.items():
        assert large.reply.losses[name] == pytest.approx(losses, rel=1e-5)


def test_the_pretended_gpu_sees_what_a_real_one_would_mind() -> None:
    with PretendedGpu() as gpu:
        numbers = torch.arange(4.0).to(DEVICE)
        assert gpu.copies.total() == 1
        assert numbers.sum().item() == 6
        assert bool((numbers > 2).any())
        assert numbers[numbers > 1].cpu().tolist() == [2, 3]
        assert numbers[[0, 3]].tolist() == [0, 3]
        assert torch.tensor([1, 2], device=DEVICE).sum().cpu() == 3
        assert gpu.waits.total() == 6  # two numbers, a mask, three tensors
        assert gpu.copies.total() == 3  # also an index and a list
        with pytest.raises(RuntimeError, match="two devices"):
            numbers + torch.ones(4)
        with pytest.raises(RuntimeError, match="numpy"):
            numbers.numpy()


def test_states_that_fit_stay_on_the_device(tmp_path: Path) -> None:
    """They are copied for the checkpoint only, and equal the states of a CPU, bit for bit."""
    rounds: dict[str, list[Done]] = {}
    for name, room in (("stays", EVERYTHING), ("comes", 0)):
        node = OnDevice(tmp_path / name, "forecasting", DEVICE, room, method="solo")
        rounds[name] = [node.train(node.order(4, number), size=3) for number in (1, 2)]
        with PretendedGpu() as gpu:
            node.store.flush()
        assert (gpu.waits.total() > 0) == (name == "stays")
        rounds[name].append(node.train(node.order(2, 3), size=3))  # others, of both cohorts
    for stays, comes in zip(rounds["stays"], rounds["comes"], strict=True):
        assert as_text(stays.reply) == as_text(comes.reply)
    tensors = 3 * 12  # weights of four matrices with biases, in two GRUs, a decoder; two moments
    assert rounds["comes"][1].waits - rounds["stays"][1].waits >= 2 * (tensors - 6)
    written = [ClientStore(tmp_path / name) for name in rounds]
    client = rounds["stays"][0].reply.names[0]
    (on_device,), (on_cpu,) = (store.read_states([client], upto=3) for store in written)
    assert on_device.tensors.keys() == on_cpu.tensors.keys()
    assert all(
        torch.equal(on_device.tensors[name], on_cpu.tensors[name]) for name in on_cpu.tensors
    )


@pytest.mark.parametrize(
    ("place", "method"), [("train_cohort", "fedavg"), ("evaluate", "fedavg"), ("evaluate", "solo")]
)
def test_a_cohort_that_does_not_fit_works_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, method: str
) -> None:
    """Wherever memory runs out, each client is trained once and reported once."""
    undivided = OnDevice(tmp_path / "whole", "forecasting", CPU, method=method)
    halved = OnDevice(tmp_path / "halved", "forecasting", CPU, method=method)
    expected = [undivided.train(undivided.order(4, number), size=1).reply for number in (1, 2)]
    failed: list[int] = []

    def limited(cohort: Cohort) -> None:
        if len(cohort.names) > 1:
            failed.append(len(cohort.names))
            raise torch.OutOfMemoryError("CUDA out of memory")

    train, evaluate = trainer.train_cohort, type(halved.learner).evaluate

    def small_training(learner: AnyLearner, cohort: Cohort, *args: Any) -> dict[str, Tensor]:
        limited(cohort)
        return train(learner, cohort, *args)

    def small_evaluation(learner: AnyLearner, cohort: Cohort, *args: Any) -> Any:
        limited(cohort)
        return evaluate(learner, cohort, *args)

    if place == "train_cohort":
        monkeypatch.setattr(trainer, "train_cohort", small_training)
    else:
        monkeypatch.setattr(type(halved.learner), "evaluate", small_evaluation)
    for number, reply in zip((1, 2), expected, strict=True):
        halved_reply = halved.train(halved.order(4, number)).reply
        assert as_text(halved_reply) == as_text(reply)
    assert failed == 2 * [4, 2, 2]


def test_one_client_that_does_not_fit_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer, "train_cohort", full)
    node = OnDevice(tmp_path, "forecasting", CPU, method="solo")
    order = node.order(2)
    with pytest.raises(MemoryError, match=f"{order.clients[0]} alone"):
        node.node.train(order, [Share(0, order.clients)])


def test_a_cohort_is_as_large_as_fits(tmp_path: Path) -> None:
    node = OnDevice(tmp_path, "forecasting", CPU, method="solo")
    order = node.order(4)

    def clients(room: int, *, trains: bool = True) -> int:
        return fitting(room, node.learner, node.shard, order, trains=trains)

    assert clients(0) == clients(10**5) == 16  # at least
    assert 1000 < clients(10**9) < clients(2 * 10**9) <= 2 * clients(10**9) + 1
    assert clients(10**9, trains=False) > clients(10**9)
    empty_order = Order("run", "", 1, [])
    assert fitting(10**9, node.learner, node.shard, empty_order, trains=True) == 16


@pytest.mark.parametrize(("free", "room"), [(10**10, 4 * 10**8), (10**8, 8 * 10**7)])
def test_a_cohort_gets_half_a_gpu_or_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, room: int
) -> None:
    monkeypatch.setattr(shares, "memory_of", lambda _: 10**9)
    monkeypatch.setattr(shares, "free_memory", lambda _: free)
    node = OnDevice(tmp_path, "forecasting", DEVICE, method="solo")
    with PretendedGpu():
        arguments = node.learner, node.shard, node.order(4)
        size = size_by_memory(*arguments, trains=True)
        assert size == fitting(room, *arguments, trains=True) > 16


def test_processes_that_share_a_node_do_not_cut_by_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would choose another size, and clients would be trained twice, or not at all."""
    node = OnDevice(tmp_path, "forecasting", CPU, method="solo")
    sizes = iter([3, 1, 2])
    monkeypatch.setattr(orders, "torch_device", lambda *_: DEVICE)
    monkeypatch.setattr(orders, "size_by_memory", lambda *_, **__: next(sizes))
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})
    config = flat_settings(node.settings) | {"output.dir": str(tmp_path)}
    context.run_config = dict(config)
    order = node.order(4)

    def names(number: int, total: int) -> list[list[str]]:
        part = orders.Part(number, total)
        with PretendedGpu():
            done = orders.carry_out_part("train", order, context, part, simulated=True)
        assert not any(reply.failed for reply in done)
        return [reply.names for reply in done if reply.names]

    assert [len(cohort) for cohort in names(0, 1)] == [3, 1]
    together = [*names(0, 2), *names(1, 2)]
    assert sorted(name for cohort in together for name in cohort) == sorted(order.clients)
