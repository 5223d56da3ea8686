"""FedProto's server: the mean over clients' latest prototypes, for everyone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedproto_app.core.messages import Reply
from fedproto_app.core.wire import numpy_arrays
from fedproto_app.report.runs import read_rounds
from fedproto_app.server.federation import Federation
from fedproto_app.settings import settings_from
from fedproto_app.strategies.fedproto import FedProtoStrategy
from tests.local_grid import run_locally, small_settings, synthetic_nodes
from tests.strategies.one_node import NAMES, NODE, Rows, guidance, one_node, report

A: Rows = [[1.0, 2.0], [3.0, 4.0]]
B: Rows = [[3.0, 2.0], [1.0, 0.0]]
C: Rows = [[0.0, 0.0], [9.0, 9.0]]


@pytest.fixture
def fedproto() -> FedProtoStrategy:
    settings = settings_from(
        {"method": "fedproto", "data.period": 2, "model.representation-dim": 2}
    )
    return FedProtoStrategy(settings, settings.method_settings, one_node(settings))


def test_before_any_report_nothing_is_sent(fedproto: FedProtoStrategy) -> None:
    assert guidance(fedproto, *NAMES).arrays == {}
    assert fedproto.state() == {}


def test_the_global_prototype_is_the_mean_over_the_clients(fedproto: FedProtoStrategy) -> None:
    report(fedproto, {"a": A, "b": B})
    guidance_sent = guidance(fedproto, "c")  # whoever asks, also one who has not reported
    assert set(guidance_sent.arrays) == {"prototype"}
    assert guidance_sent.arrays["prototype"].tolist() == [[2, 2], [2, 2]]
    assert guidance_sent.arrays["prototype"].dtype == np.float32


def test_of_each_client_the_latest_counts_once(fedproto: FedProtoStrategy) -> None:
    report(fedproto, {"a": C, "b": C, "c": C})
    report(fedproto, {"b": B, "a": A})  # a round without c: its prototype stays
    state = fedproto.state()
    stored = dict(zip(state["names"], state["prototypes"].tolist(), strict=True))
    assert stored == {"a": A, "b": B, "c": C}
    assert set(state["nodes"]) == {NODE}
    prototype = guidance(fedproto, "a").arrays["prototype"]
    np.testing.assert_allclose(prototype, np.mean([A, B, C], axis=0), rtol=1e-6)


def test_the_order_of_reports_does_not_matter(fedproto: FedProtoStrategy) -> None:
    values = {"a": 1e30, "b": -1e30, "c": 1.0}  # a + b + c = 1, but c + b + a = 0
    for name in reversed(NAMES):
        report(fedproto, {name: [[values[name]] * 2] * 2})
    prototype = guidance(fedproto, "a").arrays["prototype"]
    np.testing.assert_allclose(prototype, np.full((2, 2), 1 / 3), rtol=1e-6)


def test_the_uplink_is_the_papers() -> None:
    settings = settings_from({"method": "fedproto"})
    spec = FedProtoStrategy(
        settings, settings.method_settings, Federation(settings, "run", "token")
    ).expected(1)
    assert spec.values(Reply(["a"], [1])) == 24 * 256 == 6144


def test_in_a_run_everyone_gets_the_mean_from_the_second_round_on(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, method="fedproto", rounds=2)
    folder, grid = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    trained = [m for m in grid.sent if m.metadata.message_type == "train"]
    first, second = (
        [m.content for m in trained if m.metadata.group_id == group] for group in ("1", "2")
    )
    assert not any(content.array_records for content in first)
    prototypes_sent = [
        numpy_arrays(content.array_records["arrays"])["prototype"] for content in second
    ]
    assert len(prototypes_sent) == 2
    assert prototypes_sent[0].shape == (24, 16)
    np.testing.assert_array_equal(prototypes_sent[0], prototypes_sent[1])
    assert [set(line["loss"]) for line in read_rounds(folder.path)] == [
        {"prediction", "total"},
        {"prediction", "prototype", "total"},
    ]
