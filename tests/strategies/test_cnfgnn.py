"""CNFGNN's rounds: the gradient by messages, what they cost, and whom the server believes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, Message
from safetensors.torch import load_file
from torch import Tensor

from fedproto_app.core.clients import ClientFacts, ClientKey
from fedproto_app.core.errors import FederationError, FedProtoError
from fedproto_app.core.messages import SampleTimes
from fedproto_app.data.windows import ClientWindows
from fedproto_app.engine.local import nodes_sharing
from fedproto_app.maths.losses import prediction_loss
from fedproto_app.report.runs import read_rounds
from fedproto_app.serving import require_forecasts
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.strategies.compared.cnfgnn import strategy as cnfgnn
from fedproto_app.strategies.compared.cnfgnn.learner import ENCODINGS, GRADIENT, CnfgnnLearner
from fedproto_app.strategies.compared.cnfgnn.models import GraphNetwork
from fedproto_app.strategies.compared.cnfgnn.strategy import (
    CnfgnnStrategy,
    Encoded,
    GraphLearning,
    Proposal,
)
from fedproto_app.tasks.table import load_shard, make_task
from tests.local_grid import run_locally, small_settings, synthetic_nodes
from tests.reported import fields_of
from tests.strategies.one_node import NAMES, NODE, one_node

HIDDEN = 4
SIZE = 3 * HIDDEN * (2 + HIDDEN + 2) + 6 * HIDDEN * (2 + 2 * HIDDEN + 2) + 2 * HIDDEN + 1


def settings_of(tmp_path: Path, **changes: Any) -> Settings:
    return small_settings(tmp_path, **{"method": "cnfgnn", "cnfgnn.hidden": HIDDEN, **changes})


def unequal(tmp_path: Path) -> Path:
    """Two clients of 20 days: the second begins two days late, and ends a day early."""
    hours = np.arange(24 * 20)
    late = np.cos(hours * np.pi / 12) * 3 + np.random.default_rng(0).normal(size=len(hours))
    rows = [
        f"{np.sin(hour * np.pi / 12):.6f},{late[hour] if 48 <= hour < 456 else ''}"
        for hour in hours
    ]
    path = tmp_path / "unequal.csv"
    path.write_text("\n".join(["early,late", *rows]) + "\n")
    return path


class Recorded:
    """The server's steps: encodings, the network's proposal, and the clients' gradient."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[Encoded, Proposal, Tensor]] = []
        propose, learn = GraphLearning.proposed, GraphLearning.learn
        encodings: list[Encoded] = []

        def proposed(learning: GraphLearning, encoded: Encoded, steps: Tensor) -> Proposal:
            encodings.append(encoded)
            return propose(learning, encoded, steps)

        def learned(learning: GraphLearning, proposal: Proposal, gradient: Tensor) -> None:
            self.steps.append((encodings[-1], proposal, gradient.clone()))
            slopes = torch.autograd.grad(
                [proposal.outputs],
                list(proposal.leaves.values()),
                [gradient],
                retain_graph=True,
                materialize_grads=True,
            )
            self.by_messages.append(slopes)
            learn(learning, proposal, gradient)

        self.by_messages: list[tuple[Tensor, ...]] = []
        monkeypatch.setattr(GraphLearning, "proposed", proposed)
        monkeypatch.setattr(GraphLearning, "learn", learned)
        all_batches = GraphLearning.batches

        def five_batches(
            learning: GraphLearning, encoded: Encoded, server_round: int
        ) -> list[Tensor]:
            """At the first times one client trains alone."""
            return [torch.arange(3), *list(all_batches(learning, encoded, server_round))[:5]]

        monkeypatch.setattr(GraphLearning, "batches", five_batches)


