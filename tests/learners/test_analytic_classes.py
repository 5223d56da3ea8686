"""The client of the closed form for classes: stages add up, and what the sums of all make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.maths.class_gaussian import ClassSums
from fedproto_app.models.model import HEAD
from fedproto_app.strategies.analytic.classes_learner import AnalyticClassesLearner
from fedproto_app.strategies.common.class_fit import (
    CLUSTER_COUNTS,
    CLUSTER_MOMENT,
    COUNTS,
    GRAM,
    MOMENT,
    WITHIN,
    clusters_in,
)
from fedproto_app.strategies.common.learner import Cohort, train_cohort
from tests.learners.tiny_images import at_round, image_cohort, image_learner

GUIDANCE = Guidance()


def learner_of(**changes: Any) -> AnalyticClassesLearner:
    learner = image_learner("analytic", **{"analytic.features": 3, **changes})
    assert isinstance(learner, AnalyticClassesLearner)
    return learner


def trained(learner: AnalyticClassesLearner, rounds: tuple[int, ...] = (1, 2, 3, 4)) -> Cohort:
    """Both clients after these rounds; the second stage begins in round 3."""
    cohort = image_cohort(learner)
    for server_round in rounds:
        cohort = at_round(learner, cohort, server_round)
        train_cohort(learner, cohort, learner.context(GUIDANCE, cohort))
    return cohort


def totals(learner: AnalyticClassesLearner, cohort: Cohort) -> Guidance:
    sent_arrays = learner.contribution(cohort, learner.context(GUIDANCE, cohort), 4).arrays
    arrays = {n: array.sum(axis=0) for n, array in sent_arrays.items()}
    return Guidance(arrays)


def test_each_stage_counts_once_however_many_rounds_it_lasts() -> None:
    learner = learner_of()
    contribution = learner.contribution(
        trained(learner), learner.context(GUIDANCE, image_cohort(learner)), 4
    )
    assert contribution.arrays[COUNTS].tolist() == [[3, 1, 2], [0, 6, 0]]
    assert contribution.arrays[GRAM].shape == (2, 24 * 25 // 2)
    assert contribution.arrays[MOMENT].shape == (2, 3, 24)
    first = trained(learner, (1, 2))
    assert first.memory.sums["counts"].tolist() == [[2, 1, 0], [0, 3, 0]]


def test_one_for_all_is_that_of_all_images_in_one_place() -> None:
    learner = learner_of(**{"analytic.sharing": "federated"})
    cohort = trained(learner)
    assert learner.receive(cohort, totals(learner, cohort)) == [0, 1]
    features, labels = [], []
    for server_round in (1, 3):
        vectors = learner.task.train_vectors(
            cohort.parameters, at_round(learner, cohort, server_round).samples
        )
        present = vectors.present.bool()
        features.append(vectors.features[present].numpy())
        labels.append(vectors.labels[present].numpy())
    x, y = np.concatenate(features).astype(np.float64), np.concatenate(labels)
    within = sum(np.cov(x[y == c].T, bias=True) * (y == c).mean() for c in range(3))
    directions = np.trace(within) ** 2 / np.square(within).sum()
    ridge = 3 * directions / len(y) * np.trace(within) / 24 * np.eye(24)
    prior = np.bincount(y) / len(y)
    oracle = LinearDiscriminantAnalysis(
        solver="lsqr", covariance_estimator=_FixedCovariance(within + ridge)
    )
    oracle.set_params(priors=prior).fit(x, y)
    scores = torch.from_numpy(x) @ cohort.parameters[HEAD + "weight"][0].double()
    ours = (scores + cohort.parameters[HEAD + "bias"][0]).log_softmax(dim=1).numpy()
    reference = oracle.predict_log_proba(x)
    np.testing.assert_allclose(ours, reference, rtol=2e-3, atol=2e-3)


def test_a_total_that_has_no_covariance_leaves_each_its_own() -> None:
    learner = learner_of()
    cohort = trained(learner)
    guidance = totals(learner, cohort)
    guidance.arrays[GRAM] -= 1e6
    before = cohort.parameters[HEAD + "weight"].clone()
    assert learner.receive(cohort, guidance) == []
    torch.testing.assert_close(cohort.parameters[HEAD + "weight"], before)
    assert Metric("accuracy", shared=True) not in learner.evaluate(cohort, guidance)


class _FixedCovariance:
    """A covariance estimator that knows the answer of all classes together."""

    def __init__(self, covariance: np.ndarray) -> None:
        self.covariance_ = covariance

    def fit(self, x: np.ndarray) -> _FixedCovariance:
        return self


@pytest.mark.parametrize("prior", ["own", "even"])
def test_own_classifiers_keep_what_earlier_stages_taught(prior: str) -> None:
    learner = learner_of(**{"analytic.prior": prior})
    cohort = trained(learner)
    guidance = totals(learner, cohort)
    learner.receive(cohort, guidance)
    metrics = learner.evaluate(cohort, guidance)
    assert metrics[Metric("accuracy")] == [1.0, 1.0]
    assert len(metrics[Metric("accuracy", shared=True)]) == 2
    bias = cohort.parameters[HEAD + "bias"]
    assert not torch.equal(bias[0], bias[1]) or prior == "even"


def test_alone_a_client_never_names_a_class_that_it_does_not_have() -> None:
    learner = learner_of(**{"analytic.sharing": "none"})
    cohort = trained(learner)
    assert learner.contribution(cohort, learner.context(GUIDANCE, cohort), 1).arrays == {}
    assert learner.receive(cohort, GUIDANCE) == []
    vectors = learner.task.validation_vectors(cohort.parameters, cohort.samples)
    chosen = learner.task.predict(cohort.parameters, vectors.features).argmax(dim=2)
    assert set(chosen[1].tolist()) == {1}


def test_a_stage_without_images_of_its_own_is_not_counted_again() -> None:
    learner = learner_of()
    cohort = image_cohort(learner)
    train_cohort(learner, cohort, learner.context(GUIDANCE, cohort))
    counts = cohort.memory.sums["counts"].clone()
    later = replace(at_round(learner, cohort, 3).samples, trained_stages=[0, 0])
    cohort = replace(cohort, samples=later)
    train_cohort(learner, cohort, learner.context(GUIDANCE, cohort))
    torch.testing.assert_close(cohort.memory.sums["counts"], counts)


def test_a_client_leans_to_its_cluster_and_to_all_where_its_cluster_is_silent() -> None:
    total = ClassSums(
        torch.eye(2), torch.tensor([[6.0, 0.0], [0.0, 8.0]]), torch.tensor([3.0, 4.0])
    )
    arrays = {
        WITHIN: np.array([5.0, 1.0, 4.0]),
        CLUSTER_MOMENT: np.array([[[1.0, 1.0], [0.0, 0.0]]]),
        CLUSTER_COUNTS: np.array([[2.0, 0.0]]),
    }
    guidance = Guidance(arrays, clients=["b"])
    [cluster] = clusters_in(guidance, ["a", "b"], total)
    assert cluster.moment.tolist() == [[[6, 0], [0, 8]], [[1, 1], [0, 8]]]
    assert cluster.counts.tolist() == [[3, 4], [2, 4]]
    assert cluster.spread.gram.tolist() == [[5, 1], [1, 4]]
    assert clusters_in(GUIDANCE, ["a", "b"], total) == []
