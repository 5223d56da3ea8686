"""Census's server: which clients get the totals, and which sums it accepts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message

from fedproto_app.core.messages import Arrays, Reply
from fedproto_app.core.wire import array_record, numpy_arrays
from fedproto_app.data.shape import DataShape
from fedproto_app.experiments.invariants import SmallRuns
from fedproto_app.maths.class_gaussian import LabelledVectors, class_sums
from fedproto_app.report.runs import read_rounds, read_run
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.census.strategy import CensusStrategy
from fedproto_app.strategies.common.class_fit import packed
from tests.strategies.one_node import NODE, SAMPLES, guidance, one_node

WIDTH = 4 + 8  # four learned features, one random filter


def settings_of(**changes: Any) -> Settings:
    return settings_from(
        {
            "task": "classification",
            "method": "census",
            "keep": "last",
            "census.features": 1,
            "model.representation-dim": 4,
            "data.source": "digits",
            "data.partition.stages": 1,
            **changes,
        }
    )


@pytest.fixture
def server() -> CensusStrategy:
    return strategy_of(settings_of())


def strategy_of(settings: Settings) -> CensusStrategy:
    federation = one_node(settings)
    federation.members.expect([], DataShape((1, 8, 8), ("ant", "bee")))
    federation.history.log.server_round = 1
    strategy = CensusStrategy(settings, settings.method_settings, federation)  # type: ignore
    begin(strategy, 1)
    return strategy


def begin(strategy: CensusStrategy, server_round: int) -> list[Message]:
    """The orders to train in a round."""
    model = array_record(strategy.initial_arrays())
    orders = strategy.configure_train(server_round, model, ConfigRecord(), None)  # type: ignore
    return list(orders)


def sums_of(seed: int, scale: float = 1.0, samples: int = SAMPLES) -> Arrays:
    """Return sums of this many samples, alternately of both classes."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples).remainder(2).unsqueeze(0)
    features = scale * torch.randn(1, samples, WIDTH, generator=draws)
    sums = packed(class_sums(LabelledVectors(features, labels, torch.ones(1, samples)), 2))
    return {name: value[0].float().numpy() for name, value in sums.items()}


def report(strategy: CensusStrategy, **clients: Arrays) -> dict[str, str]:
    """What was refused, and why."""
    arrays = {
        key: np.stack([sums[key] for sums in clients.values()])
        for key in ("gram", "moment", "counts")
    }
    reply = Reply(list(clients), [SAMPLES] * len(clients), arrays=arrays)
    strategy.federation.history.log.refused.clear()
    strategy.take_in([replace(reply, node=NODE)], 1)
    return {sums.client: sums.reason for sums in strategy.federation.history.log.refused}


def evaluated(strategy: CensusStrategy) -> Arrays:
    """Return the arrays of an order to evaluate, without the model."""
    return strategy.guide_evaluation(strategy.received, [], strategy.round_of(2)).arrays


def test_the_latest_sums_add_up_for_who_is_judged_alone(server: CensusStrategy) -> None:
    assert evaluated(server) == {}
    first, second, third = (sums_of(seed) for seed in range(3))
    assert report(server, a=first, b=second) == {}
    assert report(server, b=third) == {}  # in place of the second
    for name, total in evaluated(server).items():
        np.testing.assert_allclose(total, first[name] + third[name], rtol=1e-5, atol=1e-5)
    assert guidance(server).arrays == {}
    restored = strategy_of(server.settings)
    restored.restore(server.state())
    assert all(
        (evaluated(restored)[name] == total_before).all()
        for name, total_before in evaluated(server).items()
    )


def test_sums_are_asked_for_where_an_evaluation_needs_them() -> None:
    server = strategy_of(settings_of(**{"rounds": 3, "evaluate-every": 2}))
    declared = []
    for server_round in (1, 2, 3):
        begin(server, server_round)
        declared.append(set(server.expected(server_round).per_client))
    everything = {"gram", "moment", "counts"}
    assert declared == [set(), everything, everything]  # the last round always is evaluated


def test_who_is_judged_gets_the_encoder_that_the_sums_are_of(server: CensusStrategy) -> None:
    old, new = (array_record(server.initial_arrays()) for _ in range(2))
    for name, array in new.items():
        new[name] = type(array)(array.numpy() + 1)
    server.configure_train(1, old, ConfigRecord(), None)  # type: ignore[arg-type]
    [order] = server.configure_evaluate(1, new, ConfigRecord(), None)  # type: ignore[arg-type]
    model_sent = numpy_arrays(order.content.array_records["arrays"])
    for name, array in server.initial_arrays().items():
        np.testing.assert_array_equal(model_sent[name], array)


@pytest.mark.parametrize(("schedule", "refused"), [("sequential", {"b"}), ("cyclic", set())])
def test_a_node_that_lost_its_memory_does_not_replace_what_it_sent(
    schedule: str, refused: set[str]
) -> None:
    """If stages repeat, sums start again with each cycle."""
    server = strategy_of(settings_of(**{"classification.stage-schedule": schedule}))
    assert report(server, a=sums_of(0), b=sums_of(1), c=sums_of(2)) == {}
    assert set(report(server, b=sums_of(1, samples=2))) == refused


def test_sums_that_cannot_be_true_are_refused(server: CensusStrategy) -> None:
    too_many = {**sums_of(1), "counts": np.array([1e6, 2], np.float32)}
    contrary = sums_of(2)
    contrary["moment"] = contrary["moment"] * 9
    refused = report(server, a=sums_of(3), b=contrary, late=too_many)
    assert set(refused) == {"b", "late"}
    assert "no samples have such sums and products" in refused["b"]
    assert "more than the 4 that it declared" in refused["late"]
    refused = report(server, a=sums_of(3), b=sums_of(4), c=sums_of(5, scale=100.0))
    assert "more than 10 times what is usual" in refused["c"]
    np.testing.assert_allclose(evaluated(server)["counts"], [4, 4])


def test_what_an_encoder_gave_in_another_round_is_no_measure_among_enough(
    server: CensusStrategy,
) -> None:
    """An encoder's vectors may grow a hundredfold as it learns. A single client cannot say so."""
    assert report(server, a=sums_of(0), b=sums_of(1), c=sums_of(2), late=sums_of(3)) == {}
    far = {name: sums_of(seed, scale=10.0) for seed, name in enumerate(("a", "b", "c"))}
    assert set(report(server, late=sums_of(3, scale=10.0))) == {"late"}
    assert report(server, **far) == {}


def test_a_run_tells_of_the_answers_and_of_the_averaged_head(tmp_path: Path) -> None:
    runs = SmallRuns("classification", "census", tmp_path)
    folder = runs.run("once", 2)
    assert not any(line["refused"] for line in read_rounds(folder))
    summary = read_run(folder).summary
    assert summary["accuracy_local"] > 0.5
    assert summary["accuracy_global"] > 0.5
    assert summary["by_inference"]["head"]
