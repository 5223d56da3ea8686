"""FedDA: statistics once, clusters, the quasi-global start, attention, refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import DataError, FederationError, SettingsError
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.round import ClientReply, Round, SentModel
from fedproto_app.core.sends import Expected
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.shape import DataShape
from fedproto_app.data.windows import ClientWindows, make_windows, shortest_length
from fedproto_app.report.runs import read_rounds, read_run
from fedproto_app.server.federation import Federation
from fedproto_app.settings import Settings, settings_from
from fedproto_app.tasks.forecasting.task import CohortSamples, ForecastingTask
from fedproto_app.tasks.table import make_task
from fedproto_compared.fedda import strategy as module
from fedproto_compared.fedda.learner import (
    STATISTICS,
    WEEKS,
    weekly_statistics,
    weeks_needed,
)
from fedproto_compared.fedda.strategy import (
    FedDaStrategy,
    attended,
    centroids,
    nearest,
    quasi_global_model,
    two_view_clusters,
)
from tests.helpers.local_grid import run_locally, small_settings, synthetic_nodes
from tests.helpers.tiny_cohort import NAMES, PERIOD, tiny_cohort, tiny_learner
from tests.strategies.server_half import admit, refusals, server_of

# --- the client's half ---------------------------------------------------------------------------


QUESTION = Guidance(options={WEEKS: 2.0})


def test_a_question_is_answered_with_statistics_and_each_clients_own_noise() -> None:
    """The noise is the same every time."""
    plain = tiny_learner("fedda", **{"fedda.week": 2})
    noisy = tiny_learner("fedda", **{"fedda.week": 2, "fedda.statistics-noise": 0.5})
    without, first, repeated = (
        learner.answer(tiny_cohort(learner), QUESTION).arrays[STATISTICS]
        for learner in (plain, noisy, noisy)
    )
    assert without.shape == (len(NAMES), 2, PERIOD)
    expected = weekly_statistics(tiny_cohort(plain).samples, 2, 2)
    np.testing.assert_array_equal(without, expected)
    np.testing.assert_array_equal(first, repeated)
    noise = first - without
    assert noise.std() == pytest.approx(0.5, rel=0.6)
    assert not np.allclose(noise[0], noise[1])


# --- the server's half ---------------------------------------------------------------------------

CLIENTS = "abcdef"
HOURS = np.arange(2 * 24).reshape(2, 24) * np.pi / 12
# Two weeks of each client: days of two kinds, shifted a little.
WEEKLY = {
    name: np.sin(HOURS + row / 20 + (np.pi if row > 3 else 0)).astype(np.float32)
    for row, name in enumerate(CLIENTS)
}


def server(periods: dict[str, int] | None = None, **changes: Any) -> FedDaStrategy:
    """periods: on which some clients train. The others train on 14."""
    small = {"data.close-window": 3, "data.periodic-window": 1, "model.representation-dim": 4}
    small |= {"method": "fedda", "fedda.warm-up-epochs": 2}
    settings = settings_from({**small, **changes})
    federation = Federation(settings, "run", "token")
    for name in CLIENTS:
        admit(federation, name, name.upper(), 24 * (periods or {}).get(name, 14))
    strategy = FedDaStrategy(settings, federation)
    strategy.model = strategy.initial_arrays()
    return strategy


def begin(
    strategy: FedDaStrategy, number: int = 1, lies: dict[str, float] | None = None
) -> tuple[Round, list[str]]:
    """Begin a round with some clients' statistics multiplied, and name the clients asked."""
    names: list[str] = []

    def ask(keys: list[ClientKey], guide: Any, expected: Expected, **_: bool) -> list[ClientReply]:
        assert expected.per_client == {STATISTICS: (2, 24)}
        assert guide(keys) == Guidance(options={WEEKS: 2.0})
        names.extend(key.client for key in keys)
        return [
            ClientReply(
                k, 9, {STATISTICS: WEEKLY[k.client] * np.float32((lies or {}).get(k.client, 1))}
            )
            for k in keys
        ]

    round_ = Round(number, strategy.federation.members.facts)
    strategy.federation.asking = lambda server_round: ask  # type: ignore[method-assign]
    strategy.begin(round_)
    return round_, names


def averaged(strategy: FedDaStrategy, moved: dict[str, float]) -> tuple[Arrays, Round]:
    """Return the next model after clients return the model that was sent, plus a number."""
    models = [
        SentModel(
            ClientKey(n, n.upper()),
            1,
            1,
            {k: v + np.float32(shift) for k, v in strategy.model.items()},
        )
        for n, shift in moved.items()
    ]
    round_ = Round()
    strategy.model = strategy.average(models, round_)
    return strategy.model, round_


