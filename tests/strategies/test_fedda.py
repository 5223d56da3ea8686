"""FedDA's server: statistics once, clusters, the quasi-global start, attention, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message

from fedproto_app.core.clients import ClientKey, keys_in
from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.core.messages import Reply
from fedproto_app.core.wire import array_record, numpy_arrays
from fedproto_app.report.runs import read_rounds, read_run
from fedproto_app.server.federation import Federation
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.compared.fedda import strategy as module
from fedproto_app.strategies.compared.fedda.learner import STATISTICS
from fedproto_app.strategies.compared.fedda.strategy import (
    FedDaStrategy,
    attended,
    quasi_global_model,
    two_view_clusters,
)
from fedproto_app.tasks.forecasting.task import ForecastingTask
from tests.local_grid import LocalGrid, run_locally, small_settings, synthetic_nodes

Server = tuple[FedDaStrategy, LocalGrid]


def prepared(tmp_path: Path, **changes: Any) -> Server:
    """The server of a small run, and its two nodes."""
    settings = small_settings(tmp_path, method="fedda", **changes)
    grid = LocalGrid(settings, synthetic_nodes(2, tmp_path / "state"))
    federation = Federation(settings, "run", "token")
    federation.members.await_nodes(grid)
    return FedDaStrategy(settings, settings.method_settings, federation), grid


def after_first_orders(tmp_path: Path, **changes: Any) -> Server:
    """The server after it received the statistics and wrote the orders of round 1."""
    strategy, grid = prepared(tmp_path, **changes)
    orders(strategy, grid, 1)
    return strategy, grid


def orders(strategy: FedDaStrategy, grid: LocalGrid, server_round: int) -> list[Message]:
    model = array_record(strategy.initial_arrays())
    return list(strategy.configure_train(server_round, model, ConfigRecord(), grid))


def answer(strategy: FedDaStrategy, models: dict[ClientKey, dict[str, np.ndarray]]) -> Reply:
    (node,) = {key.node for key in models}
    names = [key.client for key in models]
    arrays = {
        name: np.stack([model[name] for model in models.values()])
        for name in strategy.initial_arrays()
    }
    return Reply(names, [1] * len(names), arrays=arrays, node=node)


def aggregated(
    strategy: FedDaStrategy, monkeypatch: pytest.MonkeyPatch, moved: dict[ClientKey, float]
) -> dict[str, np.ndarray]:
    """Return the next model after clients return the model that was sent, plus a constant."""
    start = answered(strategy, monkeypatch, {}) if moved else {}
    models = {
        key: {name: value + np.float32(shift) for name, value in start.items()}
        for key, shift in moved.items()
    }
    return answered(strategy, monkeypatch, models)


def answered(
    strategy: FedDaStrategy,
    monkeypatch: pytest.MonkeyPatch,
    models: dict[ClientKey, dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Return the next model after these models arrive."""
    nodes = sorted({key.node for key in models})
    of_node = [{key: models[key] for key in models if key.node == node} for node in nodes]
    answers = [answer(strategy, node_models) for node_models in of_node]
    with monkeypatch.context() as patch:
        patch.setattr(strategy.federation.pipeline, "read", lambda *_: answers)
        record, _ = strategy.aggregate_train(1, [])
    assert record is not None
    strategy.model = numpy_arrays(record)  # as the next round begins
    return strategy.model


def test_a_run_asks_once_counts_it_apart_and_begins_with_the_quasi_global_model(
    tmp_path: Path,
) -> None:
    settings = small_settings(tmp_path, method="fedda", rounds=2)
    folder, grid = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    kinds = [message.metadata.message_type for message in grid.sent]
    assert kinds.count("query.question") == 2
    first, second = read_rounds(folder.path)
    size = sum(value.size for value in model_sent(grid, "1").values())
    weeks = int(first["figures"]["statistics_weeks"])
    assert first["parameters_up_once"] == 8 * weeks * 24
    assert first["parameters_up"] == 8 * (size + weeks * 24)
    assert (second["parameters_up"], second["parameters_up_once"]) == (8 * size, 0)
    summary = read_run(folder.path).summary
    assert summary["parameters_up_per_client_round"] == size
    assert summary["parameters_up_once"] == 8 * weeks * 24
    clusters = dict(np.load(folder.path / "traffic-clusters.npz"))
    assert len(clusters["names"]) == 8
    assert set(clusters["clusters"]) == set(range(int(first["figures"]["traffic_clusters"])))

    strategy, second_grid = prepared(tmp_path / "again")
    drawn = strategy.initial_arrays()
    (message, _) = orders(strategy, second_grid, 1)
    started = numpy_arrays(message.content.array_records["arrays"])
    sent_model = model_sent(grid, "1")
    assert all(np.array_equal(started[name], value) for name, value in sent_model.items())
    assert not np.array_equal(sent_model["decoder.weight"], drawn["decoder.weight"])


