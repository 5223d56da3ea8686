"""The closed form: sums over clients, which sums the server takes, what a client makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.maths.ridge import symmetric
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.strategies.analytic.strategy import AnalyticStrategy
from fedproto_app.strategies.common.learner import AnyLearner, Cohort
from tests.helpers.tiny_cohort import (
    NAMES,
    cohort_of,
    complete_and_holed,
    tiny_learner,
    tiny_windows,
    train,
)
from tests.strategies.server_half import (
    SAMPLES,
    accept,
    evaluation,
    refusals,
    replies,
    restored,
    server_of,
)

# --- the client's half ---------------------------------------------------------------------------


AHEAD = {"data.horizon": 3, "data.calendar": "phase"}


def used(client: ClientWindows) -> np.ndarray:
    return client.batches.ravel()


def totals_and_cohort(learner: AnyLearner) -> tuple[Arrays, Cohort]:
    _, sent_arrays, cohort = train(learner, Guidance())
    return {name: array.sum(axis=0) for name, array in sent_arrays.items()}, cohort


def test_the_federated_solution_is_that_of_pooled_samples() -> None:
    learner = tiny_learner("analytic", **AHEAD, **{"analytic.sharing": "federated"})
    arrays, cohort = totals_and_cohort(learner)
    clients = tiny_windows(learner.task.settings)
    before = cohort.parameters[COEFFICIENTS].clone()
    assert learner.receive(cohort, Guidance(arrays)) == [0, 1]
    assert not torch.equal(before, cohort.parameters[COEFFICIENTS])
    for step in range(3):
        regressors = [
            learner.task.layout.regressors(torch.from_numpy(client.inputs[used(client)]))[:, step]
            for client in clients
        ]
        targets = np.concatenate([client.targets[used(client), step] for client in clients])
        oracle = Ridge(alpha=1.0, fit_intercept=False).fit(np.concatenate(regressors), targets)
        for row in range(2):
            coefficients = cohort.parameters[COEFFICIENTS][row, step]
            np.testing.assert_allclose(coefficients, oracle.coef_, rtol=1e-4, atol=1e-5)


def test_a_client_keeps_the_strength_that_its_validation_samples_like_best() -> None:
    learner = tiny_learner("analytic", **AHEAD)
    arrays, cohort = totals_and_cohort(learner)
    learner.receive(cohort, Guidance(arrays))
    criterion = Metric("validation-mse")
    chosen = learner.evaluate(cohort, Guidance())[criterion]
    for sharing in ("none", "federated"):
        sharing_learner = tiny_learner("analytic", **AHEAD, **{"analytic.sharing": sharing})
        _, cohort = totals_and_cohort(sharing_learner)
        sharing_learner.receive(cohort, Guidance(arrays))
        errors = sharing_learner.evaluate(cohort, Guidance())[criterion]
        assert all(np.array(chosen) <= np.array(errors) * (1 + 1e-6)), sharing


def test_what_is_sent_knows_nothing_of_validation_and_test() -> None:
    learner = tiny_learner("analytic", **AHEAD)
    data = learner.task.settings.data
    values = np.random.default_rng(3).normal(size=40)
    train_end = 8 + make_windows(ClientSeries("a", values), data).train_end
    changed = np.r_[values[:train_end], np.random.default_rng(4).normal(100, 50, 40 - train_end)]
    sent_arrays = []
    for version in (values, changed):
        clients = [make_windows(ClientSeries(name, version), data) for name in NAMES]
        sent_arrays.append(train(learner, Guidance(), cohort_of(learner, clients))[1])
    for name in sent_arrays[0]:
        np.testing.assert_array_equal(sent_arrays[0][name], sent_arrays[1][name])


def test_missing_targets_are_in_no_sum() -> None:
    learner = tiny_learner("analytic")
    values = np.random.default_rng(3).normal(size=40)
    complete, holed = complete_and_holed(learner.task.settings, values)
    _, sent_arrays, _ = train(learner, Guidance(), cohort_of(learner, [complete, holed]))
    counts = symmetric(torch.from_numpy(sent_arrays["gram"]), 5)[:, 0, -1, -1]  # of the constant 1
    assert counts.tolist() == [complete.train_samples, complete.train_samples - 1]


def test_alone_nothing_leaves_the_client() -> None:
    learner = tiny_learner("analytic", **{"analytic.sharing": "none"})
    losses, sent_arrays, cohort = train(learner, Guidance())
    assert sent_arrays == {}
    assert set(losses) == {"total"}
    assert learner.receive(cohort, Guidance()) == []
    assert cohort.parameters[COEFFICIENTS].abs().sum() > 0


def test_a_spoilt_total_leaves_each_client_its_own_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING", logger="flwr")
    learner = tiny_learner("analytic", **{"analytic.sharing": "federated"})
    arrays, cohort = totals_and_cohort(learner)
    local = cohort.parameters[COEFFICIENTS].clone()
    assert local.abs().sum() > 0
    spoilt = {**arrays, "gram": -arrays["gram"]}
    assert learner.receive(cohort, Guidance(spoilt)) == []
    assert caplog.messages == ["event=invalid-totals round=1 clients=2"]
    assert torch.equal(cohort.parameters[COEFFICIENTS], local)


# --- the server's half ---------------------------------------------------------------------------


# Regressors: the close value, the value a period before, and the constant.
REGRESSORS = {"data.period": 2, "data.close-window": 1, "data.periodic-window": 1}


@pytest.fixture
def analytic() -> AnalyticStrategy:
    strategy: AnalyticStrategy = server_of("analytic", **REGRESSORS)
    return strategy


def sums_of(scale: float) -> Arrays:
    """Return the sums of SAMPLES equal samples x = (scale, 0, 1), y = scale."""
    gram = np.array([[scale**2, 0, scale, 0, 0, 1]], dtype=np.float32) * SAMPLES
    moment = np.array([[scale**2, 0, scale]], dtype=np.float32) * SAMPLES
    return {"gram": gram, "moment": moment}


def test_everyone_gets_the_sums_over_all(analytic: AnalyticStrategy) -> None:
    accept(analytic, replies(a=sums_of(1.0), b=sums_of(1.5)))
    accept(analytic, replies(b=sums_of(0.5)))  # the latest of each client counts, once
    sums_over_clients = evaluation(analytic).arrays
    # 4 · (1 + 0.25), 4 · (1 + 0.5), 4 · 2
    assert sums_over_clients["gram"].tolist() == [[5, 0, 6, 0, 0, 8]]
    assert sums_over_clients["moment"].tolist() == [[5, 0, 6]]
    after = evaluation(restored(analytic)).arrays
    np.testing.assert_array_equal(after["gram"], sums_over_clients["gram"])


def test_sums_that_cannot_be_true_are_refused(analytic: AnalyticStrategy) -> None:
    huge = {name: array * 1e25 for name, array in sums_of(1.0).items()}
    crooked = sums_of(1.0)
    crooked["gram"][0, 1] = 3000.0
    # x = (1, 0, 1) and y = 1.6: y² is 10.24 in all, and values of mean square 1 have at most 9, of
    # 4 samples and 5 older ones.
    large = {**sums_of(1.0), "moment": 1.6 * sums_of(1.0)["moment"]}
    reasons = refusals(accept(analytic, replies(a=sums_of(1.0), b=huge, c=crooked, d=large)))
    assert set(reasons) == {"b", "c", "d"}
    assert "explain a sum of squares of 10.2, but such targets have at most 9" in reasons["d"]
    assert all("its sums cannot be those of 4 samples" in reason for reason in reasons.values())
    assert evaluation(analytic).arrays["gram"].tolist() == [[4, 0, 4, 0, 0, 4]]


def test_a_fit_that_misleads_most_of_five_clients_is_refused(analytic: AnalyticStrategy) -> None:
    """All but the last say y = x. It says y = −x, so it is twice as far away as y = 0."""
    opposite = {**sums_of(1.0), "moment": -sums_of(1.0)["moment"]}
    assert analytic.outliers(replies(a=sums_of(1.0), b=sums_of(1.0), c=opposite)) == {}  # too few
    accept(analytic, replies(a=sums_of(1.0), b=sums_of(1.0), c=sums_of(1.0)))
    refused = analytic.outliers(replies(d=sums_of(1.0), e=opposite))  # the latest of others count
    assert [key.client for key in refused] == ["e"]
    assert "its fit is worse than the mean, with 4 times" in next(iter(refused.values()))


@pytest.mark.parametrize(
    ("rule", "accepted"),
    [("multi-krum", "ab"), ("median", "ab"), ("krum", "a"), ("clipped-mean", "abc")],
)
def test_a_rule_leaves_out_sums_that_suit_nobody_and_levels_the_others(
    rule: str, accepted: str
) -> None:
    """a and b say y = x, of 2 and of 4 samples alike. c says y = −x. One of three is too many."""
    changes = {"aggregation.rule": rule, "aggregation.hostile-share": 0.4}
    strategy = server_of("analytic", **REGRESSORS, **changes)
    half = {name: array / 2 for name, array in sums_of(1.0).items()}
    opposite = {**sums_of(1.0), "moment": -sums_of(1.0)["moment"]}
    accept(strategy, replies(a=half, b=sums_of(1.0), c=opposite))
    robust_totals = evaluation(strategy).arrays
    # Each has the median trace, 8: Σ x² + Σ 1 of four samples. Three count in all.
    np.testing.assert_allclose(robust_totals["gram"], [[12, 0, 12, 0, 0, 12]], rtol=1e-6)
    slope = 12 if accepted != "abc" else 4
    np.testing.assert_allclose(robust_totals["moment"], [[slope, 0, slope]], rtol=1e-6)
