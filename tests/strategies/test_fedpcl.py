"""FedPCL's server: the prototypes that it believes, remembers and sends beside the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.messages import Guidance, Reply
from fedproto_app.core.round import Round
from fedproto_app.core.wire import numpy_arrays
from fedproto_app.report.runs import read_rounds
from fedproto_app.server.federation import Federation
from fedproto_app.settings import settings_from
from fedproto_app.strategies.fedpcl import GLOBAL_PROTOTYPES, PROTOTYPES, FedPclStrategy
from tests.local_grid import run_locally, small_settings, synthetic_nodes
from tests.strategies.one_node import NODE, Rows, guidance, one_node

A: Rows = [[1.0, 2.0], [3.0, 4.0]]
B: Rows = [[3.0, 2.0], [1.0, 0.0]]
C: Rows = [[5.0, 5.0], [5.0, 5.0]]


def server(**changes: Any) -> FedPclStrategy:
    small = {"method": "fedpcl", "data.period": 2, "model.representation-dim": 2}
    settings = settings_from({**small, **changes})
    return FedPclStrategy(settings, settings.method_settings, one_node(settings))


def report(strategy: FedPclStrategy, prototypes: dict[str, Rows]) -> None:
    arrays = {PROTOTYPES: np.array(list(prototypes.values()), dtype=np.float32)}
    reply = Reply(list(prototypes), [4] * len(prototypes), arrays=arrays)
    strategy.take_in([replace(reply, node=NODE)], 1)


def sent_prototypes(strategy: FedPclStrategy) -> Any:
    assert strategy.guide_evaluation(strategy.received, [], Round(2)) == Guidance()
    prototypes = guidance(strategy).arrays.get(GLOBAL_PROTOTYPES)
    return None if prototypes is None else prototypes.tolist()


def test_everyone_gets_the_mean_of_the_latest_prototypes() -> None:
    strategy = server()
    assert sent_prototypes(strategy) is None
    report(strategy, {"a": C, "b": C})
    report(strategy, {"a": A, "b": B})  # of each client the latest counts
    assert sent_prototypes(strategy) == [[[2, 2], [2, 2]]]
    report(strategy, {})
    assert sent_prototypes(strategy) == [[[2, 2], [2, 2]]]


def test_or_all_of_them_in_the_order_of_names() -> None:
    strategy = server(**{"fedpcl.prototypes": "multiple"})
    report(strategy, {"b": B})
    report(strategy, {"a": A})
    assert sent_prototypes(strategy) == [A, B]


@pytest.mark.parametrize("prototypes", ["single", "multiple"])
def test_a_restored_server_sends_the_same(prototypes: str) -> None:
    first, second = (server(**{"fedpcl.prototypes": prototypes}) for _ in range(2))
    second.restore(first.state())
    assert sent_prototypes(second) is None
    report(first, {"c": C, "a": A})
    second.restore(first.state())
    assert sent_prototypes(second) == sent_prototypes(first)


def test_a_prototype_far_longer_than_the_others_is_not_used() -> None:
    strategy = server()
    huge = [[1e37, 1e37], [1e37, 1e37]]
    report(strategy, {"a": A, "b": B, "c": huge})
    assert sent_prototypes(strategy) == [[[2, 2], [2, 2]]]
    (refusal,) = strategy.federation.history.log.refused
    assert (refusal.node, refusal.client) == (NODE, "c")
    assert refusal.reason.startswith("its prototype is not used: its length is 2e+37, more than")


def test_the_uplink_is_the_model_and_one_prototype() -> None:
    """The papers count 106,881: their head has 129 values, ours on both GRUs 257."""
    settings = settings_from({"method": "fedpcl"})
    spec = FedPclStrategy(
        settings, settings.method_settings, Federation(settings, "run", "token")
    ).expected(1)
    assert spec.values(Reply(["a"], [1])) == 100_865 + 24 * 256 == 107_009
    assert spec.values(Reply(["a"], [1])) - 106_881 == 257 - 129


def test_in_a_run_prototypes_come_from_the_second_round_on(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, method="fedpcl", rounds=2)
    folder, grid = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    arrays_sent = {
        (message.metadata.group_id, message.metadata.message_type): numpy_arrays(
            message.content.array_records["arrays"]
        )
        for message in grid.sent
        if "arrays" in message.content.array_records
    }
    with_prototypes = {key for key, arrays in arrays_sent.items() if GLOBAL_PROTOTYPES in arrays}
    assert with_prototypes == {("2", "train")}
    assert arrays_sent["2", "train"][GLOBAL_PROTOTYPES].shape == (1, 24, 16)
    terms = [set(line["loss"]) for line in read_rounds(folder.path)]
    assert terms == [{"prediction", "contrast", "total"}] * 2