def model_sent(grid: LocalGrid, server_round: str) -> dict[str, np.ndarray]:
    trained = [
        message.metadata for message in grid.sent if message.metadata.message_type == "train"
    ]
    assert trained
    return next(
        numpy_arrays(message.content.array_records["arrays"])
        for message in grid.sent
        if message.metadata.message_type == "train" and message.metadata.group_id == server_round
    )


def test_each_round_a_client_sends_its_model() -> None:
    settings = settings_from({"method": "fedda"})
    spec = FedDaStrategy(
        settings, settings.method_settings, Federation(settings, "run", "token")
    ).expected(1)
    assert spec.values(Reply(["a"], [1])) == 100_865


@pytest.mark.parametrize("anchor", ["last", "quasi-global"])
def test_models_are_joined_within_clusters_and_then_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anchor: str
) -> None:
    changes = {"fedda.clusters": 2, "fedda.cluster-anchor": anchor}
    strategy, _ = after_first_orders(tmp_path, **changes)
    members = strategy.findings()["traffic-clusters"]
    label_of = {
        ClientKey(name, node): label for name, node, label in zip(*members.values(), strict=True)
    }
    assert len(set(label_of.values())) == 2
    moved = {key: 0.1 * (number + 1) for number, key in enumerate(sorted(label_of))}
    quasi = aggregated(strategy, monkeypatch, {})
    model, anchors = quasi, dict.fromkeys((0, 1), quasi)

    def tensors(model_arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(value) for name, value in model_arrays.items()}

    for _ in range(2):
        expected = []
        for label in (0, 1):
            shifts = [np.float32(shift) for key, shift in moved.items() if label_of[key] == label]
            stacked = {n: np.stack([v + shift for shift in shifts]) for n, v in model.items()}
            joined = attended(tensors(stacked), tensors(anchors[label]), tensors(quasi), 1.0, 0.2)
            expected.append({name: value.numpy() for name, value in joined.items()})
        anchors = dict(enumerate(expected)) if anchor == "last" else anchors
        between = {
            name: np.stack([model_arrays[name] for model_arrays in expected]) for name in model
        }
        joined = attended(tensors(between), tensors(model), tensors(quasi), 1.0, 0.2)
        new_model = aggregated(strategy, monkeypatch, moved)
        model = {name: value.numpy() for name, value in joined.items()}
        for name, value in model.items():
            np.testing.assert_allclose(new_model[name], value, rtol=1e-5, atol=1e-6)
    restored, grid = prepared(tmp_path / "restored", **changes)
    restored.restore(strategy.state())
    restored.configure_train(3, array_record(new_model), ConfigRecord(), grid)
    after = [aggregated(model_arrays, monkeypatch, moved) for model_arrays in (strategy, restored)]
    for name, value in after[0].items():
        np.testing.assert_array_equal(after[1][name], value)


def test_without_any_usable_reply_the_model_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, _ = after_first_orders(tmp_path)
    averaged = aggregated(strategy, monkeypatch, {})
    assert not np.array_equal(
        averaged["decoder.weight"], strategy.initial_arrays()["decoder.weight"]
    )


def test_a_model_far_from_the_others_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = after_first_orders(tmp_path / "first")
    second, _ = after_first_orders(tmp_path / "second")
    keys = sorted(first.federation.members.clients())
    honest = dict.fromkeys(keys[:5], 0.01)
    expected = aggregated(first, monkeypatch, honest)
    with_liar = aggregated(second, monkeypatch, {**honest, keys[5]: 1e30})
    for name, value in expected.items():
        np.testing.assert_array_equal(with_liar[name], value)
    (refusal,) = second.federation.history.log.refused
    assert (refusal.client, refusal.node) == keys[5]
    assert refusal.reason.startswith("its model is not used: its distance from the one sent is")


def told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, liar: int, factor: float
) -> tuple[FedDaStrategy, LocalGrid, ClientKey]:
    """Round 1 where one client's statistics are multiplied."""
    strategy, grid = prepared(tmp_path)
    real = strategy.federation.pipeline.question
    key = sorted(strategy.federation.members.clients())[liar]

    def question(*arguments: Any, **options: Any) -> list[Reply]:
        answers = real(*arguments, **options)
        for reply in answers:
            for row, reply_key in enumerate(keys_in(reply)):
                if reply_key == key:
                    reply.arrays[STATISTICS][row] *= factor
        return answers

    monkeypatch.setattr(strategy.federation.pipeline, "question", question)
    orders(strategy, grid, 1)
    return strategy, grid, key


def test_statistics_that_are_not_standardised_are_refused_and_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, grid, liar = told_of(tmp_path, monkeypatch, 2, 1e10)
    (refusal,) = strategy.federation.history.log.refused
    assert (refusal.client, refusal.node) == liar
    assert refusal.reason == "its statistics have mean square 1e+20, more than 2"
    clients = strategy.federation.members.clients()
    assert strategy.eligible(clients) == [key for key in clients if key != liar]
    monkeypatch.undo()
    strategy.federation.history.begin_round(2)
    orders(strategy, grid, 2)  # as a newcomer, it goes to the nearest cluster
    assert strategy.eligible(clients) == clients
    kinds = [message.metadata.message_type for message in grid.sent]
    assert kinds.count("query.question") == 3


