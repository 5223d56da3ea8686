"""Naive, seasonal naive and ridge regression: what they forecast, and what leaves the client."""

from __future__ import annotations

from dataclasses import replace

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
from fedproto_app.strategies.common.learner import AnyLearner, Cohort
from tests.learners.tiny_cohort import NAMES, tiny_cohort, tiny_learner, tiny_windows, train

AHEAD = {"data.horizon": 3, "data.calendar": "phase"}


@pytest.mark.parametrize("horizon", [1, 3])
def test_naive_forecasts_repeat_values(horizon: int) -> None:
    for method, steps_back in (("naive", None), ("seasonal-naive", 4)):
        learner = tiny_learner(method, **{"data.horizon": horizon, "data.lags": 6})
        cohort = tiny_cohort(learner)
        samples = cohort.samples
        forecast = learner.task.forecast(cohort.parameters, samples.inputs)
        for ahead in range(horizon):
            if steps_back is None:
                expected = samples.inputs[..., 1]  # the newer of two close values
            else:  # the target of the sample a period before
                expected = samples.targets[:, :-steps_back, ahead]
            part = (
                forecast[:, : expected.shape[1], ahead]
                if steps_back is None
                else forecast[:, 4:, ahead]
            )
            torch.testing.assert_close(part, expected)


def used(client: ClientWindows) -> np.ndarray:
    return client.batches.ravel()


def totals(learner: AnyLearner) -> tuple[Arrays, Cohort]:
    _, sent_arrays, cohort = train(learner, Guidance())
    return {name: array.sum(axis=0) for name, array in sent_arrays.items()}, cohort


def test_the_federated_solution_is_that_of_pooled_samples() -> None:
    learner = tiny_learner("analytic", **AHEAD, **{"analytic.sharing": "federated"})
    arrays, cohort = totals(learner)
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
    arrays, cohort = totals(learner)
    learner.receive(cohort, Guidance(arrays))
    criterion = Metric("validation-mse")
    chosen = learner.evaluate(cohort, Guidance())[criterion]
    for sharing in ("none", "federated"):
        sharing_learner = tiny_learner("analytic", **AHEAD, **{"analytic.sharing": sharing})
        _, cohort = totals(sharing_learner)
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
        cohort = tiny_cohort(learner)
        clients = [make_windows(ClientSeries(name, version), data) for name in NAMES]
        cohort = replace(cohort, samples=learner.task.gather(clients, 1))
        context = learner.context(Guidance(), cohort)
        sent_arrays.append(learner.contribution(cohort, context, 1).arrays)
    for name in sent_arrays[0]:
        np.testing.assert_array_equal(sent_arrays[0][name], sent_arrays[1][name])


def test_missing_targets_are_in_no_sum() -> None:
    learner = tiny_learner("analytic")
    data = learner.task.settings.data
    values = np.random.default_rng(3).normal(size=40)
    complete = make_windows(ClientSeries("a", values), data)
    holed = make_windows(ClientSeries("a", np.r_[values[:20], np.nan, values[21:]]), data)
    cohort = replace(tiny_cohort(learner), samples=learner.task.gather([complete, holed], 1))
    context = learner.context(Guidance(), cohort)
    sent_arrays = learner.contribution(cohort, context, 1).arrays
    counts = symmetric(torch.from_numpy(sent_arrays["gram"]), 5)[:, 0, -1, -1]  # of the constant 1
    assert counts.tolist() == [complete.train_samples, complete.train_samples - 1]


def test_alone_nothing_leaves_the_client() -> None:
    learner = tiny_learner("analytic", **{"analytic.sharing": "none"})
    losses, sent_arrays, cohort = train(learner, Guidance())
    assert sent_arrays == {}
    assert set(losses) == {"total"}
    assert learner.receive(cohort, Guidance()) == []
    assert cohort.parameters[COEFFICIENTS].abs().sum() > 0


def test_a_spoilt_total_leaves_each_client_its_own() -> None:
    learner = tiny_learner("analytic", **{"analytic.sharing": "federated"})
    arrays, cohort = totals(learner)
    local = cohort.parameters[COEFFICIENTS].clone()
    assert local.abs().sum() > 0
    spoilt = {**arrays, "gram": -arrays["gram"]}
    assert learner.receive(cohort, Guidance(spoilt)) == []
    assert torch.equal(cohort.parameters[COEFFICIENTS], local)
