"""The closed form for classes: stages, guesses, clusters, and which sums the server takes."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from fedproto_app.core.clients import ClientFacts, ClientKey
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import ClientReply, Received, Round, Total
from fedproto_app.core.sends import Sends
from fedproto_app.core.wire import read_order
from fedproto_app.data.sequences.clients import ClientSequences, LabelledSequences
from fedproto_app.data.shape import DataShape
from fedproto_app.experiments.invariants import SmallRuns, invariants_of
from fedproto_app.maths.class_gaussian import (
    ClassSums,
    LabelledVectors,
    OwnScatter,
    class_sums,
    log_loss,
    own_scatter,
)
from fedproto_app.models.model import HEAD
from fedproto_app.report.runs import read_rounds, read_run
from fedproto_app.settings import settings_from
from fedproto_app.strategies.analytic import classes_learner, learns_from_validation
from fedproto_app.strategies.analytic import classes_strategy as class_groups
from fedproto_app.strategies.analytic.classes_learner import (
    SEQUENCE_FEATURES,
    AnalyticClassesLearner,
)
from fedproto_app.strategies.analytic.classes_strategy import (
    AnalyticClassesStrategy,
    ClassGroups,
    class_clusters,
    evidence,
    merged,
    within_clusters,
)
from fedproto_app.strategies.common import class_fit
from fedproto_app.strategies.common.class_fit import (
    CLUSTER_COUNTS,
    CLUSTER_MOMENT,
    COUNTS,
    GRAM,
    HOLDERS,
    MOMENT,
    SCATTER,
    ClassFit,
    Classifier,
    ClassPool,
    Fits,
    Fold,
    arrived,
    clusters_in,
    packed,
    sent_sums,
    unpacked,
)
from fedproto_app.strategies.common.flower_strategy import FlowerStrategy
from fedproto_app.strategies.common.learner import Cohort, make_learner, train_cohort
from tests.helpers.tiny_cohort import cohort_of
from tests.helpers.tiny_images import STAGES, at_round, client_of, image_cohort, image_learner
from tests.helpers.tiny_sequences import sequence_client, sequence_settings, task_of
from tests.strategies.server_half import (
    NO_GRID,
    NODE,
    accept,
    admit,
    class_sums_of,
    evaluation,
    refusals,
    replies,
    restored,
    round_of,
    server_of,
)

# --- the client's half ---------------------------------------------------------------------------


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


def guidance_of_totals(learner: AnalyticClassesLearner, cohort: Cohort) -> Guidance:
    sent_arrays = learner.contribution(cohort, learner.context(GUIDANCE, cohort)).arrays
    arrays = {n: array.sum(axis=0) for n, array in sent_arrays.items()}
    return Guidance(arrays)


def test_each_stage_counts_once_however_many_rounds_it_lasts() -> None:
    learner = learner_of()
    cohort = trained(learner)
    contribution = learner.contribution(cohort, learner.context(GUIDANCE, cohort))
    assert cohort.memory.sums["counts"].tolist() == [[3, 1, 2], [0, 6, 0]]
    assert contribution.arrays[COUNTS].tolist() == [[5, 2, 3], [0, 8, 0]]  # and validation images
    assert contribution.arrays[GRAM].shape == (2, 24 * 25 // 2)
    assert contribution.arrays[MOMENT].shape == (2, 3, 24)
    first = trained(learner, (1,))
    assert first.memory.sums["counts"].tolist() == [[2, 1, 0], [0, 3, 0]]


def test_one_for_all_is_that_of_all_images_in_one_place() -> None:
    learner = learner_of(**{"analytic.sharing": "federated"})
    cohort = trained(learner)
    assert learner.receive(cohort, guidance_of_totals(learner, cohort)) == [0, 1]
    features, labels = [], []
    for server_round in (1, 3):
        vectors = learner.task.train_vectors(
            cohort.parameters, at_round(learner, cohort, server_round).samples
        )
        parts = [vectors]
        if server_round == 3:
            parts.append(learner.task.validation_vectors(cohort.parameters, cohort.samples))
        for part in parts:
            features.append(part.features[part.present.bool()].numpy())
            labels.append(part.labels[part.present.bool()].numpy())
    x, y = np.concatenate(features).astype(np.float64), np.concatenate(labels)
    within = sum(np.cov(x[y == c].T, bias=True) * (y == c).mean() for c in range(3))
    variances = x.var(axis=0).clip(min=1e-6 * np.square(x).mean())
    variances = np.sqrt(variances * variances.mean())
    relative = within / np.sqrt(np.outer(variances, variances))
    directions = np.trace(relative) ** 2 / np.square(relative).sum()
    ridge = 3 * directions / len(y) * np.trace(relative) / 24 * np.diag(variances)
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
    guidance = guidance_of_totals(learner, cohort)
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
    guidance = guidance_of_totals(learner, cohort)
    learner.receive(cohort, guidance)
    metrics = learner.evaluate(cohort, guidance)
    assert metrics[Metric("accuracy")] == [1.0, 1.0]
    assert len(metrics[Metric("accuracy", shared=True)]) == 2
    bias = cohort.parameters[HEAD + "bias"]
    assert not torch.equal(bias[0], bias[1]) or prior == "even"


def test_alone_a_client_never_names_a_class_that_it_does_not_have() -> None:
    learner = learner_of(**{"analytic.sharing": "none"})
    cohort = trained(learner)
    assert learner.contribution(cohort, learner.context(GUIDANCE, cohort)).arrays == {}
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
        CLUSTER_MOMENT: np.array([[[1.0, 1.0], [0.0, 0.0]]]),
        CLUSTER_COUNTS: np.array([[2.0, 0.0]]),
    }
    guidance = Guidance(arrays, clients=["b"])
    [cluster] = clusters_in(guidance, ["a", "b"], total)
    assert cluster.moment.tolist() == [[[6, 0], [0, 8]], [[1, 1], [0, 8]]]
    assert cluster.counts.tolist() == [[3, 4], [2, 4]]
    assert clusters_in(GUIDANCE, ["a", "b"], total) == []


# --- validation samples --------------------------------------------------------------------------


def vectors_of(labels: list[int], values: list[float]) -> LabelledVectors:
    features = torch.tensor(values).double().view(1, -1, 1)
    return LabelledVectors(features, torch.tensor([labels]), torch.ones(1, len(labels)))


def test_totals_that_no_samples_have_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    learner = learner_of()
    cohort = trained(learner, (1,))
    guidance = guidance_of_totals(learner, cohort)
    assert learner.receive(cohort, guidance) == [0, 1]
    assert caplog.messages == []
    wrong = Guidance({**guidance.arrays, GRAM: -guidance.arrays[GRAM]})
    assert learner.receive(cohort, wrong) == []
    assert caplog.messages == ["event=invalid-totals round=1 clients=2"]


def test_the_final_fit_is_that_of_all_samples_by_hand() -> None:
    train, held_out = vectors_of([0, 0, 1, 1], [0, 2, 4, 6]), vectors_of([0], [4])
    fold, sums = Fold(held_out, in_sums=True), class_sums(train, 2).plus(class_sums(held_out, 2))
    final, [judged] = ClassFit(1.0, even=False).alone(sums, [fold], plain=True)
    # Without the last sample: means 1 and 5 around 3, S = 1, and 3/4 of it is added.
    assert judged[0].flatten().tolist() == pytest.approx([-2 / 1.75, 2 / 1.75])
    assert judged[1].tolist() == [pytest.approx([4 / 1.75 - math.log(2), -8 / 1.75 - math.log(2)])]
    # With it: means 2 and 5 around 3.2, S = (8 + 2)/5 = 2, and 3/5 of it is added.
    assert final[0].flatten().tolist() == pytest.approx([-1.2 / 3.2, 1.8 / 3.2])
    offsets = [2.6 * 1.2 / 3.2 + math.log(0.6), -4.1 * 1.8 / 3.2 + math.log(0.4)]
    assert final[1].tolist() == [pytest.approx(offsets)]


@pytest.mark.parametrize("count", [40, 400])
def test_classifiers_of_many_features_are_not_too_sure(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two classes overlap in each of 40 features. Six clients share their sums."""
    draws = torch.Generator().manual_seed(0)

    def drawn(samples: int) -> LabelledVectors:
        labels = (torch.rand(6, samples, generator=draws) < 0.8).long()
        features = torch.randn(6, samples, 40, generator=draws) + 0.1 * labels.unsqueeze(-1)
        return LabelledVectors(features, labels, torch.ones(6, samples))

    train, validation, test = drawn(count), drawn(10), drawn(400)
    fold = Fold(validation, in_sums=True)
    sums = class_sums(train, 2).plus(class_sums(validation, 2))
    total = added(sums, [1.0] * 6)

    def test_losses(shrunk: Sequence[float]) -> list[float]:
        monkeypatch.setattr(class_fit, "SHRUNK", shrunk)
        weight, bias = ClassFit(0.01, even=False).personal(sums, total, [fold]).final
        scores = test.features.double() @ weight + bias.unsqueeze(1)
        return log_loss(scores, test.labels, test.present).tolist()

    with_shrunk, without = test_losses(class_fit.SHRUNK), test_losses((1.0,))
    assert sum(with_shrunk) < (0.9 if count == 40 else 1.02) * sum(without)


