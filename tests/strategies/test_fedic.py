"""FEDIC's server: whose models it believes, what it learns of them, what it remembers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Arrays, NodeRoster, Reply
from fedproto_app.core.wire import array_record, numpy_arrays, write_reply
from fedproto_app.experiments.invariants import TOLERANCE, SmallRuns, apart, results
from fedproto_app.report.runs import read_rounds
from fedproto_app.server.federation import Federation
from fedproto_app.settings import settings_from
from fedproto_app.strategies.compared.fedic.auxiliary import AUXILIARY
from fedproto_app.strategies.compared.fedic.strategy import LARGEST_LOGIT, FedicStrategy, Judgement
from fedproto_app.tasks.table import load_shard
from tests.local_grid import LocalGrid, small_settings

NAMES = ["a", "b", "c"]
NO_STEPS = {f"fedic.{key}-steps": 0 for key in ("tuning", "calibration", "student")}


class Server:
    """A strategy with one node of three clients, whose replies are made by hand."""

    def __init__(self, **changes: Any) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        table = small_settings(Path("none"), "classification", method="fedic").model_dump(
            by_alias=True
        )
        settings = settings_from({**table, **changes})
        self.federation = Federation(settings, "run", "token")
        self.federation.members.expect([], load_shard(settings, 0, 1).shape)
        counts = dict.fromkeys(NAMES, ((1,) * 10,))
        shares, groups = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, "")
        samples = dict.fromkeys(NAMES, 9)
        roster = NodeRoster("m", 0, samples, groups, shares, {}, class_counts=counts)
        self.federation.members.roster.connected = {1}
        self.federation.members.roster.admit(1, roster)
        self.strategy = FedicStrategy(settings, settings.method_settings, self.federation)
        self.grid = LocalGrid(settings, [])

    def model(self, seed: int, size: float = 1.0) -> Arrays:
        rng = np.random.default_rng(seed)
        return {
            name: (size * (value + 0.1 * rng.normal(size=value.shape))).astype(np.float32)
            for name, value in self.strategy.initial_arrays().items()
        }

    def round(self, number: int, models: dict[str, tuple[Arrays, int]]) -> Arrays:
        """The next global model, of these clients' and their samples."""
        start = array_record(self.strategy.initial_arrays())
        (order,) = self.strategy.configure_train(number, start, ConfigRecord(), self.grid)
        order.metadata.__dict__["_message_id"] = f"order {number}"
        arrays = {
            name: np.stack([model[name] for model, _ in models.values()])
            for name in self.strategy.initial_arrays()
        }
        samples = [count for _, count in models.values()]
        reply = Reply(list(models), samples, losses={"total": [1.0] * len(models)}, arrays=arrays)
        message: Message = write_reply(reply, to=order)
        self.federation.pipeline.exchange.original = lambda message_sent: message_sent  # type: ignore[method-assign]
        record, _ = self.strategy.aggregate_train(number, [message])
        assert record is not None
        return numpy_arrays(record)


def three(server: Server) -> dict[str, tuple[Arrays, int]]:
    return {name: (server.model(row), row + 1) for row, name in enumerate(NAMES)}


def equal_arrays(first: Arrays, second: Arrays) -> bool:
    return all(np.array_equal(value, second[name]) for name, value in first.items())


def test_without_steps_it_is_fedavg_over_clients() -> None:
    server = Server(**NO_STEPS)
    models = three(server)
    averaged = server.round(1, models)
    for name, value in averaged.items():
        mean = sum(count * model[name].astype(np.float64) for model, count in models.values()) / 6
        np.testing.assert_allclose(value, mean, rtol=1e-5, atol=1e-7)


def test_the_student_is_better_than_the_mean_on_the_servers_images() -> None:
    steps = {f"fedic.{key}-steps": 60 for key in ("tuning", "calibration", "student")}
    server = Server(**steps, **{"fedic.adam-rate": 1e-2})
    server.round(1, three(server))
    figures = {key.removeprefix("auxiliary_accuracy_"): v for key, v in _figures(server).items()}
    assert list(figures) == ["mean", "fine_tuned", "teacher", "student"]
    for better in ("fine_tuned", "teacher", "student"):
        assert figures[better] > figures["mean"] + 0.2