def test_a_short_history_is_refused_with_the_length_that_it_needs(tmp_path: Path) -> None:
    strategy, _ = after_first_orders(tmp_path, **{"data.synthetic.days": 21})
    (refusal,) = strategy.federation.history.log.refused
    assert refusal.reason == (
        "it trains on 13 periods; method = 'fedda' needs 14 periods to train on, which a series of "
        "504 steps has: 2 weeks of fedda.week = 7 periods, for a look-back of 24 steps (1 periodic "
        "values at period 24)"
    )
    clients = strategy.federation.members.clients()
    assert len(strategy.eligible(clients)) == len(clients) - 1


def test_where_every_history_is_too_short_the_run_does_not_begin(tmp_path: Path) -> None:
    strategy, grid = prepared(tmp_path, **{"data.synthetic.days": 14})
    with pytest.raises(FederationError, match=r"no client has statistics .* 14 periods"):
        orders(strategy, grid, 1)
    assert len(strategy.federation.history.log.refused) == 8  # each client with its reason
    settings = settings_from({"method": "fedda", "data.history": 27})
    with pytest.raises(SettingsError, match=r"data.history = 27: method = 'fedda' needs 28 per"):
        FedDaStrategy(settings, settings.method_settings, Federation(settings, "run", "token"))


def test_places_of_the_clients_count_where_the_graph_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_places: list[Any] = []

    def clusters(patterns: Any, places: Any, number: int, seed: int) -> Any:
        seen_places.append(places)
        return two_view_clusters(patterns, places, number, seed)

    monkeypatch.setattr(module, "two_view_clusters", clusters)
    plain, _ = after_first_orders(tmp_path / "plain")
    names = [key.client for key in plain.federation.members.clients()]
    path = tmp_path / "places.csv"
    lines = [f"{name},{number},{-number}" for number, name in enumerate(names)]
    path.write_text("\n".join(["name,x,y", *lines]))
    after_first_orders(
        tmp_path / "placed", **{"graph.source": "positions", "graph.path": str(path)}
    )
    assert seen_places[0] is None
    assert seen_places[1].tolist() == [[number, -number] for number in range(len(names))]


# --- the quasi-global model ---------------------------------------------------------------------


def forecasting(**changes: Any) -> Settings:
    small = {"method": "fedda", "data.period": 4, "data.close-window": 2, "data.periodic-window": 1}
    return settings_from({**small, "model.representation-dim": 4, **changes})


def learned(statistics: np.ndarray, **changes: Any) -> tuple[dict[str, np.ndarray], float]:
    settings = forecasting(**changes)
    task = ForecastingTask(settings)
    start = {name: value.numpy() for name, value in task.initial_parameters().items()}
    return quasi_global_model(task, start, statistics, settings.method_settings)


WAVES = np.sin(np.arange(48) * np.pi / 2 + np.array([[0.0], [0.3]])).reshape(2, 12, 4)
WAVES = WAVES.astype(np.float32)


def test_the_quasi_global_model_learns_from_the_statistics() -> None:
    start, _ = learned(WAVES, **{"fedda.warm-up-epochs": 0})
    initial = ForecastingTask(forecasting()).initial_parameters()
    assert all(np.array_equal(start[name], value) for name, value in initial.items())
    rate = {"fedda.warm-up-rate": 0.01}
    _, early_loss = learned(WAVES, **rate, **{"fedda.warm-up-epochs": 1})
    _, late_loss = learned(WAVES, **rate, **{"fedda.warm-up-epochs": 100})
    assert late_loss < 0.2 * early_loss
    first, _ = learned(WAVES, **{"fedda.warm-up-epochs": 3})
    second, _ = learned(WAVES, **{"fedda.warm-up-epochs": 3})
    assert all(np.array_equal(first[name], value) for name, value in second.items())


def test_it_sees_windows_as_of_a_series_and_a_share_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A statistic t is followed by t + 1; a window at t has t − 2, t − 1 and t − 4."""
    batches: list[Any] = []
    monkeypatch.setattr(
        ForecastingTask,
        "represent",
        lambda self, parameters, batch: (
            batches.append(batch),
            self.encode(parameters, batch.inputs),
        )[1],
    )
    statistics = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    changes = {"fedda.warm-up-epochs": 1, "data.calendar": "phase", "data.horizon": 2}
    learned(statistics, **changes)
    rows = torch.cat(
        [torch.cat([batch_seen.inputs[0], batch_seen.targets[0]], dim=1) for batch_seen in batches]
    )
    rows = rows[rows[:, -1].argsort()]
    expected = [[t - 2, t - 1, t - 4, t - 3, t % 4, t, t + 1] for t in range(4, 15)]
    np.testing.assert_array_equal(rows, expected)
    batches.clear()
    learned(statistics, **changes, **{"fedda.warm-up-share": 0.3})
    assert [batch_seen.inputs.shape[1] for batch_seen in batches] == [3]  # of 11
