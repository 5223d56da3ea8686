"""Answers that look at nothing: by hand, over stages, and no value is exchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.models.model import HEAD
from fedproto_app.strategies.common.learner import train_cohort
from fedproto_app.strategies.naive import FrequentClassLearner
from tests.helpers.tiny_cohort import cohort_of, tiny_cohort, tiny_learner
from tests.helpers.tiny_images import at_round, image_cohort, image_learner
from tests.helpers.tiny_sequences import head_learner, vector_client

GUIDANCE = Guidance()


def test_the_most_frequent_class_of_all_stages_so_far() -> None:
    learner = image_learner("naive")
    assert isinstance(learner, FrequentClassLearner)
    cohort = image_cohort(learner)
    shares = []
    for server_round in (1, 1, 2, 3):  # the second stage begins in round 2
        cohort = at_round(learner, cohort, server_round)
        losses = train_cohort(learner, cohort, learner.context(GUIDANCE, cohort))
        shares.append(cohort.parameters[HEAD + "bias"].exp().tolist())
    a_third = pytest.approx([2 / 3, 1 / 3, 0])
    assert shares[0] == [a_third, pytest.approx([0, 1, 0])]
    assert shares[1] == shares[0]
    assert shares[2] == [pytest.approx([3 / 6, 1 / 6, 2 / 6]), pytest.approx([0, 1, 0])]
    assert shares[3] == shares[2]
    # Of the last stage, client a has one image of class 0 and two of class 2.
    expected = -(np.log(3 / 6) + 2 * np.log(2 / 6)) / 3
    assert losses["total"].tolist() == pytest.approx([expected, 0.0], abs=1e-5)
    images = torch.zeros(2, 5, 1, 8, 8)
    vectors = learner.task.encode(cohort.parameters, images)
    assert learner.task.predict(cohort.parameters, vectors).argmax(dim=2).tolist() == [
        [0] * 5,
        [1] * 5,
    ]


def test_the_mean_of_the_clients_own_numbers() -> None:
    learner = head_learner(
        "naive", task="sequence-regression", **{"data.sequences.target-scale": 100.0}
    )
    # In order of length, so the second one's third sequence is padding.
    clients = [vector_client("a", [10.0, 20.0, 60.0]), vector_client("b", [5.0, 15.0], [20.0])]
    cohort = cohort_of(learner, clients, 1)
    losses = train_cohort(learner, cohort, learner.context(GUIDANCE, cohort))
    assert cohort.parameters[HEAD + "bias"].tolist() == [[pytest.approx(0.3)], [pytest.approx(0.1)]]
    assert losses["total"].tolist() == pytest.approx([(0.04 + 0.01 + 0.09) / 3, 0.0025])
    rmse = learner.evaluate(cohort, GUIDANCE)[Metric("rmse")]
    assert rmse == pytest.approx([(1400 / 3) ** 0.5, 10.0], rel=1e-4)


@pytest.mark.parametrize("horizon", [1, 3])
def test_naive_forecasts_repeat_values(horizon: int) -> None:
    for method in ("naive", "seasonal-naive", "mean"):
        learner = tiny_learner(method, **{"data.horizon": horizon, "data.lags": 6})
        cohort = tiny_cohort(learner)
        forecast = learner.task.forecast(cohort.parameters, cohort.samples.inputs)
        if method == "naive":
            newest = cohort.samples.inputs[..., 1:2]  # of two close values
            torch.testing.assert_close(forecast, newest.expand_as(forecast))
        elif method == "mean":  # of the train part, on whose scale it is 0
            assert not forecast.any()
        else:
            torch.testing.assert_close(forecast[:, 4:], cohort.samples.targets[:, :-4])