def random_vectors(seed: int, samples: int) -> LabelledVectors:
    """Of three clients."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (3, samples), generator=draws)
    features = torch.randn(3, samples, 4, generator=draws) + labels.unsqueeze(-1)
    return LabelledVectors(features, labels, torch.ones(3, samples))


def random_sums(seed: int, samples: int) -> ClassSums:
    return class_sums(random_vectors(seed, samples), 2)


def joined(*parts: LabelledVectors) -> LabelledVectors:
    return LabelledVectors(*(torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True)))


def added(sums: ClassSums, shares: Sequence[float]) -> ClassSums:
    weights = torch.tensor(shares).double()
    return ClassSums(*(torch.einsum("k,k...->...", weights, part) for part in sums))


def scatter_of(sums: ClassSums, shares: Sequence[float]) -> OwnScatter:
    weights, own = torch.tensor(shares).double(), own_scatter(sums)
    return OwnScatter(*(torch.einsum("k,k...->...", weights, part.double()) for part in own))


@pytest.mark.parametrize("sites_differ", [False, True])
def test_judged_candidates_never_saw_the_validation_samples_and_the_final_saw_all(
    sites_differ: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_fit, "ETA", 0.0)  # all candidates weigh the same
    monkeypatch.setattr(class_fit, "LEAST_JUDGING", 0)
    monkeypatch.setattr(class_fit, "means_differ", lambda total, own: sites_differ)
    parts, shares = (
        [random_vectors(seed, count) for seed, count in enumerate((12, 5, 4))],
        [1, 0.5, 1],
    )
    known = class_sums(joined(*parts), 2)

    def fits_of(sums: ClassSums, of_others: ClassSums, folds: list[Fold]) -> Fits:
        """Fit to these sums. of_others: what the totals hold."""
        total = added(of_others, shares)
        own = scatter_of(of_others, shares)
        pair = added(ClassSums(*(part[:2] for part in of_others)), shares[:2])  # a cluster
        moment, counts = total.moment.repeat(3, 1, 1), total.counts.repeat(3, 1)
        moment[:2], counts[:2] = pair.moment, pair.counts
        clusters = [ClassPool(moment, counts)]
        fit = ClassFit(1.0, even=False)
        return fit.personal(sums, total, folds, own=own, clusters=clusters, shares=shares)

    fits = fits_of(known, known, [Fold(part, in_sums=True) for part in parts[1:]])
    elsewhere = [Fold(parts[1], in_sums=False)]
    for actual, expected in zip(fits.final, fits_of(known, known, elsewhere).final, strict=True):
        torch.testing.assert_close(actual, expected)
    for judged, remaining in zip(fits.judged, ((0, 2), (0, 1)), strict=True):
        without = class_sums(joined(*(parts[number] for number in remaining)), 2)
        for row in range(3):
            of_others = ClassSums(*(part.clone() for part in known))
            for part, others_part in zip(of_others, without, strict=True):
                part[row] = others_part[row]
            expected_fits = fits_of(without, of_others, elsewhere)
            for actual, expected in zip(judged, expected_fits.final, strict=True):
                torch.testing.assert_close(actual[row], expected[row])


def test_a_client_without_a_class_takes_it_from_the_others_by_hand() -> None:
    """Its classes 0 and 1 have bias 1 and 3 together, so its scores 5 and 1 are lowered by 1."""
    together = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[1.0, 3.0, 7.0]])
    alone = torch.tensor([[[4.0, 9.0, 0.0]]]), torch.tensor([[5.0, 1.0, -1e4]])
    weight, bias = class_fit._completed(alone, together, torch.tensor([[4.0, 2.0, 0.0]]))
    assert bias.tolist() == [[4.0, 0.0, 7.0]]
    assert weight.tolist() == [[[-1.0, 4.0, 3.0]]]  # 4 and 9 lowered by 5
    for actual, expected in zip(
        class_fit._completed(alone, together, torch.zeros(1, 3)), together, strict=True
    ):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize(("samples", "is_mixed"), [(11, False), (12, True)])
def test_a_client_with_few_samples_does_not_use_its_own_classifier(
    samples: int, is_mixed: bool
) -> None:
    """The first sample of each of two classes does not count."""
    vectors = LabelledVectors(*(part[:1] for part in random_vectors(0, samples)))
    sums, ours = class_sums(vectors, 2), (torch.zeros(1, 4, 2).double(), torch.zeros(1, 2).double())
    alone, folds = (ours[0] + torch.tensor([1.0, 2.0]), ours[1]), [Fold(vectors, in_sums=False)]
    mixed = class_fit._mixed(Fits(ours, [ours]), Fits(alone, [alone]), sums, folds)
    assert torch.equal(mixed.final[0], ours[0]) != is_mixed


def test_one_for_all_is_judged_without_a_clients_validation_samples() -> None:
    train, held_out, shares = random_sums(0, 12), random_sums(1, 5), [1.0, 0.5, 1.0]
    total, fit = added(train.plus(held_out), shares), ClassFit(1.0, even=False)
    judged = fit.of_all_judged(total, held_out, shares)
    for row in range(3):
        counted = [share * (client != row) for client, share in enumerate(shares)]
        expected_fit = fit.of_all(added(train, shares).plus(added(held_out, counted)))
        assert expected_fit is not None
        for actual, expected in zip(judged, expected_fit, strict=True):
            torch.testing.assert_close(actual[row], expected)


def test_parts_of_the_train_samples_judge_where_there_are_few_validation_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = learner_of()
    cohort = trained(learner)
    train = learner.task.train_vectors(cohort.parameters, cohort.samples)
    validation = learner._validation(cohort, cohort.memory.stages)
    first, *parts = learner._folds(cohort, validation)
    assert first == Fold(validation, in_sums=True)
    of_parts = [class_sums(part.vectors, 3) for part in parts]
    whole = class_sums(train, 3)
    assert len(parts) == 3
    for column, expected in enumerate(whole):
        torch.testing.assert_close(sum(sums[column] for sums in of_parts), expected)
    for sums in of_parts:
        assert ((sums.counts - whole.counts / 3).abs() < 1).all()
    # Samples of a stage that is not in the sums judge nothing, whether it is newer or older.
    taken_in = int(cohort.memory.stages[0])
    for stages in (taken_in - 1, taken_in + 1):
        cohort.memory.stages[0] = stages
        _, *parts = learner._folds(cohort, validation)
        assert all(part.vectors.present[0].sum() == 0 for part in parts)
        assert all(part.vectors.present[1].sum() > 0 for part in parts)
    # Neither do train samples of a client with enough validation samples.
    cohort.memory.stages[0] = taken_in
    several = validation._replace(present=torch.tensor([[1.0], [0.0]]) * validation.present)
    monkeypatch.setattr(classes_learner, "ENOUGH_VALIDATION", int(several.present.sum(dim=1).max()))
    _, *parts = learner._folds(cohort, several)
    assert [sum(part.vectors.present[row].sum() for part in parts) > 0 for row in (0, 1)] == [
        False,
        True,
    ]


@pytest.mark.parametrize("sharing", ["none", "shrunk"])
def test_a_client_is_fitted_with_all_samples_that_judge(sharing: str) -> None:
    learner = learner_of(**{"analytic.sharing": sharing})
    cohort = trained(learner, (1,))
    guidance = guidance_of_totals(learner, cohort) if sharing == "shrunk" else GUIDANCE
    learner.receive(cohort, guidance)
    validation = learner._validation(cohort, cohort.memory.stages)
    sums, fit = learner._with(validation, unpacked(cohort.memory.sums)), ClassFit(1.0, even=False)

    def head(folds: Sequence[Fold]) -> Tensor:
        if sharing == "none":
            return fit.alone(sums, folds).final[0].float()
        total = ClassSums(*(part.sum(0) for part in sums))
        return fit.personal(sums, total, folds).final[0].float()

    folds = learner._folds(cohort, validation)
    actual = cohort.parameters[HEAD + "weight"]
    torch.testing.assert_close(actual, head(folds), rtol=1e-3, atol=1e-3)
    assert (actual - head(folds[:1])).abs().max() > 0.01


def test_candidates_are_weighed_by_evidence_and_all_folds_by_hand() -> None:
    """Two candidates give the true class of the only sample of each fold different odds."""

    def candidates(*odds: float) -> Classifier:
        biases = [[math.log(of_first), 0.0] for of_first in odds]
        return torch.zeros(len(odds), 1, 2).double(), torch.tensor(biases).double()

    fold = Fold(vectors_of([0], [0]), in_sums=False)
    final, judged = candidates(1, 1e6), [candidates(3, 1), candidates(3, 1)]  # ¾ and ½ likely
    fits = class_fit._weighed(final, judged, torch.tensor([0.0, math.log(2)]), [fold, fold])
    second = 2 / (2 + (3 / 2) ** (2 * class_fit.ETA))
    assert fits.final[1][0, 0].item() == pytest.approx(second * math.log(1e6))
    assert fits.judged[1][1][0, 0].item() == pytest.approx((1 - second) * math.log(3))


def test_a_class_of_validation_samples_alone_leaves_no_trace() -> None:
    total = ClassSums(torch.eye(1), torch.tensor([[3.0], [0.1]]), torch.tensor([2.0, 1.0]))
    out = ClassSums(0 * torch.eye(1), torch.tensor([[0.0], [0.1 + 1e-7]]), torch.tensor([0.0, 1]))
    assert total.less(out).moment.tolist() == [[3.0], [0.0]]


@pytest.mark.parametrize(
    ("masked", "sharing"),
    [
        (False, "none"),
        (False, "federated"),
        (False, "shrunk"),
        (True, "federated"),
        (True, "shrunk"),
    ],
)
def test_validation_errors_are_those_of_models_without_the_validation_samples(
    masked: bool, sharing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_fit, "ETA", 0.0)  # all candidates weigh the same
    learner = learner_of(**{"analytic.sharing": sharing, "aggregation.secure": masked})
    cohort = trained(learner)
    sent_arrays = learner.contribution(cohort, learner.context(GUIDANCE, cohort)).arrays
    guidance = Guidance({name: array.sum(axis=0) for name, array in sent_arrays.items()})
    assert (SCATTER in sent_arrays) == masked
    learner.receive(cohort, guidance)
    validation = learner.task.validation_vectors(cohort.parameters, cohort.samples)
    train, fit = unpacked(cohort.memory.sums), ClassFit(1.0, even=False)
    held_out = class_sums(validation, 3)
    not_in_sums = [Fold(validation, in_sums=False)]
    errors = []
    for row in range(2):
        sums = train.plus(held_out)
        for part, train_part in zip(sums, train, strict=True):
            part[row] = train_part[row]
        total = added(sums, [1, 1])
        if sharing == "none":
            expected = fit.alone(train, not_in_sums).final
        elif sharing == "federated":
            of_all = fit.of_all(total)
            assert of_all is not None
            expected = of_all[0].expand(2, -1, -1), of_all[1].expand(2, -1)
        else:
            own = scatter_of(sums, [1, 1]) if masked else None
            expected = fit.personal(train, total, not_in_sums, own=own).final
        for name, value in zip(("weight", "bias"), expected, strict=True):
            actual = cohort.memory.judged[name][row]
            torch.testing.assert_close(actual, value[row].float(), rtol=1e-3, atol=1e-3)
        scores = validation.features[row].double() @ expected[0][row] + expected[1][row]
        wrong = (scores.argmax(dim=1) != validation.labels[row]).double()
        errors.append(
            float((wrong * validation.present[row]).sum() / validation.present[row].sum())
        )
    metrics = learner.evaluate(cohort, guidance)
    assert metrics[Metric("validation-error")] == pytest.approx(errors)
    if sharing == "federated":
        assert metrics[Metric("validation-error", shared=True)] == pytest.approx(errors)


def test_a_client_that_missed_a_stage_takes_out_only_what_it_sent() -> None:
    learner = learner_of(**{"analytic.sharing": "federated"})
    cohort = trained(learner, (1,))
    guidance = guidance_of_totals(learner, cohort)
    learner.receive(cohort, guidance)
    on_time = cohort.memory.judged["weight"].clone()
    late = at_round(learner, cohort, 2)  # with validation images of the next stage
    learner.receive(late, guidance)
    assert late.samples.is_validation.sum() > cohort.samples.is_validation.sum()
    torch.testing.assert_close(late.memory.judged["weight"], on_time)


NOISE = {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0}


@pytest.mark.parametrize(
    ("learns", "changes"),
    [
        (True, {}),
        (True, {"aggregation.secure": True}),
        (False, {"aggregation.rule": "median"}),
        (False, NOISE),
    ],
)
def test_validation_samples_join_plain_sums_and_are_declared(
    learns: bool, changes: dict[str, Any]
) -> None:
    task = {"task": "classification", "method": "analytic", "data.partition.scheme": "given"}
    assert learns_from_validation(settings_from({**task, "keep": "last", **changes})) == learns
    learner = learner_of(**changes)
    cohort = trained(learner)
    arrays = learner.contribution(cohort, learner.context(GUIDANCE, cohort)).arrays
    clients = [client_of(name, stages) for name, stages in STAGES.items()]
    declared = [replace(client, learns_validation=learns).train_samples for client in clients]
    assert arrays[COUNTS].sum(axis=1).tolist() == declared == ([10, 8] if learns else [6, 6])


# --- sequences without a label -------------------------------------------------------------------


LABELLED = 6  # of a client's train sequences have a label


def plain(client: ClientSequences) -> ClientSequences:
    """With classes so far apart that few labels say what the other sequences are, and without
    validation sequences, whose labels would be as many."""
    apart = [
        values + np.float32(4 * target)
        for values, target in zip(client.train.values, client.train.targets, strict=True)
    ]
    none = LabelledSequences([], client.train.targets[:0])
    return replace(client, train=replace(client.train, values=apart), validation=none)


COMPLETE = [
    plain(sequence_client("a", [0, 1, 2] * 8, (6, 9))),
    plain(sequence_client("b", [0, 2, 1] * 7, (6, 9))),
    plain(sequence_client("c", [0, 1, 2] * 2, (6, 9))),  # all of it has labels
]
PARTLY_LABELLED = [
    replace(
        client,
        train=replace(
            client.train,
            values=client.train.values[:LABELLED],
            targets=client.train.targets[:LABELLED],
        ),
        unlabelled=client.train.values[LABELLED:],
    )
    for client in COMPLETE
]
SHARES = {"analytic.sharing": "shrunk"}


def guessing_learner(**changes: Any) -> AnalyticClassesLearner:
    settings = sequence_settings(
        method="analytic",
        keep="last",
        **{"analytic.features": 20, "analytic.guess-rounds": 2, **SHARES, **changes},
    )
    learner = make_learner(settings, task_of(settings))
    assert isinstance(learner, AnalyticClassesLearner)
    return learner


def a_round(
    learner: AnalyticClassesLearner,
    cohort: Cohort,
    server_round: int,
    clients: Sequence[ClientSequences] = PARTLY_LABELLED,
) -> Arrays:
    """Train, add up and receive; returns what the clients sent."""
    cohort.server_round = server_round
    cohort.samples = learner.task.gather(clients, server_round)
    context = learner.context(Guidance(), cohort)
    train_cohort(learner, cohort, context)
    sent_arrays = learner.contribution(cohort, context).arrays
    total = {name: array.sum(axis=0) for name, array in sent_arrays.items()}
    assert learner.receive(cohort, Guidance(total)) == [0, 1, 2]
    return sent_arrays


def test_the_first_round_counts_labels_and_the_next_ones_guesses_too() -> None:
    learner = guessing_learner()
    cohort = cohort_of(learner, PARTLY_LABELLED, 1)
    first = a_round(learner, cohort, 1)
    assert first[COUNTS].sum(axis=1).tolist() == [LABELLED] * 3
    # By hand: what the model of the first round says of the unlabelled ones.
    all_samples = learner.task.gather(PARTLY_LABELLED, 2)
    vectors = learner.task.train_vectors(cohort.parameters, all_samples)
    predictions = learner.task.predict(cohort.parameters, vectors.features).argmax(dim=2)
    labels, present = vectors.labels.clone(), torch.zeros_like(vectors.present)
    for row, client in enumerate(PARTLY_LABELLED):
        labels[row, LABELLED : client.train_samples] = predictions[
            row, LABELLED : client.train_samples
        ]
        present[row, : client.train_samples] = 1
    second = a_round(learner, cohort, 2)
    assert second[COUNTS].sum(axis=1).tolist() == [24, 21, 6]
    expected = class_sums(vectors._replace(labels=labels, present=present), 3)
    actual = arrived(second, torch.device("cpu"))
    for ours, expected_part in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, expected_part, rtol=1e-5, atol=1e-4)


def test_guesses_that_are_right_are_as_good_as_labels() -> None:
    learner = guessing_learner()
    cohort = cohort_of(learner, PARTLY_LABELLED, 1)
    for server_round in (1, 2, 3):
        sent_arrays = a_round(learner, cohort, server_round)
    complete_learner = guessing_learner()
    complete_cohort = cohort_of(complete_learner, COMPLETE, 1)
    complete_arrays = a_round(complete_learner, complete_cohort, 1, COMPLETE)
    right = [(client.train.targets == label).sum() for client in COMPLETE for label in range(3)]
    assert sent_arrays[COUNTS].flatten().tolist() == right
    for name in (GRAM, MOMENT):
        torch.testing.assert_close(
            torch.from_numpy(sent_arrays[name]), torch.from_numpy(complete_arrays[name])
        )


def test_who_has_no_model_yet_or_does_not_guess_leaves_such_sequences_out() -> None:
    learner = guessing_learner()
    without_model = a_round(learner, cohort_of(learner, PARTLY_LABELLED, 2), 2)
    learner = guessing_learner(**{"analytic.guess-rounds": 0})
    cohort = cohort_of(learner, PARTLY_LABELLED)
    a_round(learner, cohort, 1)
    for sent_arrays in (without_model, a_round(learner, cohort, 2)):
        assert sent_arrays[COUNTS].sum(axis=1).tolist() == [LABELLED] * 3


def test_alone_a_client_guesses_by_its_own_model() -> None:
    learner = guessing_learner(**{"analytic.sharing": "none"})
    cohort = cohort_of(learner, PARTLY_LABELLED, 1)
    for server_round, count in ((1, [LABELLED] * 3), (2, [24, 21, 6])):
        cohort.server_round = server_round
        cohort.samples = learner.task.gather(PARTLY_LABELLED, server_round)
        train_cohort(learner, cohort, learner.context(Guidance(), cohort))
        assert cohort.memory.sums["counts"].sum(dim=1).tolist() == count


# --- the server's half ---------------------------------------------------------------------------

WIDTH, SHAPE = 8, DataShape((1, 8, 8), ("ant", "bee"))


def server(**changes: Any) -> AnalyticClassesStrategy:
    """The server for one filter, so eight features."""
    small = {"task": "classification", "keep": "last", "data.source": "digits"}
    strategy: AnalyticClassesStrategy = server_of(
        "analytic", SHAPE, **{**small, "analytic.features": 1, **changes}
    )
    return strategy


def sums_of(seed: int, **changes: Any) -> Arrays:
    return class_sums_of(WIDTH, seed, **changes)


def report(
    strategy: AnalyticClassesStrategy, node: str = NODE, /, **clients: Arrays
) -> dict[str, str]:
    """Give the server these sums. Returns what was refused, and why."""
    return refusals(accept(strategy, replies(node, **clients)))


def totals(strategy: AnalyticClassesStrategy) -> Arrays:
    return evaluation(strategy).arrays


def test_with_a_rule_one_of_three_does_not_move_the_means_of_classes() -> None:
    robust = server(**{"aggregation.rule": "median"})
    good, liar = sums_of(0), sums_of(0)
    liar["moment"] = liar["moment"][::-1]  # of as many samples each
    assert report(robust, a=good, b=good, c=liar) == {}
    for name, total in totals(robust).items():
        np.testing.assert_allclose(total, 3 * good[name], rtol=1e-4, atol=1e-4)


def test_all_get_the_scatter_around_each_clients_own_means_unless_noise_hides_it() -> None:
    strategy = server()
    clients = {"a": sums_of(0), "b": sums_of(1, classes=[0, 0, 0, 0])}
    report(strategy, **clients)
    arrays = totals(strategy)
    between = sum(
        np.outer(moment, moment) / max(count, 1)
        for sums in clients.values()
        for moment, count in zip(sums[MOMENT].astype(float), sums[COUNTS], strict=True)
    )
    expected = arrays[GRAM] - between[np.triu_indices(WIDTH)]
    np.testing.assert_allclose(arrays[SCATTER], expected, rtol=1e-4, atol=1e-5)
    assert arrays[HOLDERS].tolist() == [2, 1]
    noise = {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0}
    for hidden in ({"aggregation.rule": "median"}, noise):
        strategy = server(**hidden)
        report(strategy, **clients)
        assert totals(strategy).keys() == {GRAM, MOMENT, COUNTS}


def test_a_masked_total_that_no_samples_have_is_refused() -> None:
    strategy = server(**{"aggregation.secure": True})
    values = {name: sums_of(0)[name] + sums_of(1)[name] for name in (GRAM, MOMENT, COUNTS)}
    scatter = sent_sums({n: torch.from_numpy(a) for n, a in values.items()}, masked=True)
    for factor, taken in ((-1.0, set()), (1.0, set(scatter))):
        total = Total({**scatter, SCATTER: factor * scatter[SCATTER]}, 2, np.zeros(0, np.int64))
        strategy.received.take_total(total)
        strategy.update(round_of(strategy))
        assert totals(strategy).keys() == taken
    [refusal] = strategy.federation.history.log.refused
    assert refusal.reason.endswith("no samples have such sums and products")


def test_sums_that_cannot_be_true_are_refused() -> None:
    strategy = server()
    noise = {**sums_of(0), "moment": np.zeros((2, WIDTH), np.float32)}
    noise["gram"] = noise["gram"] * 1e4
    too_many = {**sums_of(1), "counts": np.array([1e6, 2], np.float32)}
    one_class = sums_of(2)
    one_class["moment"] = one_class["moment"] * 9
    refused = report(strategy, a=sums_of(3), b=sums_of(4), c=noise, late=too_many)
    assert set(refused) == {"c", "late"}
    assert "more than 10 times what is usual" in refused["c"]
    assert "more than the 4 that it declared" in refused["late"]
    refused = report(strategy, late=one_class)
    assert "no samples have such sums and products" in refused["late"]
    refused = report(strategy, late={**sums_of(5), "moment": -sums_of(5)["moment"]})
    assert "its features are never negative" in refused["late"]
    np.testing.assert_allclose(totals(strategy)["counts"], [4, 4])


def test_a_node_that_lost_its_memory_does_not_replace_what_it_sent() -> None:
    strategy = server()
    report(strategy, a=sums_of(0))
    refused = report(strategy, a=sums_of(0, samples=2))
    assert "fewer samples than its earlier sums" in refused["a"]
    np.testing.assert_allclose(totals(strategy)["counts"], [2, 2])


def test_a_run_over_stages_asks_everyone_and_tells_of_both_models(tmp_path: Path) -> None:
    runs = SmallRuns("classification", "analytic", tmp_path, **{"analytic.features": 4})
    folder = runs.run("once", 2, participation=0.3)
    lines = read_rounds(folder)
    assert len(lines) == 2  # one a stage, whatever `rounds` says
    assert {line["clients"] for line in lines} == {8}
    summary = read_run(folder).summary
    trained_on, learned = (
        [int(row[column]) for row in csv.DictReader((folder / file).read_text().splitlines())]
        for file, column in (("partition.csv", "train_samples"), ("clients.csv", "samples"))
    )
    assert sum(learned) > sum(trained_on)  # validation samples too
    assert summary["accuracy_global"] > 0.5
    assert summary["accuracy_local"] > 0.5


# Few labels, and many sequences without.
GUESSED: dict[str, Any] = {
    "keep": "last",
    "data.clusters.labels": 3,
    "data.clusters.unlabelled": True,
    "analytic.guess-rounds": 2,
}
RENAMED = {
    "analytic.features": 20,
    "data.clusters.renamed": True,
    "data.clusters.clusters": 2,
    "data.clusters.clients": 8,
}


def separated_sums(swapped: bool, seed: int, times: float = 0.1) -> Arrays:
    """So many times the sums of forty samples of two classes that lie far apart, named the other
    way round or not; of as many samples as declared."""
    draws = torch.Generator().manual_seed(seed)
    true = torch.arange(40).remainder(2).unsqueeze(0)
    features = 6.0 + torch.randn(1, 40, WIDTH, generator=draws) + 6.0 * true.unsqueeze(-1)
    vectors = LabelledVectors(features, 1 - true if swapped else true, torch.ones(1, 40))
    sums = {
        name: array[0].float().numpy() for name, array in packed(class_sums(vectors, 2)).items()
    }
    return {name: (value * times).astype(np.float32) for name, value in sums.items()}


def clustered() -> AnalyticClassesStrategy:
    """With a second node, whose clients are d, e and f."""
    strategy = server(**{"analytic.sharing": "clustered"})
    admit(strategy.federation, "def", "other")
    return strategy


def answers(strategy: AnalyticClassesStrategy) -> list[Guidance]:
    """To each node."""
    orders = FlowerStrategy(strategy).configure_evaluate(1, ArrayRecord(), ConfigRecord(), NO_GRID)
    return [read_order(order).guidance for order in orders]


def test_clients_are_told_the_sums_of_those_who_mean_the_same() -> None:
    strategy = clustered()
    first_node = {name: separated_sums(False, seed) for seed, name in enumerate("abc")}
    second_node = {name: separated_sums(name != "d", 3 + seed) for seed, name in enumerate("def")}
    first_node["late"] = separated_sums(True, 6)
    assert report(strategy, **first_node) == report(strategy, "other", **second_node) == {}
    first, second = answers(strategy)
    assert (first.clients, second.clients) == (["a", "b", "c", "late"], ["d", "e", "f"])
    for guidance in (first, second):
        total = sum(sums["gram"] for sums in (*first_node.values(), *second_node.values()))
        np.testing.assert_allclose(guidance.arrays["gram"], total, rtol=1e-6)
    for name in ("moment", "counts"):
        own_cluster = sum(first_node[client][name] for client in "abc") + second_node["d"][name]
        other_cluster = first_node["late"][name] + second_node["e"][name] + second_node["f"][name]
        cluster_sums = first.arrays[f"cluster.{name}"], second.arrays[f"cluster.{name}"]
        np.testing.assert_allclose(
            cluster_sums[0], [own_cluster, own_cluster, own_cluster, other_cluster], rtol=1e-5
        )
        np.testing.assert_allclose(
            cluster_sums[1], [own_cluster, other_cluster, other_cluster], rtol=1e-5
        )
    assert strategy.federation.history.log.figures["clusters"] == 2
    labels = strategy.findings()["clusters"]["labels"].tolist()
    assert labels == [[0, 0, 0, 0, 1, 1, 1]]  # by name: a, b, c, d, e, f, late

    resumed = restored(strategy)
    for name, array in answers(resumed)[0].arrays.items():
        np.testing.assert_array_equal(array, first.arrays[name])
    assert resumed.findings()["clusters"]["labels"].tolist() == labels * 2


@pytest.mark.parametrize("swapped", [("c", "late"), ("late",)])
def test_nobody_is_told_what_one_other_client_has(swapped: tuple[str, ...]) -> None:
    """Neither a client of the cluster, nor, by the total, one of the others."""
    strategy = clustered()
    sums_by_client = {
        name: separated_sums(name in swapped, seed)
        for seed, name in enumerate(["a", "b", "c", "late"])
    }
    report(strategy, **sums_by_client)
    first, _ = answers(strategy)
    assert first.clients == []
    assert set(first.arrays) == {GRAM, MOMENT, COUNTS, SCATTER, HOLDERS}


def clusters_among(sums_by_client: dict[str, Arrays]) -> list[int]:
    """In the order of names."""
    shapes = {name: array.shape for name, array in next(iter(sums_by_client.values())).items()}
    latest = Received([Sends("sums", shapes, remember="latest")])
    latest.take(
        [ClientReply(ClientKey(name, NODE), 9, sums) for name, sums in sums_by_client.items()]
    )
    facts = {ClientKey(name, NODE): ClientFacts(9, "", 0.0) for name in sums_by_client}
    groups = ClassGroups(1.0)
    groups.find(latest, latest.totals(), Round(1, facts))
    [labels] = groups.findings(facts)["clusters"]["labels"].tolist()
    return list(labels)


@cache
def two_namings() -> dict[str, Arrays]:
    return {f"c{number:02}": separated_sums(number % 2 == 0, number, 1) for number in range(20)}


def test_a_liar_of_many_samples_does_not_part_the_others() -> None:
    """Its samples are all alike, so that with all of them the others' differences look large."""
    middle = torch.full((1, 2, WIDTH), 3.0)
    liar = class_sums(LabelledVectors(middle, torch.tensor([[0, 1]]), torch.ones(1, 2)), 2)
    sums = {name: 20_000 * value[0].float().numpy() for name, value in packed(liar).items()}
    assert clusters_among({**two_namings(), "liar": sums})[:20] == [0, 1] * 10


