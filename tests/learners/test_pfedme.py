"""pFedMe's client, by hand and against the closed form of its inner problem."""

from __future__ import annotations

import pytest
import torch

from fedproto_app.strategies.pfedme import PFedMeLearner, PFedMeSettings
from tests.learners.quadratic import NAME, after_a_round, learner_of
from tests.learners.tiny_cohort import tiny_learner

THETA = "personal." + NAME


def section(**changes: float) -> PFedMeSettings:
    return PFedMeSettings(**{"proximal_lambda": 15.0, "outer_step": 0.15, **changes})


@pytest.mark.parametrize(("steps", "theta"), [(1, 0.05), (2, 0.06)])
def test_inner_steps_by_hand(steps: int, theta: float) -> None:
    """f(θ) = ½(θ − 1)², w = 0, λ = 15, rate 0.05: θ = 0.05, then 0.05 + 0.05·(0.95 − 0.75)."""
    learner = learner_of(PFedMeLearner, section(inner_steps=steps), 0.05)
    cohort = after_a_round(learner, [1.0])
    torch.testing.assert_close(cohort.parameters[THETA], torch.tensor([[theta]]))
    torch.testing.assert_close(cohort.parameters[NAME], torch.tensor([[0.15 * theta]]))


def test_many_steps_end_at_the_minimum_of_the_envelope() -> None:
    """θ* = (a + λ·w)/(1 + λ): 1/16 from w = 0; w then moves by η·λ·θ* = 0.01·15/16."""
    learner = learner_of(PFedMeLearner, section(inner_steps=200), 0.05)
    cohort = after_a_round(learner, [1.0])
    torch.testing.assert_close(cohort.parameters[THETA], torch.tensor([[0.0625]]))
    torch.testing.assert_close(cohort.parameters[NAME], torch.tensor([[0.009375]]))


def test_from_batch_to_batch_theta_goes_on_and_a_round_starts_it_at_w() -> None:
    learner = learner_of(PFedMeLearner, section(inner_steps=1, outer_step=0.5), 0.05)
    cohort = after_a_round(learner, [1.0, 1.0], w=2.0)
    first = 2.0 + 0.05 * (1.0 - 2.0)  # 1.95, from θ = w = 2
    w = (2.0 + first) / 2
    second = first - 0.05 * ((first - 1.0) + 15 * (first - w))
    torch.testing.assert_close(cohort.parameters[THETA], torch.tensor([[second]]))
    torch.testing.assert_close(cohort.parameters[NAME], torch.tensor([[(w + second) / 2]]))


def test_it_sends_w_alone() -> None:
    learner = tiny_learner("pfedme", **{"model.representation-dim": 256})
    shared = {n: v for n, v in learner.initial_parameters().items() if learner.is_shared(n)}
    assert sum(value.numel() for value in shared.values()) == 100_865
    assert not any(name.startswith("personal.") for name in shared)