def test_the_gradient_by_messages_is_that_of_one_central_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients of other lengths, on two nodes, three time steps a step of the server."""
    settings = settings_of(
        tmp_path,
        **{
            "rounds": 1,
            "cnfgnn.server-batch": 3,
            "data.source": "wide-csv",
            "data.path": str(unequal(tmp_path)),
        },
    )
    recorded = Recorded(monkeypatch)
    nodes = nodes_sharing(settings.data, 2, tmp_path / "state")
    folder, _ = run_locally(settings, nodes)
    windows = load_shard(settings, 0, 1).clients.values()
    clients = [client for client in windows if isinstance(client, ClientWindows)]
    assert [client.start for client in clients] == [72, 48 + 72]
    learner = make_learner(settings, make_task(settings, load_shard(settings, 0, 1).shape))
    assert isinstance(learner, CnfgnnLearner)
    model = {
        n: v.unsqueeze(0) for n, v in load_file(folder.path / "model/global.safetensors").items()
    }

    steps_with_both = 0
    for (encoded, proposal, _), slopes in zip(recorded.steps, recorded.by_messages, strict=True):
        positions = encoded.first + proposal.steps
        leaves = {name: value.detach().requires_grad_() for name, value in proposal.leaves.items()}
        inputs, hidden, present = [], [], []
        for client in clients:
            places = (positions - client.start).clamp(0, len(client.targets) - 1)
            trained = torch.from_numpy(np.isin((positions - client.start).numpy(), client.batches))
            inputs.append((torch.from_numpy(client.inputs)[places][None], (positions % 24)[None]))
            none = torch.zeros(1, len(places), HIDDEN)
            guided = learner.model.guided(*inputs[-1], none)
            hidden.append(learner.model.encoding(model, guided)[0])
            present.append(trained)
        network = {name: leaf[0] for name, leaf in leaves.items()}
        presence = torch.stack(present, dim=1)
        answers = GraphNetwork(HIDDEN, HIDDEN).answers(
            network, torch.stack(hidden, dim=1), presence, encoded.graph
        )
        losses = []
        for row, client in enumerate(clients):
            guided = learner.model.guided(*inputs[row], answers[None, :, row])
            forecast = learner.model.predict(model, learner.model.encode(model, guided))
            places = (positions - client.start).clamp(0, len(client.targets) - 1)
            targets = torch.from_numpy(client.targets)[places][None]
            losses.append(prediction_loss(forecast, targets, presence[None, :, row, None].float()))
        clients_asked = int(presence.any(dim=0).sum())
        steps_with_both += clients_asked == 2
        loss = torch.cat(losses).sum() / clients_asked
        expected = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        largest = max(float(client.abs().max()) for client in expected)
        assert largest > 0.01
        for ours, central in zip(slopes, expected, strict=True):
            torch.testing.assert_close(ours, central, rtol=0, atol=1e-6)
    assert 0 < steps_with_both < len(recorded.steps)


def test_what_a_round_costs(tmp_path: Path) -> None:
    """8 clients have 14 days, and some begin later. Each trains on 7 days, from times 88 to 261
    overall; samples that no client trains on begin at 256, and the last is at 335."""
    settings = settings_of(tmp_path, **{"cnfgnn.server-batch": 50})
    folder, grid = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    trained, judged, trained_or_judged, profile = 261 - 88, 336 - 256, 336 - 88, 24
    first, *later = read_rounds(folder.path)
    assert first["figures"] == {"graph_steps": 4, "shortened_gradients": 0}
    up = SIZE + HIDDEN * trained_or_judged + HIDDEN * trained  # θ, h, ∂L/∂g
    # θ to train, to encode, to be judged; g and which times it is of; g to be judged.
    down = 3 * SIZE + (HIDDEN + 1) * trained + HIDDEN * judged
    assert first["parameters_up"] == 8 * (profile + up)
    assert first["parameters_down"] == 8 * down
    for line in later:
        assert line["parameters_up"] == 8 * up
        assert line["parameters_down"] == 8 * (down + HIDDEN * trained)  # g to train with
    kinds = [message.metadata.message_type for message in grid.sent if message_round(message) == 2]
    expected_kinds = ["train", *["query.question"] * 5, "evaluate"]
    assert kinds == [kind for kind in expected_kinds for _ in range(2)]


def message_round(message: Message) -> int:
    return int(message.metadata.group_id)


def test_a_kept_model_does_not_forecast_by_itself(tmp_path: Path) -> None:
    with pytest.raises(FedProtoError, match="'cnfgnn': a kept model forecasts nothing: its decod"):
        require_forecasts(settings_of(tmp_path))


def test_without_epochs_of_the_server_it_is_fedavg_of_the_model(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, **{"cnfgnn.server-epochs": 0, "rounds": 1})
    folder, grid = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    (line,) = read_rounds(folder.path)
    assert (line["parameters_up"], line["parameters_down"]) == (8 * SIZE, 2 * 8 * SIZE)
    assert "query.question" not in {message.metadata.message_type for message in grid.sent}
    assert line["test_mse"] > 0


def spoilt(name: str, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Any:
    """A tamper that changes such an array of a node's first client, from the first node."""

    def tamper(node_id: int, reply: Message) -> Message:
        record = reply.content.array_records.get("arrays")
        if node_id == 1000 and record is not None and name in record:
            values = record[name].numpy().copy()
            values[0] = change(values[0])
            record[name] = Array(values)
        return reply

    return tamper


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (ENCODINGS, lambda h: h * 1e3, "its encodings hold ±"),
        (ENCODINGS, lambda h: h * np.nan, "its 'encodings' holds NaN"),
        (GRADIENT, lambda g: g + np.nan, "its 'gradient' holds NaN"),
    ],
)
def test_what_cannot_be_true_is_refused_by_name(
    tmp_path: Path, name: str, change: Any, reason: str
) -> None:
    settings = settings_of(tmp_path, rounds=2)
    nodes = synthetic_nodes(2, tmp_path / "state")
    folder, grid = run_locally(settings, nodes, tamper=spoilt(name, change))
    for line in read_rounds(folder.path):
        assert {refusal["reason"][: len(reason)] for refusal in line["refused"]} == {reason}
        assert len({refusal["client"] for refusal in line["refused"]}) == 1
        assert line["test_mse"] < 10
    orders = [(message.metadata.message_type, fields_of(message)) for message in grid.sent]
    evaluated = sum(len(order["clients"]) for kind, order in orders if kind == "evaluate")
    guided = [len(order["guided"]) for kind, order in orders if kind == "train"]
    # Who has sent no encodings has no g to be judged with, nor to train with in the next round.
    assert evaluated == 2 * (7 if name == ENCODINGS else 8)
    assert guided == [0, 0, 3 if name == ENCODINGS else 4, 4]


