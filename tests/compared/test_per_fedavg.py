"""Per-FedAvg's client: the loss after a step, by hand and against functional derivatives."""

from __future__ import annotations

import pytest
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.strategies.solo import SoloLearner
from fedproto_compared.per_fedavg import PerFedAvgLearner, PerFedAvgSettings, pairs_of
from tests.helpers.quadratic import NAME, after_a_round, learner_of
from tests.helpers.tiny_cohort import tiny_batches, tiny_cohort, tiny_learner, train

GUIDANCE = Guidance()


@pytest.mark.parametrize(("gradient", "w"), [("first-order", 1.45), ("exact", 1.305)])
def test_a_step_by_hand(gradient: str, w: float) -> None:
    """f(w) = ½(w − a)², α = 0.1, a = 1 then 3, β = 0.5: w̃ = 0.1 and w = 0.5·2.9, or 0.9 of it."""
    section = PerFedAvgSettings(step_size=0.1, gradient=gradient)
    cohort = after_a_round(learner_of(PerFedAvgLearner, section, 0.5), [1.0, 3.0])
    torch.testing.assert_close(cohort.parameters[NAME], torch.tensor([[w]]))


def test_an_odd_batch_is_left_out_and_alpha_0_is_an_sgd_step_on_the_second() -> None:
    section = PerFedAvgSettings(step_size=0.0)
    ahead = after_a_round(learner_of(PerFedAvgLearner, section, 0.5), [1.0, 3.0, 7.0])
    plain = after_a_round(learner_of(SoloLearner, None, 0.5), [3.0])
    torch.testing.assert_close(ahead.parameters, plain.parameters, rtol=0, atol=0)
    torch.testing.assert_close(ahead.parameters[NAME], torch.tensor([[1.5]]))


@pytest.mark.parametrize("gradient", ["first-order", "exact"])
def test_the_gradient_is_that_of_the_loss_after_the_step(gradient: str) -> None:
    """On the forecaster, against functional derivatives of the loss."""
    changes = {"per-fedavg.gradient": gradient, "per-fedavg.step-size": 0.3}
    learner, solo = tiny_learner("per-fedavg", **changes), tiny_learner("solo")
    cohort = tiny_cohort(learner)
    [pair, *_] = pairs_of(iter(tiny_batches(solo, tiny_cohort(solo))))
    context = learner.context(GUIDANCE, cohort)
    leaves = {name: value.clone().requires_grad_() for name, value in cohort.parameters.items()}
    total = learner.loss(leaves, pair, context)["prediction"]
    gradients = torch.autograd.grad(total.sum(), list(leaves.values()))

    start = tuple(cohort.parameters.values())

    def loss_on(batch: object, values: tuple[torch.Tensor, ...]) -> torch.Tensor:
        parameters = dict(zip(cohort.parameters, values, strict=True))
        return solo.loss(parameters, batch, context)["prediction"].sum()

    first = torch.func.grad(lambda values: loss_on(pair.first, values))(start)
    adapted = tuple(value - 0.3 * step for value, step in zip(start, first, strict=True))
    expected = torch.func.grad(lambda values: loss_on(pair.second, values))(adapted)
    if gradient == "exact":  # (I − α·H)·g, H·g by central differences of the gradient along g
        shift = 0.03

        def along(sign: int) -> tuple[torch.Tensor, ...]:
            moved = tuple(w + sign * shift * g for w, g in zip(start, expected, strict=True))
            return torch.func.grad(lambda values: loss_on(pair.first, values))(moved)

        expected = tuple(
            g - 0.3 * (up - down) / (2 * shift)
            for g, up, down in zip(expected, along(1), along(-1), strict=True)
        )
    for ours, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-4)


def test_a_client_is_judged_after_a_step_that_training_does_not_see() -> None:
    learner = tiny_learner("per-fedavg", **{"per-fedavg.step-size": 0.5})
    _, _, cohort = train(learner, GUIDANCE)
    before = {name: value.clone() for name, value in cohort.parameters.items()}
    first_call, second_call = (
        learner.personalised(cohort, GUIDANCE),
        learner.personalised(cohort, GUIDANCE),
    )
    assert first_call is not None
    torch.testing.assert_close(first_call, second_call, rtol=0, atol=0)  # the same batch
    torch.testing.assert_close(cohort.parameters, before, rtol=0, atol=0)
    assert not torch.equal(first_call["decoder.weight"], before["decoder.weight"])