def test_a_run_asks_once_and_counts_it_apart(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, method="fedda", rounds=2)
    folder, grid = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    kinds = [message.metadata.message_type for message in grid.sent]
    assert kinds.count("query.question") == 2
    first, second = read_rounds(folder.path)
    drawn = make_task(settings, DataShape()).initial_parameters()
    size = sum(value.numel() for value in drawn.values())
    weeks = int(first["figures"]["statistics_weeks"])
    assert first["parameters_up_once"] == 8 * weeks * 24
    assert first["parameters_up"] == 8 * (size + weeks * 24)
    assert (second["parameters_up"], second["parameters_up_once"]) == (8 * size, 0)
    summary = read_run(folder.path).summary
    assert summary["parameters_up_per_client_round"] == size
    assert summary["parameters_up_once"] == 8 * weeks * 24


def test_every_client_is_asked_once_and_training_begins_with_the_quasi_global_model() -> None:
    strategy = server(**{"fedda.clusters": 2})
    drawn = strategy.initial_arrays()
    round_, names = begin(strategy)
    assert names == [*CLIENTS]
    assert round_.figures["traffic_clusters"] == 2
    assert not np.array_equal(strategy.model["decoder.weight"], drawn["decoder.weight"])
    members = strategy.findings()["traffic-clusters"]
    assert members["names"].tolist() == [*CLIENTS]
    assert (
        members["clusters"].tolist() == [members["clusters"][0]] * 4 + [members["clusters"][4]] * 2
    )
    assert begin(strategy, 2)[1] == []
    before = strategy.model
    assert averaged(strategy, {})[0] is before  # without any usable reply the model stays


def test_models_are_joined_within_clusters_and_then_between() -> None:
    strategy = server(**{"fedda.clusters": 2})
    begin(strategy)
    moved = {name: 0.1 * (number + 1) for number, name in enumerate(CLIENTS)}
    quasi = strategy.model
    model, anchors = quasi, [quasi, quasi]

    def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(value) for name, value in arrays.items()}

    def joined(models: list[Arrays], start: Arrays) -> Arrays:
        stacked = {name: np.stack([member[name] for member in models]) for name in quasi}
        step = attended(tensors(stacked), tensors(start), tensors(quasi), 1.0, 0.2)
        return {name: value.numpy() for name, value in step.items()}

    for _ in range(2):
        clusters = []
        for place, names in enumerate(("abcd", "ef")):
            shifted = [{k: v + np.float32(moved[n]) for k, v in model.items()} for n in names]
            clusters.append(joined(shifted, anchors[place]))
        anchors, model = clusters, joined(clusters, model)
        new_model, _ = averaged(strategy, moved)
        for name, value in model.items():
            np.testing.assert_allclose(new_model[name], value, rtol=1e-5, atol=1e-6)


def test_a_model_far_from_the_others_changes_nothing() -> None:
    honest = dict.fromkeys("abcde", 0.01)
    with_liar, without = server(), server()
    for strategy in (with_liar, without):
        begin(strategy)
    model, round_ = averaged(with_liar, {**honest, "f": 1e30})
    expected, _ = averaged(without, honest)
    for name, value in expected.items():
        np.testing.assert_array_equal(model[name], value)
    reason = refusals(round_)["f"]
    assert reason.startswith("its model is not used: its distance from the shared model is")


def test_statistics_that_are_not_standardised_are_refused_and_asked_for_again() -> None:
    strategy = server()
    round_, _ = begin(strategy, lies={"c": 1e10})
    assert refusals(round_) == {"c": "its statistics have mean square 5e+19, more than 2"}
    clients = strategy.federation.members.clients()
    assert [key.client for key in strategy.eligible(clients)] == [*"abdef"]
    assert begin(strategy, 2)[1] == ["c"]  # as a newcomer, it goes to the nearest cluster
    assert strategy.eligible(clients) == clients


def test_a_short_history_is_refused_with_the_length_that_it_needs() -> None:
    strategy = server({"e": 13})
    round_, _ = begin(strategy)
    assert refusals(round_)["e"] == (
        "it trains on 13 periods; method = 'fedda' needs 14 periods to train on, which a series of "
        "504 steps has: 2 weeks of fedda.week = 7 periods, for a look-back of 24 steps (1 periodic "
        "values at period 24)"
    )
    assert len(strategy.eligible(strategy.federation.members.clients())) == 5


