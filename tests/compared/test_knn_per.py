"""kNN-Per's client: what it remembers, how it chooses k and λ, and that it trains as FedAvg's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.models.model import HEAD, LinearHeadModel
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, make_learner
from fedproto_compared.knn_per import (
    Memory,
    Remembering,
    kernel_weights,
    means,
    nearest,
    votes,
)
from tests.helpers.tiny_cohort import cohort_of, tiny_cohort, tiny_learner
from tests.helpers.tiny_images import image_cohort, image_learner
from tests.helpers.tiny_sequences import sequence_client, sequence_settings, task_of

GUIDANCE = Guidance()


def remembered(learner: AnyLearner, cohort: Cohort) -> dict[str, Any]:
    personalised = learner.personalised(cohort, GUIDANCE)
    assert personalised is not None
    assert all(personalised[name] is value for name, value in cohort.parameters.items())
    return personalised


def test_a_client_remembers_its_train_images_as_the_encoder_has_them() -> None:
    learner = image_learner("knn-per", **{"knn-per.most-samples": 5})
    cohort = image_cohort(learner)
    parameters = remembered(learner, cohort)
    vectors = learner.task.encode_all(cohort.parameters, cohort.samples.values)
    assert parameters["memory.samples"].tolist() == [3, 3]
    assert parameters["memory.vectors"].shape == (2, 5, 6)
    torch.testing.assert_close(parameters["memory.vectors"][:, :3], vectors[:, :3])
    assert torch.equal(parameters["memory.targets"][:, :3], cohort.samples.targets[:, :3])


@pytest.mark.parametrize("most_samples", [2, 8])
def test_some_are_drawn_where_a_client_has_more_the_same_in_every_round(most_samples: int) -> None:
    learner = tiny_learner("knn-per", **{"knn-per.most-samples": most_samples})
    cohort = tiny_cohort(learner)
    first = remembered(learner, cohort)
    cohort.server_round = 2
    repeated = remembered(learner, cohort)
    assert first["memory.samples"].tolist() == [most_samples, most_samples]
    assert torch.equal(first["memory.targets"], repeated["memory.targets"])
    used = learner.task.train_targets(cohort.samples).amin(dim=2).bool()
    for row in range(2):
        used_targets = cohort.samples.targets[row][used[row]]
        assert all(target in used_targets for target in first["memory.targets"][row])


def test_a_sample_without_one_of_its_targets_is_not_remembered() -> None:
    learner = tiny_learner("knn-per", **{"data.horizon": 2})
    cohort = tiny_cohort(learner)
    before = remembered(learner, cohort)["memory.samples"]
    row = cohort.samples.batches[0, 0, 0]
    cohort.samples.present[0, row, 1] = 0
    after = remembered(learner, cohort)["memory.samples"]
    assert (before - after).tolist() == [1, 0]


def test_k_and_lambda_are_those_of_least_validation_loss() -> None:
    """Beside a search over the grid with the task's own judgement. Client b's model says 9 of
    everything, so that its memory is better."""
    learner = tiny_learner("knn-per")
    cohort = tiny_cohort(learner)
    cohort.parameters["decoder.weight"].zero_()
    cohort.parameters["decoder.bias"][0] = 0.0
    cohort.parameters["decoder.bias"][1] = 9.0
    parameters = remembered(learner, cohort)
    errors = {}
    for neighbours in (5, 10, 20):
        for tenths in range(11):
            tried = dict(parameters)
            tried["memory.neighbours"] = torch.full((2,), neighbours)
            tried["memory.share"] = torch.full((2,), tenths / 10)
            error = learner.task.validation_error(tried, cohort.samples)
            errors[neighbours, tenths] = error.tolist()
    for row in range(2):
        best = min(errors, key=lambda choice: errors[choice][row])
        chosen = (
            int(parameters["memory.neighbours"][row]),
            round(10 * float(parameters["memory.share"][row])),
        )
        assert chosen == best
    assert parameters["memory.share"][1] > 0.8


def test_who_has_no_validation_samples_takes_what_is_common() -> None:
    learner = image_learner("knn-per")
    cohort = image_cohort(learner)
    cohort.samples.is_validation[0] = 0
    parameters = remembered(learner, cohort)
    assert (parameters["memory.neighbours"][0].item(), parameters["memory.share"][0].item()) == (
        10,
        0.5,
    )


def test_who_has_no_train_samples_has_the_shared_model() -> None:
    learner = image_learner("knn-per")
    cohort = image_cohort(learner)
    cohort.samples.train_samples[1] = 0
    parameters = remembered(learner, cohort)
    assert parameters["memory.share"][1] == 0
    judged = learner.task.evaluate(parameters, cohort.samples)
    plain = learner.task.evaluate(cohort.parameters, cohort.samples)
    assert judged[Metric("accuracy")][1] == plain[Metric("accuracy")][1]


def test_numbers_for_sequences_are_remembered_on_the_scale_that_models_learn() -> None:
    settings = sequence_settings(
        task="sequence-regression", method="knn-per", **{"data.sequences.target-scale": 10.0}
    )
    learner = make_learner(settings, task_of(settings))
    cohort = cohort_of(learner, [sequence_client("a", [20.0, 40.0])], 1)
    parameters = remembered(learner, cohort)
    assert parameters["memory.targets"][0, :2, 0].tolist() == [2.0, 4.0]
    parameters["memory.share"].fill_(1)
    vectors = learner.task.train_vectors(cohort.parameters, cohort.samples)
    predictions = learner.task.predict(parameters, vectors.features)
    assert ((predictions > 2) & (predictions < 4)).all()


# --- the memory -----------------------------------------------------------------------------------


# One client remembers 0, 1 and 3, another 10 alone, and both predict at 1.25.
MEMORY = torch.tensor([[[0.0], [1.0], [3.0]], [[10.0], [0.0], [0.0]]])
COUNTS = torch.tensor([3, 1])
QUERY = torch.tensor([[[1.25]], [[1.25]]])


def test_the_nearest_of_what_each_client_remembers() -> None:
    distances, places = nearest(QUERY, MEMORY, COUNTS, 2)
    assert distances.tolist() == [[[0.25, 1.25]], [[8.75, math.inf]]]
    assert places[0, 0].tolist() == [1, 0]
    assert places[1, 0, 0] == 0
    assert nearest(QUERY, MEMORY, COUNTS, 9)[0].shape == (2, 1, 3)


def test_a_neighbour_counts_by_its_distance() -> None:
    """Weights e⁻¹ᐟ⁴ and e⁻⁵ᐟ⁴, shares 1 / (1 + e⁻¹) and the rest. The third is beyond k = 2."""
    distances, places = nearest(QUERY, MEMORY, COUNTS, 3)
    weights = kernel_weights(distances, torch.tensor([2, 2]))
    first = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(
        weights, torch.tensor([[[first, 1 - first, 0]], [[1, 0, 0]]], dtype=torch.float64)
    )
    labels = torch.tensor([[2, 0, 0], [1, 0, 0]])
    shares = votes(weights, places, labels, 3)
    torch.testing.assert_close(
        shares, torch.tensor([[[first, 0, 1 - first]], [[0, 1, 0]]], dtype=torch.float64)
    )
    targets = torch.tensor([[[4.0, 0.0], [8.0, 1.0], [0.0, 0.0]], [[7.0, 5.0]] * 3])
    numbers = means(weights, places, targets)
    expected = [[[8 * first + 4 * (1 - first), first]], [[7.0, 5.0]]]
    torch.testing.assert_close(numbers, torch.tensor(expected, dtype=torch.float64))


def test_who_remembers_nothing_says_nothing() -> None:
    distances, places = nearest(QUERY, MEMORY, torch.tensor([0, 1]), 2)
    weights = kernel_weights(distances, torch.tensor([2, 2]))
    assert weights[0].tolist() == [[0.0, 0.0]]
    assert votes(weights, places, torch.zeros(2, 3, dtype=torch.int64), 2)[0].tolist() == [[0, 0]]


def test_scikit_learn_says_the_same() -> None:
    """More queries than are looked up at once."""
    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(60, 5)), rng.normal(size=(300, 5))
    labels, targets = rng.integers(0, 4, size=60), rng.normal(size=(60, 2))
    distances, places = nearest(
        *(torch.from_numpy(array)[None] for array in (queries, vectors)), torch.tensor([60]), 20
    )
    weights = kernel_weights(distances, torch.tensor([10]))

    def kernel(far: np.ndarray) -> np.ndarray:
        return np.exp(-far)

    classifier = KNeighborsClassifier(10, weights=kernel).fit(vectors, labels)
    shares = votes(weights, places, torch.from_numpy(labels)[None], 4)[0]
    np.testing.assert_allclose(shares, classifier.predict_proba(queries), atol=1e-9)
    regressor = KNeighborsRegressor(10, weights=kernel).fit(vectors, targets)
    numbers = means(weights, places, torch.from_numpy(targets)[None])[0]
    np.testing.assert_allclose(numbers, regressor.predict(queries), atol=1e-9)


def memory(targets: torch.Tensor, share: float) -> Memory:
    """Return one client's memory: samples at 0 and log 3, and an uncounted one far away."""
    return Memory(
        torch.tensor([[[0.0], [math.log(3)], [1e9]]]),
        targets,
        torch.tensor([2]),
        torch.tensor([2]),
        torch.tensor([share]),
    )