def test_clients_without_samples_hide_nobodys_cluster() -> None:
    zeros = {name: 0 * array for name, array in two_namings()["c00"].items()}
    empty = {f"none-{number}": zeros for number in range(30)}
    assert clusters_among({**two_namings(), **empty})[:20] == [0, 1] * 10
    assert clusters_among(empty) == [0] * 30


def test_too_much_work_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(class_groups, "MOST_WORK", 10)
    strategy = clustered()
    report(strategy, **{name: separated_sums(name < "c", 0) for name in ("a", "b", "c", "late")})
    assert answers(strategy)[0].clients == []
    assert "no clusters are looked for among 4 clients of 2 classes" in caplog.text


def test_a_guess_may_be_another_one_every_round() -> None:
    width = SEQUENCE_FEATURES  # of one filter
    guesses = {"analytic.features": 1, "analytic.guess-rounds": 1}
    task = {"task": "sequence-classification", "keep": "last"}
    strategy = server_of("analytic", DataShape((2,), SHAPE.classes), **task, **guesses)
    report(strategy, a=class_sums_of(width, 0))
    assert not report(strategy, a=class_sums_of(width, 1, classes=[0, 0, 0, 1]))
    np.testing.assert_allclose(totals(strategy)["counts"], [3, 1])
    refused = report(strategy, a=class_sums_of(width, 0, samples=2))
    assert "fewer samples than its earlier sums" in refused["a"]


