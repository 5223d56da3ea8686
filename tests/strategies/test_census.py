"""Census: the adjusted loss, sums of the stages, which sums count, and the answer of a client."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from torch import Tensor

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import Round
from fedproto_app.core.wire import array_record, numpy_arrays
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.class_gaussian import (
    UNKNOWN_CLASS,
    ClassSums,
    LabelledVectors,
    OwnScatter,
    class_sums,
    own_scatter,
)
from fedproto_app.models.image_classifier import SmallCnnClassifier
from fedproto_app.models.model import HEAD
from fedproto_app.models.random_patches import RandomPatchClassifier
from fedproto_app.strategies.census import (
    SENDS_SUMS,
    CensusLearner,
    CensusStrategy,
    LearnedAndFixed,
)
from fedproto_app.strategies.common import class_fit
from fedproto_app.strategies.common.class_fit import (
    HOLDERS,
    SCATTER,
    ClassFit,
    Fold,
    packed,
    unpacked,
)
from fedproto_app.strategies.common.flower_strategy import FlowerStrategy
from fedproto_app.strategies.common.learner import Cohort, train_cohort
from tests.helpers.tiny_images import at_round, image_cohort, image_learner
from tests.strategies.server_half import (
    NO_GRID,
    accept,
    class_sums_of,
    guidance,
    refusals,
    replies,
    restored,
    round_of,
    server_of,
)

# --- the client's half ---------------------------------------------------------------------------


GUIDANCE = Guidance(options={SENDS_SUMS: 1.0})
CYCLIC = {"classification.stage-schedule": "cyclic"}


def learner_of(**changes: Any) -> CensusLearner:
    learner = image_learner("census", **{"census.features": 1, **changes})
    assert isinstance(learner, CensusLearner)
    return learner


def sent_in(learner: CensusLearner, *rounds: int) -> tuple[Cohort, list[ClassSums]]:
    """Both clients after these rounds of training, and what they sent in each."""
    cohort, sent_sums = image_cohort(learner), []
    for server_round in rounds:
        cohort = at_round(learner, cohort, server_round)
        learner.begin(cohort)
        context = learner.context(GUIDANCE, cohort)
        arrays = learner.contribution(cohort, context).arrays
        sent_sums.append(unpacked({n: torch.from_numpy(array) for n, array in arrays.items()}))
        train_cohort(learner, cohort, context)
    return cohort, sent_sums


def total_guidance(sent_sums: ClassSums) -> Guidance:
    summed = ClassSums(*(part.sum(dim=0) for part in sent_sums))
    arrays = {name: value.float().numpy() for name, value in packed(summed).items()}
    return Guidance(arrays)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_the_loss_is_logit_adjusted_cross_entropy(strength: float) -> None:
    learner = learner_of(**{"census.logit-adjustment": strength})
    cohort = image_cohort(learner)
    learner.begin(cohort)
    context = learner.context(GUIDANCE, cohort)
    # Client a has two images of class 0 and one of class 1, client b three of class 1.
    expected = torch.tensor([[2 / 3, 1 / 3, 0.0], [0.0, 1.0, 0.0]]).log()
    expected = (strength * expected).nan_to_num(0.0).clamp(min=UNKNOWN_CLASS)
    torch.testing.assert_close(context.log_frequencies, expected)
    batch = next(iter(learner.batches(cohort.samples, [torch.Generator() for _ in range(2)])))
    losses = learner.loss(cohort.parameters, batch, context)["prediction"]
    logits = learner.task.predict(
        cohort.parameters, learner.task.encode(cohort.parameters, batch.inputs)
    )
    for client, priors in enumerate(([2 / 3, 1 / 3, 0], [0, 1, 0])):
        expected_losses = []
        for scores, label in zip(
            logits[client].tolist(), batch.targets[client].tolist(), strict=True
        ):
            odds = [math.exp(s) * p**strength for s, p in zip(scores, priors, strict=True)]
            expected_losses.append(-math.log(odds[label] / sum(odds)))
        assert float(losses[client]) == pytest.approx(
            sum(expected_losses) / len(expected_losses), rel=1e-4
        )


def test_a_client_sends_sums_of_all_its_stages_by_the_encoder_as_it_came() -> None:
    learner = learner_of()
    _, sent_sums = sent_in(learner, 1, 2, 3)
    assert [sums.counts.tolist() for sums in sent_sums] == [
        [[2, 1, 0], [0, 3, 0]],
        [[2, 1, 0], [0, 3, 0]],
        [[3, 1, 2], [0, 6, 0]],
    ]
    before, _ = sent_in(learner, 1, 2)
    third_cohort = at_round(learner, before, 3)
    third_sums = class_sums(
        learner.task.train_vectors(third_cohort.parameters, third_cohort.samples), 3
    )
    expected = sent_sums[1].plus(third_sums)
    for actual_part, expected_part in zip(sent_sums[2], expected, strict=True):
        torch.testing.assert_close(actual_part, expected_part, rtol=1e-4, atol=1e-3)


def test_where_stages_come_again_a_new_turn_begins_anew() -> None:
    _, sent_sums = sent_in(learner_of(**CYCLIC), 1, 2, 3, 4)
    assert [sums.counts[0].tolist() for sums in sent_sums] == [[2, 1, 0], [3, 1, 2]] * 2


def test_local_training_leaves_what_a_client_remembers() -> None:
    learner = learner_of(**{"optimizer.weight-decay": 0.1})
    cohort = image_cohort(learner)
    learner.begin(cohort)
    before = {n: v.clone() for n, v in cohort.parameters.items()}
    train_cohort(learner, cohort, learner.context(GUIDANCE, cohort))
    moved = {n for n, v in cohort.parameters.items() if not torch.equal(v, before[n])}
    assert moved
    assert all(learner.is_shared(name) for name in moved)


def test_the_answer_is_the_fit_of_its_own_sums_and_those_of_all() -> None:
    learner = learner_of()
    cohort, sent_sums = sent_in(learner, 1, 2, 3, 4)
    guidance = total_guidance(sent_sums[-1])
    assert learner.receive(cohort, guidance) == [0, 1]
    validation = learner.task.validation_vectors(cohort.parameters, cohort.samples)
    total = ClassSums(*(part.sum(dim=0) for part in sent_sums[-1]))
    local_sums = sent_sums[-1]
    assert isinstance(learner.task.model, LearnedAndFixed)
    learned = learner.task.model.learned.representation_dim
    fit = ClassFit(1.0, even=False, steady_from=learned)
    (weight, bias), _ = fit.personal(local_sums, total, [Fold(validation, in_sums=False)])
    predictor = learner.predictor(cohort.parameters)
    torch.testing.assert_close(predictor[HEAD + "weight"], weight.float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(predictor[HEAD + "bias"], bias.float(), rtol=1e-3, atol=1e-3)
    metrics = learner.evaluate(cohort, guidance)
    assert {Metric("accuracy"), Metric("accuracy", rule="head")} < set(metrics)
    assert Metric("accuracy", shared=True) in metrics


def test_where_no_sums_come_the_answer_is_the_averaged_head_with_own_frequencies() -> None:
    learner = learner_of()
    cohort, sent_sums = sent_in(learner, 1)
    assert learner.receive(cohort, GUIDANCE) == [0, 1]
    answer = learner.predictor(cohort.parameters)
    images = torch.rand(2, 4, 1, 8, 8)
    vectors = learner.task.encode(cohort.parameters, images)
    adjusted = learner.task.predict(cohort.parameters, vectors).double()
    adjusted += (sent_sums[0].counts / 3).log().clamp(min=UNKNOWN_CLASS).unsqueeze(1)
    torch.testing.assert_close(learner.task.predict(answer, vectors), adjusted.float())
    metrics = learner.evaluate(cohort, GUIDANCE)
    assert metrics[Metric("accuracy")] == metrics[Metric("accuracy", rule="head")]
    assert Metric("accuracy", shared=True) not in metrics


def test_sums_are_sent_where_they_are_asked_for() -> None:
    learner = learner_of()
    cohort = image_cohort(learner)
    learner.begin(cohort)
    context = learner.context(Guidance(), cohort)
    assert learner.contribution(cohort, context).arrays == {}


def test_a_stage_without_images_counts_no_others_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = {"a": [[], [0, 0, 1]], "b": [[1, 1, 1], []]}
    monkeypatch.setattr("tests.helpers.tiny_images.STAGES", stages)
    _, sent_sums = sent_in(learner_of(), 1, 2, 3, 4)
    assert [sums.counts.tolist() for sums in sent_sums] == [[[2, 1, 0], [0, 3, 0]]] * 4


def test_sums_of_an_older_encoder_are_no_evidence() -> None:
    """Classes lie around ±(1, 1). Feature 0 of a client's samples came with the other sign."""
    labels = torch.arange(400).view(1, 400) % 2
    noise = torch.randn(1, 400, 2, generator=torch.Generator().manual_seed(0)) / 2
    features = (2 * labels - 1).unsqueeze(-1) + noise
    shared_vectors = LabelledVectors(features, labels, torch.ones(1, 400))
    older = LabelledVectors(features * torch.tensor([-1.0, 1.0]), labels, torch.ones(1, 400))
    local_sums = class_sums(LabelledVectors(*(part[:, :40] for part in older)), 2)
    total = ClassSums(*(part[0] for part in local_sums.plus(class_sums(shared_vectors, 2))))
    validation = LabelledVectors(*(part[:, 40:60] for part in shared_vectors))

    def class_told_by(steady_from: int) -> int:
        """The class of a sample that feature 0 alone tells."""
        fit = ClassFit(1.0, even=True, steady_from=steady_from)
        (weight, bias), _ = fit.personal(local_sums, total, [Fold(validation, in_sums=False)])
        return int((torch.tensor([1.0, 0.0]).double() @ weight[0] + bias[0]).argmax())

    assert [class_told_by(first) for first in (0, 1, 2)] == [0, 1, 1]  # 2: no feature is steady