def _figures(server: Server) -> dict[str, float]:
    return {name: value or 0.0 for name, value in server.federation.history.log.figures.items()}


def test_a_restored_server_goes_on_as_the_first_with_its_adam() -> None:
    first, second, new_server = Server(), Server(), Server()
    first.round(1, three(first))
    state = {name: value.copy() for name, value in first.strategy.state().items()}
    assert {name.split(".")[0] for name in state} == {"value", "first", "second", "steps"}
    assert set(state["steps.score"]) == {5}
    second.strategy.restore(state)
    models = [server.round(2, three(server)) for server in (first, second, new_server)]
    assert equal_arrays(models[0], models[1])
    assert not equal_arrays(models[0], models[2])
    for name, value in first.strategy.state().items():
        np.testing.assert_array_equal(second.strategy.state()[name], value)


def test_features_beyond_measure_behind_a_head_of_zeros_do_not_reach_the_gate() -> None:
    """Its logits are 0 and its parameters small enough; Adam would never forget such features."""
    spoilt, expected = Server(), Server()
    models = three(spoilt)
    liar = spoilt.model(1)
    for name, value in liar.items():
        if "head" in name:
            value[:] = 0
        elif "blocks.2.norm" in name:
            value[:] = 300
    with_liar = spoilt.round(1, {**models, "b": (liar, 2)})
    (refusal,) = spoilt.federation.history.log.refused
    assert refusal.client == "b"
    assert "the server's images get features of size" in refusal.reason
    del models["b"]
    assert equal_arrays(with_liar, expected.round(1, models))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (90.0, "its model is not used: the server's images get logits of"),
        (1e6, "its model has a root mean square of"),
        (np.nan, "holds NaN"),
    ],
)
def test_a_model_beyond_measure_is_refused_and_the_others_count(size: float, message: str) -> None:
    spoilt, expected = Server(), Server()
    models = three(spoilt)
    with_liar = spoilt.round(1, {**models, "b": (spoilt.model(1, size), 2)})
    (refusal,) = spoilt.federation.history.log.refused
    assert (refusal.node, refusal.client) == ("m", "b")
    assert message in refusal.reason
    del models["b"]
    assert equal_arrays(with_liar, expected.round(1, models))


def test_the_order_of_clients_does_not_matter() -> None:
    servers = Server(), Server()
    models = []
    for server, reverse in zip(servers, (False, True), strict=True):
        models.append(server.round(1, dict(sorted(three(server).items(), reverse=reverse))))
    assert equal_arrays(*models)


def test_more_models_than_fit_are_refused_before_anybody_trains() -> None:
    server = Server(**{"model.width": 64, "model.representation-dim": 512})
    with pytest.raises(FederationError, match=r"most-megabytes = 1: .* 3 clients, \d+ values each"):
        Server(
            **{"model.width": 64, "model.representation-dim": 512, "aggregation.most-megabytes": 1}
        ).round(1, {})
    assert server.round(1, three(server))


def test_a_run_without_steps_is_fedavgs_and_costs_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(AUXILIARY, raising=False)
    small = {"rounds": 2, "local-epochs": 1, "data.partition.reserve-per-class": 4}
    runs = {
        method: SmallRuns("classification", method, tmp_path / method, **small, **NO_STEPS).run(
            "r", 2
        )
        for method in ("fedic", "fedavg")
    }
    deviation = apart(*(results(run) for run in runs.values()), TOLERANCE)
    assert deviation.held, deviation
    parameters = [
        [(line["parameters_up"], line["parameters_down"]) for line in read_rounds(run)]
        for run in runs.values()
    ]
    assert parameters[0] == parameters[1]


def test_what_would_own_every_mean_is_bounded() -> None:
    logits = torch.tensor([[[2.0, float("nan")], [-math.inf, 3e38]]])
    bounded = Judgement(logits, -logits).bounded()
    expected = torch.tensor([[[2.0, 0.0], [-LARGEST_LOGIT, LARGEST_LOGIT]]])
    assert torch.equal(bounded.logits, expected)
    assert torch.equal(bounded.features, -expected)