def test_where_every_history_is_too_short_the_run_does_not_begin() -> None:
    with pytest.raises(FederationError, match=r"no client has statistics .* 14 periods"):
        begin(server(dict.fromkeys(CLIENTS, 9)))
    with pytest.raises(SettingsError, match=r"data.history = 27: method = 'fedda' needs 28 per"):
        server_of("fedda", **{"data.history": 27})


def test_places_of_the_clients_count_where_the_graph_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_places: list[Any] = []

    def clusters(patterns: Any, places: Any, number: int, seed: int) -> Any:
        seen_places.append(places)
        return two_view_clusters(patterns, places, number, seed)

    monkeypatch.setattr(module, "two_view_clusters", clusters)
    path = tmp_path / "places.csv"
    lines = [f"{name},{number},{-number}" for number, name in enumerate(CLIENTS)]
    path.write_text("\n".join(["name,x,y", *lines]))
    for graph in ({}, {"graph.source": "positions", "graph.path": str(path)}):
        begin(server(**graph))
    assert seen_places[0] is None
    assert seen_places[1].tolist() == [[number, -number] for number in range(len(CLIENTS))]


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
    """A statistic t is followed by t + 1, and a window at t has t − 2, t − 1 and t − 4."""
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


# --- the maths ------------------------------------------------------------------------------------


SETTINGS = settings_from(
    {"data.period": 4, "data.close-window": 2, "data.periodic-window": 2, "data.train-share": 0.8}
)
TASK = ForecastingTask(SETTINGS)


def client(values: np.ndarray, name: str = "a") -> ClientWindows:
    return make_windows(ClientSeries(name, values), SETTINGS.data)


def gathered(*clients: ClientWindows) -> CohortSamples:
    return TASK.gather(list(clients), 1)


def test_by_hand() -> None:
    """Day d of four has the values d + phase / 10. Eight of the 60 values are look-back, 41 train.
    Batch s of the ten has phase 0 of day 3 + s and the other phases of the day before. Three weeks
    of three batches are s = 1 … 9."""
    values = np.add.outer(np.arange(15.0), [0.0, 0.1, 0.2, 0.3]).ravel()
    statistics = weekly_statistics(gathered(client(values)), 3, 3)
    means = np.add.outer([2.0, 5.0, 8.0], [3.0, 2.1, 2.2, 2.3])
    expected = (means - means.mean()) / means.std()
    np.testing.assert_allclose(statistics[0], expected, rtol=1e-4)
    assert statistics.square().mean().item() == pytest.approx(1)


def test_nothing_after_the_train_part_counts() -> None:
    values = np.random.default_rng(0).normal(size=60)
    train_end = client(values).train_end + 8
    changed = np.concatenate([values[:train_end], values[train_end:] + 100])
    first, second = (weekly_statistics(gathered(client(v)), 2, 3) for v in (values, changed))
    assert torch.equal(first, second)


def test_missing_values_do_not_count_and_cohorts_equal_their_clients() -> None:
    values = np.random.default_rng(0).normal(size=(2, 80))
    gaps = values[0].copy()
    gaps[20:24] = np.nan
    long, short = client(gaps, "long"), client(values[1][:60], "short")
    statistics = weekly_statistics(gathered(long, short), 3, 3)
    for row, windows in enumerate((long, short)):
        torch.testing.assert_close(statistics[row], weekly_statistics(gathered(windows), 3, 3)[0])
    samples = gathered(long)
    guessed = replace(samples, targets=torch.where(samples.present > 0, samples.targets, 1e6))
    assert torch.equal(weekly_statistics(guessed, 3, 3), weekly_statistics(samples, 3, 3))


def test_a_constant_client_has_zeros_and_a_short_one_is_an_error() -> None:
    samples = gathered(client(np.full(60, 7.0)))
    assert not weekly_statistics(samples, 3, 3).any()
    with pytest.raises(DataError, match="client 'a' trains on 10 periods, not on 12"):
        weekly_statistics(samples, 4, 3)