def test_validation_samples_decide_how_much_a_client_relies_on_its_own_sums() -> None:
    """Half of the clients name two classes the other way round. The covariance around common means
    is no good to any of them, and that around each client's own means is."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(60).expand(4, 60) % 2
    means = torch.tensor([1.0, 1.0, -1.0, -1.0]).view(4, 1, 1) * (2 * labels - 1).unsqueeze(-1)
    features = means + torch.randn(4, 60, 2, generator=draws)
    vectors = LabelledVectors(features, labels, torch.ones(4, 60))
    sums = class_sums(LabelledVectors(*(part[:, :20] for part in vectors)), 2)
    validation = LabelledVectors(*(part[:, 20:] for part in vectors))
    total = ClassSums(*(part.sum(0) for part in sums))
    own = OwnScatter(*(part.sum(0) for part in own_scatter(sums)))
    fit = ClassFit(1.0, even=True)

    def shares_alone(validation: LabelledVectors, own: OwnScatter | None) -> Tensor:
        folds = [Fold(validation, in_sums=False)]
        mixed = fit.personal(sums, total, folds, own=own)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(class_fit, "LEAST_JUDGING", math.inf)
            together = fit.personal(sums, total, folds, own=own)
        # Columns that are shifted alike keep their differences.
        from_mixed, from_together, from_alone = (
            fits.final[0][..., 1] - fits.final[0][..., 0]
            for fits in (mixed, together, fit.alone(sums, folds))
        )
        way = from_alone - from_together
        return ((from_mixed - from_together) * way).sum(dim=1) / way.square().sum(dim=1)

    no_samples = validation._replace(present=torch.zeros(4, 40))
    assert shares_alone(no_samples, None).tolist() == [0.0] * 4
    assert (shares_alone(validation, own) < 0.14).all()
    assert (shares_alone(validation, None) > 0.17).all()


def test_a_class_that_all_know_nothing_of_keeps_the_clients_own_mean() -> None:
    moment = torch.tensor([[[4.0, 0.0], [0.0, 6.0]]]).double()
    gram = 10 * torch.eye(2).double()
    sums = ClassSums(gram.unsqueeze(0), moment, torch.tensor([[2.0, 3.0]]).double())
    total = ClassSums(gram, torch.tensor([[4.0, 0.0], [0.0, 0.0]]).double(), torch.tensor([2.0, 0]))
    validation = LabelledVectors(torch.zeros(1, 1, 2), torch.zeros(1, 1).long(), torch.zeros(1, 1))
    fit = ClassFit(1.0, even=True)
    (weight, bias), _ = fit.personal(sums, total, [Fold(validation, in_sums=False)])
    scores = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).double() @ weight[0] + bias[0]
    assert scores.argmax(dim=1).tolist() == [0, 1]  # the means of both classes


# --- the server's half ---------------------------------------------------------------------------

WIDTH = 4 + 8  # four learned features, one random filter


def server(**changes: Any) -> Any:
    """The server for images of two classes, which are ants and bees."""
    small = {"model.representation-dim": 4, "census.features": 1, "data.partition.stages": 1}
    small |= {"task": "classification", "keep": "last", "data.source": "digits"}
    strategy = server_of("census", DataShape((1, 8, 8), ("ant", "bee")), **{**small, **changes})
    begin(strategy, 1)
    return strategy


def begin(strategy: CensusStrategy, server_round: int) -> None:
    """Write the orders to train in a round."""
    model = array_record(strategy.initial_arrays())
    FlowerStrategy(strategy).configure_train(server_round, model, ConfigRecord(), NO_GRID)


def evaluated(strategy: CensusStrategy) -> Arrays:
    """Return the arrays of an order to evaluate, without the model."""
    return strategy.guide_evaluation([], Round(2)).arrays


def sums_of(seed: int, **changes: Any) -> Arrays:
    return class_sums_of(WIDTH, seed, **changes)


def report(strategy: CensusStrategy, **clients: Arrays) -> dict[str, str]:
    """Give the server these sums. Returns what was refused, and why."""
    return refusals(accept(strategy, replies(**clients)))


def test_the_latest_sums_add_up_for_who_is_judged_alone() -> None:
    strategy = server()
    assert evaluated(strategy) == {}
    first, second, third = (sums_of(seed) for seed in range(3))
    assert report(strategy, a=first, b=second) == {}
    assert report(strategy, b=third) == {}  # in place of the second
    totals = evaluated(strategy)
    assert totals.keys() - first.keys() == {SCATTER, HOLDERS}
    for name, sums in first.items():
        np.testing.assert_allclose(totals[name], sums + third[name], rtol=1e-5, atol=1e-5)
    for name, total in evaluated(restored(strategy)).items():
        np.testing.assert_array_equal(totals[name], total)
    assert guidance(strategy).arrays == {}


def test_sums_are_asked_for_where_an_evaluation_needs_them() -> None:
    strategy = server(**{"rounds": 3, "evaluate-every": 2})
    declared = []
    for server_round in (1, 2, 3):
        begin(strategy, server_round)
        declared.append(set(strategy.expected(round_of(strategy, server_round)).per_client))
    everything = {"gram", "moment", "counts"}
    assert declared == [set(), everything, everything]  # the last round always is evaluated


def test_who_is_judged_gets_the_encoder_that_the_sums_are_of() -> None:
    strategy = server()
    new = {name: array + 1 for name, array in strategy.initial_arrays().items()}
    [order] = FlowerStrategy(strategy).configure_evaluate(
        1, array_record(new), ConfigRecord(), NO_GRID
    )
    model_sent = numpy_arrays(order.content.array_records["arrays"])
    for name, array in strategy.initial_arrays().items():
        np.testing.assert_array_equal(model_sent[name], array)


@pytest.mark.parametrize(("schedule", "refused"), [("sequential", {"b"}), ("cyclic", set())])
def test_a_node_that_lost_its_memory_does_not_replace_what_it_sent(
    schedule: str, refused: set[str]
) -> None:
    """If stages repeat, sums start again with each cycle."""
    strategy = server(**{"classification.stage-schedule": schedule})
    assert report(strategy, a=sums_of(0), b=sums_of(1), c=sums_of(2)) == {}
    assert set(report(strategy, b=sums_of(1, samples=2))) == refused


def test_sums_that_cannot_be_true_are_refused() -> None:
    strategy = server()
    too_many = {**sums_of(1), "counts": np.array([1e6, 2], np.float32)}
    contrary = sums_of(2)
    contrary["moment"] = contrary["moment"] * 9
    refused = report(strategy, a=sums_of(3), b=contrary, late=too_many)
    assert set(refused) == {"b", "late"}
    assert "no samples have such sums and products" in refused["b"]
    assert "more than the 4 that it declared" in refused["late"]
    refused = report(strategy, a=sums_of(3), b=sums_of(4), c=sums_of(5, scale=100.0))
    assert "more than 10 times what is usual" in refused["c"]
    np.testing.assert_allclose(evaluated(strategy)["counts"], [4, 4])


def test_what_an_encoder_gave_in_another_round_is_no_measure_among_enough() -> None:
    """An encoder's vectors may grow a hundredfold as it learns. A single client cannot say so."""
    strategy = server()
    assert report(strategy, a=sums_of(0), b=sums_of(1), c=sums_of(2), late=sums_of(3)) == {}
    far = {name: sums_of(seed, scale=10.0) for seed, name in enumerate(("a", "b", "c"))}
    assert set(report(strategy, late=sums_of(3, scale=10.0))) == {"late"}
    assert report(strategy, **far) == {}


