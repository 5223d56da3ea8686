"""APFL's mixture: whose gradient reaches what."""

from __future__ import annotations

import pytest
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.strategies.common.learner import train_cohort
from tests.helpers.tiny_cohort import global_model, tiny_batches, tiny_cohort, tiny_learner
from tests.helpers.tiny_images import image_cohort, image_learner


def test_the_gradients_are_the_papers() -> None:
    """∇_w from f(w) alone, ∇_v = α·∇f(v̄), ∇_α = ⟨v − w, ∇f(v̄)⟩."""
    apfl = tiny_learner("apfl", **{"apfl.alpha": 0.25})
    cohort = tiny_cohort(apfl)
    generator = torch.Generator().manual_seed(1)
    leaves = {
        name: (v if name == "mix" else torch.randn(v.shape, generator=generator)).requires_grad_()
        for name, v in cohort.parameters.items()
    }
    batch = tiny_batches(apfl, cohort)[0]
    terms = apfl.loss(leaves, batch, apfl.context(Guidance(), cohort))
    sum(terms.values()).sum().backward()  # type: ignore[union-attr]

    names = [name for name in leaves if apfl.is_shared(name)]
    w = {name: leaves[name].detach().requires_grad_() for name in names}
    solo = tiny_learner("solo")
    loss = solo.loss(w, batch, solo.context(Guidance(), cohort))["prediction"]
    loss.sum().backward()
    mixed = {
        name: (0.25 * leaves["personal." + name] + 0.75 * leaves[name]).detach().requires_grad_()
        for name in names
    }
    solo.loss(mixed, batch, solo.context(Guidance(), cohort))["prediction"].sum().backward()
    alpha = torch.zeros(2)
    for name in names:
        torch.testing.assert_close(leaves[name].grad, w[name].grad)
        gradient = mixed[name].grad
        assert gradient is not None
        torch.testing.assert_close(leaves["personal." + name].grad, 0.25 * gradient)
        difference = (leaves["personal." + name] - leaves[name]).detach()
        alpha += (difference * gradient).flatten(start_dim=1).sum(dim=1)
    torch.testing.assert_close(leaves["mix"].grad, alpha, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("adaptive", [True, False])
def test_alpha_moves_only_if_adaptive_and_stays_a_share(adaptive: bool) -> None:
    changes = {"apfl.adaptive": adaptive, "optimizer.learning-rate": 0.5, "local-epochs": 20}
    apfl = tiny_learner("apfl", **changes)
    cohort = tiny_cohort(apfl)
    cohort.parameters["personal.decoder.bias"] += 1
    received = Guidance(global_model(apfl))
    train_cohort(apfl, cohort, apfl.context(received, cohort))
    mix = cohort.parameters["mix"]
    assert ((mix >= 0) & (mix <= 1)).all()
    assert bool((mix == 0.5).all()) is not adaptive


def test_only_the_global_half_is_shared_and_both_are_evaluated() -> None:
    apfl = image_learner("apfl")
    assert {name.split(".")[0] for name in global_model(apfl)} == {"encoder", "head"}
    cohort = image_cohort(apfl)
    for name, value in cohort.parameters.items():
        if name.startswith("personal."):
            value.normal_(generator=torch.Generator().manual_seed(0))
    metrics = apfl.evaluate(cohort, Guidance())
    assert metrics[Metric("count/stage-1")] == metrics[Metric("count/stage-1", shared=True)]
    fedavg = image_learner("fedavg")
    alone = fedavg.evaluate(image_cohort(fedavg), Guidance())
    assert metrics[Metric("accuracy", shared=True)] == alone[Metric("accuracy")]
