"""The server of the closed form: sums over clients, and which sums it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.core.messages import Arrays, Reply
from fedproto_app.core.metrics import Metric
from fedproto_app.report.runs import read_clients, read_rounds
from fedproto_app.settings import flat_settings, settings_from
from fedproto_app.strategies.analytic.strategy import AnalyticStrategy
from tests.local_grid import run_locally, small_settings, synthetic_nodes
from tests.strategies.one_node import NODE, SAMPLES, evaluation, one_node


@pytest.fixture
def analytic() -> AnalyticStrategy:
    """Regressors: the close value, the value a period before, and the constant."""
    settings = settings_from(
        {"method": "analytic", "data.period": 2, "data.close-window": 1, "data.periodic-window": 1}
    )
    return AnalyticStrategy(settings, settings.method_settings, one_node(settings))


def sums_of(scale: float) -> Arrays:
    """Return the sums of SAMPLES equal samples x = (scale, 0, 1), y = scale."""
    gram = np.array([[scale**2, 0, scale, 0, 0, 1]], dtype=np.float32) * SAMPLES
    moment = np.array([[scale**2, 0, scale]], dtype=np.float32) * SAMPLES
    return {"gram": gram, "moment": moment}


def report(strategy: AnalyticStrategy, **clients: Arrays) -> None:
    arrays = {key: np.stack([sums[key] for sums in clients.values()]) for key in ("gram", "moment")}
    reply = Reply(list(clients), [SAMPLES] * len(clients), arrays=arrays)
    strategy.take_in([replace(reply, node=NODE)], 1)


def totals(strategy: AnalyticStrategy) -> Arrays:
    return evaluation(strategy).arrays


def test_everyone_gets_the_sums_over_all(analytic: AnalyticStrategy) -> None:
    report(analytic, a=sums_of(1.0), b=sums_of(3.0))
    report(analytic, b=sums_of(2.0))  # the latest of each client counts, once
    sums_over_clients = totals(analytic)
    assert sums_over_clients["gram"].tolist() == [
        [20, 0, 12, 0, 0, 8]
    ]  # 4 · (1 + 4), 4 · (1 + 2), 4 · 2
    assert sums_over_clients["moment"].tolist() == [[20, 0, 12]]
    restored = AnalyticStrategy(analytic.settings, analytic.section, analytic.federation)
    restored.restore(analytic.state())
    np.testing.assert_array_equal(totals(restored)["gram"], sums_over_clients["gram"])


def test_sums_that_cannot_be_true_are_refused(analytic: AnalyticStrategy) -> None:
    huge = {name: array * 1e25 for name, array in sums_of(1.0).items()}
    crooked = sums_of(1.0)
    crooked["gram"][0, 1] = 3000.0
    report(analytic, a=sums_of(1.0), b=huge, c=crooked)
    reasons = {
        refusal.client: refusal.reason for refusal in analytic.federation.history.log.refused
    }
    assert set(reasons) == {"b", "c"}
    assert all("its sums cannot be those of 4 samples" in reason for reason in reasons.values())
    assert totals(analytic)["gram"].tolist() == [[4, 0, 4, 0, 0, 4]]


@pytest.mark.parametrize(
    ("rule", "accepted"),
    [("multi-krum", "ab"), ("median", "ab"), ("krum", "a"), ("clipped-mean", "abc")],
)
def test_a_rule_leaves_out_sums_that_suit_nobody_and_levels_the_others(
    analytic: AnalyticStrategy, rule: str, accepted: str
) -> None:
    """a and b say y = x, of 2 and of 4 samples alike; c says y = −x. One of three is too many."""
    changes = {"aggregation.rule": rule, "aggregation.hostile-share": 0.4}
    robust = settings_from({**flat_settings(analytic.settings), **changes})
    strategy = AnalyticStrategy(robust, robust.method_settings, one_node(robust))
    half = {name: array / 2 for name, array in sums_of(1.0).items()}
    opposite = {**sums_of(1.0), "moment": -sums_of(1.0)["moment"]}
    report(strategy, a=half, b=sums_of(1.0), c=opposite)
    robust_totals = totals(strategy)
    # Each has the median trace, 8: Σ x² + Σ 1 of four samples. Three count in all.
    np.testing.assert_allclose(robust_totals["gram"], [[12, 0, 12, 0, 0, 12]], rtol=1e-6)
    slope = 12 if accepted != "abc" else 4
    np.testing.assert_allclose(robust_totals["moment"], [[slope, 0, slope]], rtol=1e-6)


def test_a_run_is_one_message_up_of_which_every_value_counts(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, method="analytic", rounds=7, **{"data.calendar": "phase"})
    assert settings.rounds == 1
    folder, _ = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    [line] = read_rounds(folder.path)
    values = 30 * 31 // 2 + 30
    assert values == 495
    assert line["parameters_up"] == line["parameters_down"] == 8 * values
    errors = {row["client"]: float(row["mse"]) for row in read_clients(folder.path)}
    assert len(errors) == 8
    # One node with all clients sends the same sums, so ends at the same errors.
    one_node_settings = small_settings(
        tmp_path, method="analytic", **{"data.calendar": "phase", "output.name": "one"}
    )
    alone, _ = run_locally(one_node_settings, synthetic_nodes(1, tmp_path / "other"))
    errors_of_one_node = {row["client"]: float(row["mse"]) for row in read_clients(alone.path)}
    assert errors_of_one_node == pytest.approx(errors, rel=1e-12)


def test_the_simplest_things_run_too(tmp_path: Path) -> None:
    worst = {}
    for method, more in (
        ("naive", {}),
        ("seasonal-naive", {}),
        ("analytic", {"analytic.sharing": "none"}),
    ):
        settings = small_settings(tmp_path, method=method, **more, **{"output.name": method})
        folder, _ = run_locally(settings, synthetic_nodes(2, tmp_path / method))
        [line] = read_rounds(folder.path)
        assert line["parameters_up"] == line["parameters_down"] == 0
        worst[method] = line[Metric("test_mse").name]
    assert worst["analytic"] < worst["seasonal-naive"]