@pytest.mark.parametrize(
    "invariant",
    [
        "1 node with 8 clients equals 8 nodes with 1",
        "a run that is killed and resumed ends the same",
    ],
)
@pytest.mark.parametrize("guesses", [False, True], ids=["clusters", "guesses"])
def test_clusters_and_guesses_hold_the_invariants(
    guesses: bool, invariant: str, tmp_path: Path
) -> None:
    task = "sequence-classification"
    changes = GUESSED if guesses else {**RENAMED, "analytic.sharing": "clustered"}
    runs = SmallRuns(task, "analytic", tmp_path, **changes)
    deviation = invariants_of(runs)[invariant](runs)
    assert deviation.held, deviation
    for folder in (tmp_path / "runs").iterdir():
        if guesses:
            assert len(read_rounds(folder)) == 1 + GUESSED["analytic.guess-rounds"]
        else:
            with np.load(folder / "clusters.npz") as artefact:
                assert artefact["labels"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]


# --- clusters of clients --------------------------------------------------------------------------


CLASSES, WIDE = 4, 12
Shape = tuple[int, int, int]  # classes, clients, samples of each


def test_evidence_by_hand() -> None:
    # One sample at 2, means with variance 3: ½·4·3/4 − ½·ln 4. No sample of a class says nothing.
    points = torch.tensor([[[2.0], [0.0]]]).double()
    actual = evidence(points, torch.tensor([[1.0, 0.0]]).double(), torch.tensor([3.0]).double())
    assert actual.tolist() == [[pytest.approx(1.5 - math.log(4) / 2), 0]]


