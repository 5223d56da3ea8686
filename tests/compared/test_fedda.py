"""FedDA's weekly statistics, clusters of two views and dual attention, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproto_app.core.errors import DataError
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import ClientWindows, make_windows, shortest_length
from fedproto_app.settings import settings_from
from fedproto_app.tasks.forecasting.task import CohortSamples, ForecastingTask
from fedproto_compared.fedda.learner import weekly_statistics, weeks_needed
from fedproto_compared.fedda.strategy import (
    attended,
    centroids,
    nearest,
    two_view_clusters,
)

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
    Batch s of the ten has phase 0 of day 3 + s and the other phases of the day before; three weeks
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
    """Patterns on a line, cut anywhere by themselves; the places put the cut in the middle."""
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
    """Return the one number of the anchor after a step of attention."""
    stacked = {"w": torch.tensor(clients).unsqueeze(1)}
    single = ({"w": torch.tensor([value])} for value in (anchor, quasi))
    return attended(stacked, *single, step, pull)["w"].item()


def test_one_tensor_by_hand() -> None:
    """α = softmax(1, 3) = (0.1192, 0.8808), ω = 1: 0.1192 + 3·0.8808 + 0.2·2."""
    assert stepped_value([1.0, 3.0], 0.0, 2.0, 1.0, 0.2) == pytest.approx(3.1616, abs=1e-4)
    assert stepped_value([1.0, 3.0], 0.0, 2.0, 0.5, 0.2) == pytest.approx(3.1616 / 2, abs=1e-4)
    # Equal models without pull are the result; nothing pulls where the anchor is quasi-global.
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