# --- the learned encoder beside the fixed one -----------------------------------------------------


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_head_sees_as_many_columns_as_it_has_rows() -> None:
    learned = SmallCnnClassifier((1, 8, 8), 3, 4, 6)
    fixed = RandomPatchClassifier((1, 8, 8), 3, 2, draws())
    combined = LearnedAndFixed(learned, fixed)
    assert combined.representation_dim == 6 + 16
    parameters = {n: v.unsqueeze(0) for n, v in combined.initial_parameters(draws()).items()}
    assert parameters[HEAD + "weight"].shape == (1, 6, 3)
    images = torch.randn(1, 5, 1, 8, 8, generator=draws(1))
    vectors = combined.encode(parameters, images)
    first, second = learned.encode(parameters, images), fixed.encode({}, images)
    torch.testing.assert_close(vectors, torch.cat([first, second], dim=2))
    torch.testing.assert_close(
        combined.predict(parameters, vectors), learned.predict(parameters, first)
    )
    head = {HEAD + "weight": torch.randn(1, 22, 3), HEAD + "bias": torch.randn(1, 3)}
    expected = vectors @ head[HEAD + "weight"] + head[HEAD + "bias"]
    torch.testing.assert_close(combined.predict(head, vectors), expected)


def test_with_nothing_beside_it_is_the_learned_one() -> None:
    learned = SmallCnnClassifier((1, 8, 8), 3, 4, 6)
    alone = LearnedAndFixed(learned, None)
    parameters = {n: v.unsqueeze(0) for n, v in alone.initial_parameters(draws()).items()}
    images = torch.randn(1, 2, 1, 8, 8, generator=draws(1))
    assert alone.representation_dim == 6
    assert torch.equal(alone.encode(parameters, images), learned.encode(parameters, images))