def test_evidence_is_the_ratio_of_two_normal_densities() -> None:
    samples = np.array([0.3, -1.2, 2.0])
    ours = evidence(
        torch.tensor([[samples.sum()]]), torch.tensor([3.0]).double(), torch.tensor([0.7]).double()
    )
    common = np.eye(3) + 0.7 * np.ones((3, 3))  # of samples that share a drawn mean
    reference = multivariate_normal(cov=common).logpdf(samples) - multivariate_normal(
        cov=np.eye(3)
    ).logpdf(samples)
    assert float(ours) == pytest.approx(reference)


def best_pair_by_pair(points: Tensor, counts: Tensor, variances: Tensor) -> list[set[int]]:
    """The slow way: look at all pairs after each merge."""
    groups = [{row} for row in range(len(points))]

    def score(group: set[int]) -> float:
        rows = sorted(group)
        log_evidence = evidence(points[rows].sum(0), counts[rows].sum(0), variances)
        return float(log_evidence.sum()) + math.lgamma(len(rows))

    while len(groups) > 1:
        gain, first, second = max(
            (score(a | b) - score(a) - score(b), i, j)
            for i, a in enumerate(groups)
            for j, b in enumerate(groups[:i])
        )
        if gain < 0:
            break
        groups[second] |= groups.pop(first)
    return groups


