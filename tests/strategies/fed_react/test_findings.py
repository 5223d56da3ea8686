"""The stored clusters of the rounds, and what ``fed-react.smoothing`` chooses."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.core.clients import ClientFacts, ClientKey
from fedproto_app.core.round import Round
from fedproto_app.strategies.common import findings
from fedproto_app.strategies.common.findings import MOST_MATRICES, ClusterHistory
from fedproto_app.strategies.fed_react import FedReactSettings
from fedproto_app.strategies.fed_react.smoothing import (
    ForgettingMean,
    HeadSmoother,
    KalmanSmoothing,
    NoSmoothing,
    RunningMean,
)
from fedproto_app.strategies.fed_react.strategy import make_smoother

A, B, C = (ClientKey(name, "n") for name in "abc")
FACTS = {A: ClientFacts(4, "east", 0.0), B: ClientFacts(4, "west", 0.0), C: ClientFacts(4, "", 0.0)}


def square(value: float, size: int = 2) -> np.ndarray:
    return np.full((size, size), value, np.float32)


def test_before_the_first_round_there_is_nothing_to_find() -> None:
    assert ClusterHistory().findings([A], FACTS) == {}


def test_rounds_stand_one_below_the_other() -> None:
    history = ClusterHistory()
    history.add(Round(11, FACTS), {A: 0, B: 1}, square(0.1), 0.0)
    history.add(Round(12, FACTS), {A: 0, B: 1, C: 0}, square(0.2, 3), 0.25)
    artefact = history.findings([A, B, C], FACTS)["clusters"]
    assert artefact["names"].tolist() == ["a", "b", "c"]
    assert artefact["nodes"].tolist() == ["n", "n", "n"]
    assert artefact["groups"].tolist() == ["east", "west", ""]
    assert artefact["rounds"].tolist() == [11, 12]
    assert artefact["labels"].tolist() == [[0, 1, -1], [0, 1, 0]]  # c was not there yet
    np.testing.assert_array_equal(artefact["forgetting_factor"], [0.0, 0.25])
    np.testing.assert_array_equal(artefact["rand_index"], [1.0, np.nan])
    assert artefact["similarity_rounds"].tolist() == [11, 12]
    first, second = artefact["similarity"]
    np.testing.assert_array_equal(first[:2, :2], square(0.1))
    assert np.isnan(first[2]).all()
    assert np.isnan(first[:, 2]).all()
    np.testing.assert_array_equal(second, square(0.2, 3))


def test_what_is_kept_does_not_change_afterwards() -> None:
    history, labels, matrix = ClusterHistory(), {A: 0, B: 1}, square(0.5)
    history.add(Round(1, FACTS), labels, matrix)
    labels[A], matrix[:] = 7, 9
    artefact = history.findings([A, B], FACTS)["clusters"]
    assert artefact["labels"].tolist() == [[0, 1]]
    np.testing.assert_array_equal(artefact["similarity"][0], square(0.5))


def test_matrices_of_very_many_clients_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "MOST_SIMILAR", 2)
    history = ClusterHistory()
    history.add(Round(1, FACTS), {A: 0, B: 0}, square(0.5, 2))
    history.add(Round(2, FACTS), {A: 0, B: 0, C: 0}, square(0.5, 3))
    artefact = history.findings([A, B, C], FACTS)["clusters"]
    assert artefact["similarity_rounds"].tolist() == [1]
    assert artefact["rounds"].tolist() == [1, 2]


@given(rounds=st.integers(1, 300), first=st.integers(1, 20))
def test_the_first_the_newest_and_some_evenly_between_are_kept(rounds: int, first: int) -> None:
    history = ClusterHistory()
    for place in range(rounds):
        history.add(Round(first + place, FACTS), {C: 0}, square(place, 1))
    artefact = history.findings([C], FACTS)["clusters"]
    stored_rounds = artefact["similarity_rounds"] - first
    assert len(stored_rounds) <= MOST_MATRICES
    assert len(stored_rounds) >= min(rounds, MOST_MATRICES // 2)
    assert (stored_rounds[0], stored_rounds[-1]) == (0, rounds - 1)
    assert (
        artefact["similarity"][:, 0, 0].tolist() == stored_rounds.tolist()
    )  # each belongs to its round
    steps = np.diff(stored_rounds)
    assert len(set(steps[:-1].tolist())) <= 1
    assert (steps[-1:] <= steps[:1]).all()


# --- smoothing -----------------------------------------------------------------------------------


SMOOTHINGS = FedReactSettings.model_fields["smoothing"].annotation


def estimates(smoother: HeadSmoother) -> list[float]:
    return [smoother.update(np.array([head]), 0.5).item() for head in (3.0, 6.0, 0.0)]


def test_the_settings_choose() -> None:
    kinds = [NoSmoothing, RunningMean, ForgettingMean, KalmanSmoothing]
    chosen = [make_smoother(FedReactSettings(smoothing=name)) for name in get_args(SMOOTHINGS)]
    assert [type(smoother) for smoother in chosen] == kinds


def test_the_settings_reach_the_kalman_filter() -> None:
    settings = FedReactSettings(
        smoothing="kalman", process_variance=3, measurement_variance=1, em_iterations=3
    )
    assert estimates(make_smoother(settings)) == estimates(KalmanSmoothing(3, 1, 3))
