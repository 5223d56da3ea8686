"""kNN-Per's client: what it remembers, how it chooses k and λ, and that it trains as FedAvg's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, make_learner
from tests.helpers.tiny_cohort import cohort_of, tiny_cohort, tiny_learner
from tests.helpers.tiny_images import image_cohort, image_learner
from tests.helpers.tiny_sequences import (
    sequence_client,
    sequence_settings,
    task_of,
)

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
    vectors = learner.task.encode_all(cohort.parameters, cohort.samples.pixels)
    assert parameters["memory.samples"].tolist() == [3, 3]
    assert parameters["memory.vectors"].shape == (2, 5, 6)
    torch.testing.assert_close(parameters["memory.vectors"][:, :3], vectors[:, :3])
    assert torch.equal(parameters["memory.targets"][:, :3], cohort.samples.labels[:, :3])


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


def test_a_memory_of_what_is_asked_knows_it() -> None:
    """The test images are the train images, and λ = 1 by hand: the nearest is the image itself."""
    learner = image_learner("knn-per")
    cohort = image_cohort(learner)
    parameters = remembered(learner, cohort)
    parameters["memory.share"].fill_(1)
    parameters["memory.neighbours"].fill_(1)
    vectors = learner.task.encode_all(cohort.parameters, cohort.samples.pixels)
    predictions = learner.task.predict(parameters, vectors).argmax(dim=2)
    assert torch.equal(predictions, cohort.samples.labels)


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