def head(outputs: int) -> dict[str, torch.Tensor]:
    """A head that gives 4 for every representation."""
    return {
        HEAD + "weight": torch.zeros(1, 1, outputs),
        HEAD + "bias": torch.full((1, outputs), 4.0),
    }


class Bare(LinearHeadModel):
    """One number as it is, and a head."""

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {}

    def encode(self, parameters: object, *inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 4.0), (1.0, 7.0), (0.5, 5.5)])
def test_numbers_are_mixed(share: float, expected: float) -> None:
    """At 0 the kernel is 1 and 1/3: 3/4 of 10 and 1/4 of −2 are 7."""
    model = Remembering(Bare(1, 1), 0)
    remembered = memory(torch.tensor([[[10.0], [-2.0], [99.0]]]), share)
    prediction = model.predict({**head(1), **remembered.parameters()}, torch.zeros(1, 5, 1))
    torch.testing.assert_close(prediction, torch.full((1, 5, 1), expected))


def test_of_classes_probabilities_are_mixed() -> None:
    """The neighbours say 3/4 and 1/4, the head 1/2 and 1/2."""
    model = Remembering(Bare(1, 2), 2)
    remembered = memory(torch.tensor([[0, 1, 1]]), 0.5)
    prediction = model.predict({**head(2), **remembered.parameters()}, torch.zeros(1, 5, 1))
    torch.testing.assert_close(prediction.softmax(dim=2)[0, 0], torch.tensor([5 / 8, 3 / 8]))
    torch.testing.assert_close(prediction.exp()[0, 0], torch.tensor([5 / 8, 3 / 8]))
    sure = memory(torch.tensor([[0, 0, 0]]), 1.0)
    prediction = model.predict({**head(2), **sure.parameters()}, torch.zeros(1, 1, 1))
    assert prediction.isfinite().all()


def test_what_the_head_gets_beside_the_representation_is_not_compared() -> None:
    model = Remembering(Bare(1, 1, beside=1), 0)
    remembered = memory(torch.tensor([[[10.0], [-2.0], [99.0]]]), 1.0)
    wider = {**head(1), HEAD + "weight": torch.ones(1, 2, 1), **remembered.parameters()}
    prediction = model.predict(wider, torch.tensor([[[0.0, 55.0]]]))
    assert prediction.item() == pytest.approx(7.0)