@pytest.mark.parametrize("seed", range(6))
def test_merging_finds_what_looking_at_all_pairs_finds(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(3, CLASSES, 2, generator=draws).double()
    counts = torch.randint(0, 9, (14, CLASSES), generator=draws).double()
    noise = torch.randn(14, CLASSES, 2, generator=draws).double() * counts.sqrt().unsqueeze(-1)
    points = centres[torch.arange(14) % 3] * counts.unsqueeze(-1) + noise
    variances = torch.tensor([4.0, 1.0]).double()
    labels = merged(points, counts, variances)
    clusters = {
        frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())
    }
    assert clusters == set(map(frozenset, best_pair_by_pair(points, counts, variances)))


def with_conventions(
    clients: int, conventions: int, samples: int, classes: int = CLASSES, of_a_client: int = 0
) -> LabelledVectors:
    """Client k calls the classes as k modulo `conventions` others do: each a step further on.

    of_a_client: how many classes it has, 0 for all.
    """
    draws = torch.Generator().manual_seed(classes + clients)
    shapes = 3 * torch.randn(classes, WIDE, generator=draws)
    first = torch.arange(clients).unsqueeze(1) if of_a_client else 0
    true = (
        first + torch.randint(0, of_a_client or classes, (clients, samples), generator=draws)
    ) % classes
    features = shapes[true] + torch.randn(clients, samples, WIDE, generator=draws)
    called = (true + (torch.arange(clients) % conventions).unsqueeze(1)) % classes
    return LabelledVectors(features, called, torch.ones(clients, samples))


