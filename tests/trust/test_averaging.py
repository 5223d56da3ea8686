"""Rules that bear hostile clients: by hand, and in whole runs with hostile nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from safetensors.numpy import load_file

from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.core.wire import array_record, numpy_arrays
from fedproto_app.report.runs import read_rounds
from fedproto_app.server.federation import Federation
from fedproto_app.settings import AggregationSettings, settings_from
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.trust.averaging import Averaging, clipped
from tests.helpers.local_grid import run_small

slow = pytest.mark.exhaustive
ROBUST = ["clipped-mean", "median", "trimmed-mean", "krum", "multi-krum"]


def floats(*values: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def test_clipping_by_hand() -> None:
    """Steps from (1, 0) of length 1, 2 and 10: the last is shortened to 2."""
    before = {"w": floats(1), "b": floats(0)}
    models = [
        {"w": floats(2), "b": floats(0)},
        {"w": floats(1), "b": floats(-2)},
        {"w": floats(7), "b": floats(8)},
    ]
    *unchanged, short = clipped(models, before)
    assert unchanged == models[:2]
    np.testing.assert_allclose(short["w"], [1 + 6 / 5], rtol=1e-6)
    np.testing.assert_allclose(short["b"], [8 / 5], rtol=1e-6)
    assert clipped([before, before], before) == [before, before]  # no step at all


def test_of_two_steps_the_shorter_is_the_limit() -> None:
    before = {"w": floats(0)}
    _, long = clipped([{"w": floats(1)}, {"w": floats(100)}], before)
    np.testing.assert_allclose(long["w"], [1])


@pytest.mark.parametrize(
    ("rule", "value"),
    [("mean", 22.0), ("median", 3.0), ("trimmed-mean", 3.0), ("krum", 3.0), ("clipped-mean", 3.0)],
)
def test_prototypes_have_their_counterparts(rule: Any, value: float) -> None:
    rows = floats([1], [2], [3], [4], [100])
    assert Averaging(AggregationSettings(rule=rule)).rows(rows).tolist() == [value]


def test_models_that_do_not_fit_are_refused_before_anybody_trains() -> None:
    averaging = Averaging(AggregationSettings(rule="median", most_megabytes=11))
    averaging.require_room(9, 100_000)
    with pytest.raises(FederationError, match=r"most-megabytes = 11: the models of 10 clients"):
        averaging.require_room(10, 100_000)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "solo", "aggregation.rule": "median"}, "makes no mean of its clients' models"),
        ({"aggregation.rule": "medain"}, "aggregation.rule = 'medain'"),
        ({"aggregation.hostile-share": 0.5}, "aggregation.hostile-share = 0.5"),
    ],
)
def test_what_no_rule_can_be_about_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from(changes)
    assert reason in str(caught.value)


def model_of(tmp_path: Path, name: str, nodes: int, **changes: Any) -> dict[str, Any]:
    folder, _ = run_small(tmp_path, nodes=nodes, **{"output.name": name, "rounds": 2, **changes})
    return load_file(folder.path / "model" / "global.safetensors")


def test_nothing_to_trim_is_the_plain_mean_and_clients_not_nodes_count(tmp_path: Path) -> None:
    """Eight clients on two nodes or on four give one median. Trimming nobody gives their mean."""
    rule = {"method": "fedavg", "aggregation.rule": "median"}
    two, four = (model_of(tmp_path, f"n{nodes}", nodes, **rule) for nodes in (2, 4))
    for name, value in two.items():
        np.testing.assert_allclose(four[name], value, rtol=2e-4, atol=1e-6)
    changes = {"method": "fedavg", "aggregation.hostile-share": 0.0}
    trimmed = model_of(tmp_path, "t", 2, **changes, **{"aggregation.rule": "trimmed-mean"})
    mean = model_of(tmp_path, "m", 2, **changes)
    for name, value in mean.items():
        np.testing.assert_allclose(trimmed[name], value, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize(("rule", "weight"), [("mean", 12), ("multi-krum", 2)])
def test_no_rule_but_the_mean_counts_what_a_client_declares(rule: str, weight: int) -> None:
    settings = settings_from({"method": "fedavg", "aggregation.rule": rule})
    strategy = FedAvgStrategy(settings, Federation(settings, "run", "token"))
    assert strategy.weight(samples=12, clients=2) == weight


def two_hostile(node_id: int, reply: Message) -> Message:
    """The first of each node's four clients sends fifty times its model, negated."""
    if reply.metadata.message_type == MessageType.TRAIN:
        arrays = numpy_arrays(reply.content.array_records["arrays"])
        spoilt = {name: array.copy() for name, array in arrays.items()}
        for array in spoilt.values():
            array[0] *= -50
        reply.content["arrays"] = array_record(spoilt)
    return reply


def hostile_rounds(tmp_path: Path, rule: str, share: float) -> list[dict[str, Any]]:
    changes = {"method": "fedavg", "rounds": 4, "aggregation.rule": rule}
    changes |= {"aggregation.hostile-share": share}
    return read_rounds(run_small(tmp_path, tamper=two_hostile, **changes)[0].path)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=[] if rule in ("clipped-mean", "median") else slow)
        for rule in ROBUST
    ],
)
def test_two_hostile_clients_of_eight_are_borne(tmp_path: Path, rule: str) -> None:
    lines = hostile_rounds(tmp_path, rule, 0.25)
    assert [line["refused"] for line in lines] == [[]] * 4  # within what is possible
    assert lines[-1]["test_mse"] < 1.2 * lines[0]["test_mse"]
    assert max(line["test_mse"] for line in lines) < 3


def test_with_the_mean_they_own_the_model(tmp_path: Path) -> None:
    """This is what the rules are for. Without it the test above could not fail."""
    assert hostile_rounds(tmp_path, "trimmed-mean", 0.0)[-1]["test_mse"] > 3


@pytest.mark.parametrize(
    "method", ["gldp", *(pytest.param(method, marks=slow) for method in ("creff", "census"))]
)
def test_methods_of_images_send_models_beside_their_own_arrays(tmp_path: Path, method: str) -> None:
    changes = {"method": method, "aggregation.rule": "median"}
    folder, _ = run_small(tmp_path, "classification", **changes)
    assert not any(line["refused"] for line in read_rounds(folder.path))


def test_clipping_holds_for_fedic_too(tmp_path: Path) -> None:
    """Its server looks at each model itself. The rule is still about their mean.

    Without anybody to trim, the trimmed mean is the plain one.
    """
    runs = []
    for rule in ("trimmed-mean", "clipped-mean"):
        changes = {"aggregation.hostile-share": 0.0, "aggregation.rule": rule, "output.name": rule}
        folder, _ = run_small(tmp_path, "classification", method="fedic", **changes)
        runs.append(load_file(folder.path / "model" / "global.safetensors"))
    plain, shortened = runs
    assert any(not np.allclose(plain[name], shortened[name], rtol=1e-3) for name in plain)
