"""FEDIC's server: whose models it believes, what it learns of them, what it remembers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Arrays
from fedproto_app.core.round import Round, SentModel
from fedproto_app.experiments.invariants import TOLERANCE, SmallRuns, apart, results
from fedproto_app.report.runs import read_rounds
from fedproto_app.tasks.table import load_shard
from fedproto_compared.fedic.auxiliary import AUXILIARY
from fedproto_compared.fedic.strategy import LARGEST_LOGIT, FedicStrategy, Judgement
from tests.helpers.local_grid import small_settings
from tests.strategies.server_half import NAMES, NODE, assert_same_state, one_node, restored

NO_STEPS = {f"fedic.{key}-steps": 0 for key in ("tuning", "calibration", "student")}


def server(**changes: Any) -> FedicStrategy:
    settings = small_settings(Path("none"), "classification", method="fedic", **changes)
    counts = dict.fromkeys(NAMES, ((1,) * 10,))
    federation = one_node(settings, load_shard(settings, 0, 1).shape, counts)
    strategy = FedicStrategy(settings, settings.method_settings, federation)
    strategy.model = strategy.initial_arrays()
    return strategy


def model(strategy: FedicStrategy, seed: int, size: float = 1.0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        name: (size * (value + 0.1 * rng.normal(size=value.shape))).astype(np.float32)
        for name, value in strategy.initial_arrays().items()
    }


def three(strategy: FedicStrategy) -> list[SentModel]:
    """The models of a, b and c, with 1, 2 and 3 samples."""
    return [
        SentModel(ClientKey(name, NODE), row + 1, 1, model(strategy, row))
        for row, name in enumerate(NAMES)
    ]


def next_model(
    strategy: FedicStrategy, models: list[SentModel], number: int = 1
) -> tuple[Arrays, Round]:
    """Return the next global model, and the round with what was refused."""
    round_ = Round(number)
    mean = strategy.average(models, round_)
    assert mean is not None
    return strategy.renewed(mean, round_), round_


def equal_arrays(first: Arrays, second: Arrays) -> bool:
    return all(np.array_equal(value, second[name]) for name, value in first.items())


def assert_b_is_refused(liar: Arrays, reason: str) -> None:
    """b's model is not used, and the others' count as without it."""
    strategy = server()
    a, b, c = three(strategy)
    with_liar, round_ = next_model(strategy, [a, b._replace(arrays=liar), c])
    assert list(round_.refused) == [b.key]
    assert reason in round_.refused[b.key]
    assert equal_arrays(with_liar, next_model(server(), [a, c])[0])


def test_without_steps_it_is_fedavg_over_clients() -> None:
    strategy = server(**NO_STEPS)
    models = three(strategy)
    averaged, _ = next_model(strategy, models)
    for name, value in averaged.items():
        mean = sum(sent.samples * sent.arrays[name].astype(np.float64) for sent in models) / 6
        np.testing.assert_allclose(value, mean, rtol=1e-5, atol=1e-7)


def test_the_student_is_better_than_the_mean_on_the_servers_images() -> None:
    steps = {f"fedic.{key}-steps": 60 for key in ("tuning", "calibration", "student")}
    strategy = server(**steps, **{"fedic.adam-rate": 1e-2})
    _, round_ = next_model(strategy, three(strategy))
    figures = {key.removeprefix("auxiliary_accuracy_"): v for key, v in round_.figures.items()}
    assert list(figures) == ["mean", "fine_tuned", "teacher", "student"]
    for better in ("fine_tuned", "teacher", "student"):
        assert figures[better] > figures["mean"] + 0.2  # type: ignore[operator]


def test_a_restored_server_goes_on_as_the_first_with_its_adam() -> None:
    first = server()
    next_model(first, three(first))
    second = restored(first)
    state = second.state()
    assert {name.split(".")[0] for name in state} == {"value", "first", "second", "steps"}
    assert set(state["steps.score"]) == {5}
    new, _ = next_model(server(), three(first), 2)
    models = [next_model(strategy, three(first), 2)[0] for strategy in (first, second)]
    assert equal_arrays(*models)
    assert not equal_arrays(models[0], new)
    assert_same_state(first, second)


def test_features_beyond_measure_behind_a_head_of_zeros_do_not_reach_the_gate() -> None:
    """Its logits are 0 and its parameters small enough; Adam would never forget such features."""
    liar = model(server(), 1)
    for name, value in liar.items():
        if "head" in name:
            value[:] = 0
        elif "blocks.2.norm" in name:
            value[:] = 300
    assert_b_is_refused(liar, "the server's images get features of size")


def test_a_model_with_logits_beyond_measure_is_refused_and_the_others_count() -> None:
    liar = model(server(), 1, size=90.0)
    assert_b_is_refused(liar, "its model is not used: the server's images get logits of")


def test_the_order_of_clients_does_not_matter() -> None:
    models = three(server())
    assert equal_arrays(*(next_model(server(), ordered)[0] for ordered in (models, models[::-1])))


def test_more_models_than_fit_are_refused_before_anybody_trains() -> None:
    strategy = server(
        **{"model.width": 64, "model.representation-dim": 512, "aggregation.most-megabytes": 1}
    )
    with pytest.raises(FederationError, match=r"most-megabytes = 1: .* 3 clients, \d+ values each"):
        strategy.chosen(strategy.federation.members.clients(), Round(1))


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
