"""FedAvg's client: the shared model, and the personal one that fine-tuning makes of it."""

from __future__ import annotations

import pytest
import torch

from fedproto_app.core.messages import Guidance
from tests.learners.tiny_cohort import global_model, tiny_cohort, tiny_learner, train

GUIDANCE = Guidance()


def test_without_fine_tuning_the_model_is_the_shared_one() -> None:
    learner = tiny_learner("fedavg")
    assert all(learner.is_shared(name) for name in learner.initial_parameters())
    assert learner.personalised(tiny_cohort(learner), GUIDANCE) is None
    assert global_model(learner).keys() == learner.initial_parameters().keys()


def test_fine_tuning_is_training_that_the_shared_model_does_not_see() -> None:
    learner = tiny_learner("fedavg", **{"fedavg.fine-tune-epochs": 1})
    cohort = tiny_cohort(learner)
    before = {name: value.clone() for name, value in cohort.parameters.items()}
    personalised = learner.personalised(cohort, GUIDANCE)
    assert personalised is not None
    assert all(torch.equal(value, cohort.parameters[name]) for name, value in before.items())
    _, _, trained = train(tiny_learner("fedavg"), GUIDANCE)
    for name, value in personalised.items():  # one epoch of its own order of batches
        assert not torch.equal(value[0], before[name][0])
        assert value.shape == trained.parameters[name].shape
    assert not torch.equal(personalised["decoder.weight"][0], personalised["decoder.weight"][1])


@pytest.mark.parametrize(("epochs", "as_many"), [(0, 1), (3, 3)])
def test_fedavg_ft_is_fedavg_with_at_least_one_epoch_of_it(epochs: int, as_many: int) -> None:
    models = []
    for method, fine_tune_epochs in (("fedavg-ft", epochs), ("fedavg", as_many)):
        learner = tiny_learner(method, **{"fedavg.fine-tune-epochs": fine_tune_epochs})
        models.append(learner.personalised(tiny_cohort(learner), GUIDANCE))
    fine_tuned, plain = models
    assert fine_tuned is not None
    assert plain is not None
    assert all(torch.equal(value, plain[name]) for name, value in fine_tuned.items())
