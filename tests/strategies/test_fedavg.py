"""FedAvg's fine-tuning. Its mean is tested with the nodes' and with reports of weights (r78)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.experiments.invariants import SmallRuns
from fedproto_app.report.runs import read_run
from tests.helpers.tiny_cohort import tiny_cohort, tiny_learner, train

GUIDANCE = Guidance()


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


def test_what_is_made_of_the_averaged_model_is_the_clients_own(tmp_path: Path) -> None:
    """A_glo is of the averaged model, A_loc of the fine-tuned one, which is kept."""
    changes = {"rounds": 2, "keep": "last", "optimizer.learning-rate": 0.1}
    changes |= {"fedavg.fine-tune-epochs": 5}
    runs = SmallRuns("classification", "fedavg-ft", tmp_path, **changes)
    tuned = read_run(runs.run("tuned", 1)).summary
    del changes["fedavg.fine-tune-epochs"]
    plain = SmallRuns("classification", "fedavg", tmp_path, **changes)
    averaged = read_run(plain.run("plain", 1)).summary
    assert tuned["accuracy_global"] == averaged["accuracy_global"]
    assert tuned["accuracy_local"] == tuned["accuracy_kept"]
    assert tuned["accuracy_local"] > tuned["accuracy_global"]