@pytest.mark.parametrize(
    ("changes", "weeks"), [({}, 4), ({"periodic_window": 1}, 2), ({"horizon": 24}, 4)]
)
def test_as_many_weeks_as_hold_a_window_are_needed(changes: dict[str, int], weeks: int) -> None:
    data = settings_from({}).data.model_copy(update=changes)
    assert weeks_needed(data) == weeks
    length = shortest_length(data, 7 * weeks)
    rng = np.random.default_rng(0)
    windows = [
        make_windows(ClientSeries("a", rng.normal(size=n)), data) for n in (length, length - 1)
    ]
    assert [len(client_windows.batches) for client_windows in windows] == [7 * weeks, 7 * weeks - 1]


THREE = np.repeat([0, 1, 2], 4)
NOISE = np.random.default_rng(0).normal(scale=0.1, size=(12, 5))
PATTERNS = NOISE + 10 * np.eye(3, 5)[THREE]


def test_separate_patterns_are_found_with_and_without_places() -> None:
    places = np.array([[0.0, 0.0], [0.0, 50.0], [50.0, 0.0]])[THREE] + NOISE[:, :2]
    for where in (None, places):
        assert two_view_clusters(PATTERNS, where, 3).tolist() == THREE.tolist()
    mixed = np.random.default_rng(1).permutation(12)
    repeated = two_view_clusters(PATTERNS[mixed], None, 3)
    for label in range(3):
        assert len(set(THREE[mixed][repeated == label])) == 1


def test_labels_are_those_of_the_patterns_after_a_turn_through_the_places() -> None:
    """Patterns on a line, cut anywhere by themselves. The places put the cut in the middle."""
    patterns = np.arange(8.0)[:, None]
    places = np.array([[0.0, 0.0]] * 4 + [[9.0, 9.0]] * 4) + 0.01 * np.arange(8)[:, None]
    assert two_view_clusters(patterns, places, 2).tolist() == [0] * 4 + [1] * 4


def test_equal_points_leave_fewer_clusters() -> None:
    assert two_view_clusters(np.ones((4, 2)), np.ones((4, 2)), 3).tolist() == [0] * 4
    twice = np.repeat(np.eye(2), 2, axis=0)
    assert two_view_clusters(twice, np.ones((4, 2)), 2).tolist() == [0] * 4
    assert two_view_clusters(np.ones((1, 2)), None, 1).tolist() == [0]


def test_newcomers_go_to_the_nearest_centroid() -> None:
    centres = centroids(PATTERNS, THREE)
    np.testing.assert_allclose(centres[1], PATTERNS[4:8].mean(axis=0))
    assert nearest(PATTERNS + 0.5, centres).tolist() == THREE.tolist()


def stepped_value(
    clients: list[float], anchor: float, quasi: float, step: float, pull: float
) -> float:
    """Return the anchor's only number after a step of attention."""
    stacked = {"w": torch.tensor(clients).unsqueeze(1)}
    single = ({"w": torch.tensor([value])} for value in (anchor, quasi))
    return attended(stacked, *single, step, pull)["w"].item()


def test_one_tensor_by_hand() -> None:
    """α = softmax(1, 3) = (0.1192, 0.8808), ω = 1: 0.1192 + 3·0.8808 + 0.2·2."""
    assert stepped_value([1.0, 3.0], 0.0, 2.0, 1.0, 0.2) == pytest.approx(3.1616, abs=1e-4)
    assert stepped_value([1.0, 3.0], 0.0, 2.0, 0.5, 0.2) == pytest.approx(3.1616 / 2, abs=1e-4)
    # Equal models without pull are the result, and nothing pulls where the anchor is quasi-global.
    assert stepped_value([3.0, 3.0, 3.0], -1.0, 7.0, 1.0, 0.0) == 3
    assert stepped_value([3.0, 3.0], -1.0, -1.0, 1.0, 0.3) == 3


def test_several_tensors_word_by_word() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (2, 3), "b": (4,)}
    anchor, quasi, *clients = (
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        for _ in range(5)
    )
    stacked = {
        name: torch.stack([client_model[name] for client_model in clients]) for name in shapes
    }
    stepped = attended(stacked, anchor, quasi, 0.7, -0.3)
    far = {name: math.exp((anchor[name] - quasi[name]).norm()) for name in shapes}
    for name in shapes:
        weights = [math.exp((anchor[name] - client_model[name]).norm()) for client_model in clients]
        expected = anchor[name].clone()
        for weight, client_model in zip(weights, clients, strict=True):
            expected -= 0.7 * weight / sum(weights) * (anchor[name] - client_model[name])
        share = far[name] / sum(far.values())
        expected -= 0.7 * -0.3 * share * (anchor[name] - quasi[name])
        torch.testing.assert_close(stepped[name], expected)
