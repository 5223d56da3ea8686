"""FedDA's client: FedAvg's training, its own model, and its statistics when asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.strategies.compared.fedda.learner import STATISTICS, WEEKS, weekly_statistics
from tests.learners.tiny_cohort import NAMES, PERIOD, global_model, tiny_cohort, tiny_learner, train

GUIDANCE = Guidance()
QUESTION = Guidance(options={WEEKS: 2.0})


def test_training_is_fedavgs_and_each_client_sends_its_model() -> None:
    learner = tiny_learner("fedda")
    assert global_model(learner).keys() == learner.initial_parameters().keys()
    assert not learner.sends_mean
    _, _, cohort = train(learner, GUIDANCE)
    model_sent = learner.model_to_send(cohort)
    _, _, of_fedavg = train(tiny_learner("fedavg"), GUIDANCE)
    assert model_sent.keys() == cohort.parameters.keys()
    for name, value in of_fedavg.parameters.items():
        assert torch.equal(cohort.parameters[name], value)
        assert torch.equal(model_sent[name], value)


def test_a_question_is_answered_with_statistics_of_so_many_weeks() -> None:
    learner = tiny_learner("fedda", **{"fedda.week": 2})
    cohort = tiny_cohort(learner)
    sent_arrays = learner.answer(cohort, QUESTION).arrays
    assert set(sent_arrays) == {STATISTICS}
    assert sent_arrays[STATISTICS].shape == (len(NAMES), 2, PERIOD)
    np.testing.assert_array_equal(sent_arrays[STATISTICS], weekly_statistics(cohort.samples, 2, 2))


def test_noise_is_each_clients_own_and_the_same_every_time() -> None:
    settings = {"fedda.week": 2, "fedda.statistics-noise": 0.5}
    noisy, plain = tiny_learner("fedda", **settings), tiny_learner("fedda", **{"fedda.week": 2})
    first, repeated, without = (
        learner.answer(tiny_cohort(learner), QUESTION).arrays[STATISTICS]
        for learner in (noisy, noisy, plain)
    )
    np.testing.assert_array_equal(first, repeated)
    noise = first - without
    assert noise.std() == pytest.approx(0.5, rel=0.6)
    assert not np.allclose(noise[0], noise[1])