def test_a_huge_gradient_is_shortened_to_those_of_the_others(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, rounds=1)
    nodes = synthetic_nodes(2, tmp_path / "state")
    tamper = spoilt(GRADIENT, lambda g: g * 1e4)
    (line,) = read_rounds(run_locally(settings, nodes, tamper=tamper)[0].path)
    assert line["figures"] == {"graph_steps": 4, "shortened_gradients": 4}
    assert line["test_mse"] < 10


def strategy_of(tmp_path: Path, times_of: dict[str, SampleTimes]) -> CnfgnnStrategy:
    settings = settings_of(tmp_path)
    federation = one_node(settings)
    for name, times in times_of.items():
        key = ClientKey(name, NODE)
        facts: ClientFacts = federation.members.facts[key]
        federation.members.facts[key] = replace(facts, times=times)
    return CnfgnnStrategy(settings, settings.method_settings, federation)


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (
            SampleTimes("300 seconds", 0, 4, 6),
            "its clock is '300 seconds', most clients have '3600 seconds'",
        ),
        (SampleTimes("3600 seconds", 0, 4, 2**60), "its samples begin or end far from"),
        (SampleTimes("3600 seconds", -61, 4, 6), "its samples begin or end far from"),
        (SampleTimes("3600 seconds", -60, 4, 66), None),
    ],
)
def test_a_client_of_another_time_is_refused_once_by_name(
    tmp_path: Path, late: SampleTimes, reason: str | None
) -> None:
    usual = dict.fromkeys(NAMES, SampleTimes("3600 seconds", 0, 4, 6))
    strategy = strategy_of(tmp_path, {**usual, "late": late})
    clients = strategy.federation.members.clients()
    for _ in range(2):
        eligible = [key.client for key in strategy.eligible(clients)]
        assert eligible == ([*NAMES, "late"] if reason is None else NAMES)
    refused = [
        (refusal.client, refusal.reason[: len(reason or "")])
        for refusal in strategy.federation.history.log.refused
    ]
    assert refused == ([] if reason is None else [("late", reason)])


def test_more_encodings_than_fit_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cnfgnn, "MOST_VALUES", 8 * 248 * HIDDEN - 1)
    told_of = r"encodings of 8 clients at 248 time steps, 4 values each, are more than 7935 values"
    with pytest.raises(FederationError, match=told_of):
        run_locally(settings_of(tmp_path), synthetic_nodes(1, tmp_path / "state"))


def test_sites_with_data_of_their_own_do_not_run_it(tmp_path: Path) -> None:
    node = {"data-source": "synthetic-traffic", "state-dir": str(tmp_path / "state")}
    told_of = "runs in a simulation only, .*: a client's model forecasts only with the server"
    with pytest.raises(FederationError, match=told_of):
        run_locally(settings_of(tmp_path), [node])