def clusters_of(vectors: LabelledVectors, classes: int = CLASSES) -> list[int]:
    sums = class_sums(vectors, classes)
    return class_clusters(sums.gram.sum(0), sums.moment, sums.counts, 1.0).tolist()


SHAPES = [(4, 12, 10), (3, 60, 50), (10, 30, 20), (10, 30, 12)]
CASES = [(shape, conventions) for shape in SHAPES for conventions in (1, 2, 3)]
CASES += [(shape, names) for shape in [(2, 30, 21), (2, 100, 51)] for names in (1, 2)]


@pytest.mark.parametrize(("shape", "conventions"), CASES)
def test_it_finds_who_calls_the_classes_alike(shape: Shape, conventions: int) -> None:
    """Two classes have two names or one."""
    classes, clients, samples = shape
    labels = clusters_of(with_conventions(clients, conventions, samples, classes), classes)
    assert labels == [client % conventions for client in range(clients)]


@pytest.mark.parametrize("of_a_client", [1, 2])
def test_clients_of_other_classes_are_not_parted_by_that(of_a_client: int) -> None:
    assert not any(clusters_of(with_conventions(30, 1, 20, 10, of_a_client), 10))


def test_the_covariance_is_that_around_the_means_of_each_clusters_classes() -> None:
    vectors = with_conventions(6, 2, 30)
    sums = class_sums(vectors, CLASSES)
    total = ClassSums(*(part.sum(dim=0) for part in sums))
    clusters = [slice(0, None, 2), slice(1, None, 2)]
    moments = torch.stack([sums.moment[rows].sum(0) for rows in clusters])
    counts = torch.stack([sums.counts[rows].sum(0) for rows in clusters])
    adjusted = within_clusters(total, moments, counts)
    ours = adjusted.gram - (total.moment / total.counts.unsqueeze(1)).T @ total.moment
    reference = torch.zeros(WIDE, WIDE).double()
    for rows in clusters:
        features, labels = vectors.features[rows].double(), vectors.labels[rows]
        for label in range(CLASSES):
            class_features = features[labels == label]
            reference += (class_features - class_features.mean(0)).T @ (
                class_features - class_features.mean(0)
            )
    torch.testing.assert_close(ours, reference)


