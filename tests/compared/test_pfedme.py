"""pFedMe: the inner problem by hand and in closed form, and the server's step towards the mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedproto_app.core.round import Round
from fedproto_compared.pfedme import PFedMeLearner, PFedMeSettings
from tests.helpers.quadratic import NAME, after_a_round, learner_of
from tests.strategies.server_half import server_of

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
    """θ* = (a + λ·w)/(1 + λ) is 1/16 from w = 0, and w then moves by η·λ·θ* = 0.01·15/16."""
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


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_the_server_goes_so_far_towards_the_mean(beta: float) -> None:
    """From (1, 2) towards (3, −2): β = 2 goes twice as far as β = 1, and β = 0.5 half."""
    strategy = server_of("pfedme", **{"pfedme.server-step": beta})
    strategy.model = {NAME: np.float32([1, 2])}
    renewed = strategy.renewed({NAME: np.float32([3, -2])}, Round())
    np.testing.assert_allclose(renewed[NAME], [1 + 2 * beta, 2 - 4 * beta], rtol=1e-6)


@pytest.mark.parametrize(("strength", "warns"), [(15.0, True), (1.0, False)])
def test_a_strong_pull_is_warned_of(
    strength: float, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server_of("pfedme", **{"pfedme.proximal-lambda": strength})
    assert ("pfedme.proximal-lambda = 15" in caplog.text) == warns