def test_a_liar_is_alone_and_parts_nobody_else() -> None:
    """Its classes lie where nobody's do, each in a direction of its own."""
    sums = class_sums(with_conventions(9, 1, 20), CLASSES)
    counts, moment = sums.counts.clone(), sums.moment.clone()
    counts[0] = 50
    moment[0] = 50 * 30 * torch.eye(CLASSES, WIDE).double()
    gram = sums.gram[1:].sum(0) + 50 * 900 * CLASSES * torch.eye(WIDE).double()
    assert class_clusters(gram, moment, counts, 1.0).tolist() == [0] + [1] * 8


@pytest.mark.parametrize(
    "counts", [torch.zeros(3, CLASSES), torch.eye(CLASSES)[:1], torch.eye(CLASSES)]
)
def test_what_does_not_differ_is_one(counts: Tensor) -> None:
    """No samples, one client's, and equal samples to which each client gives another label."""
    moments = counts.unsqueeze(-1) * torch.ones(WIDE)
    gram = counts.sum() * torch.ones(WIDE, WIDE)
    labels = class_clusters(gram.double(), moments.double(), counts.double(), 1.0)
    assert not labels.any()


def test_sums_that_no_samples_have_part_nobody() -> None:
    sums = class_sums(with_conventions(6, 2, 10), CLASSES)
    gram = torch.zeros(WIDE, WIDE).double()
    assert not class_clusters(gram, sums.moment, sums.counts, 1.0).any()
