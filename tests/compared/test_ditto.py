"""Ditto's two models: who learns from what, and how far the personal one may go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.strategies.common.learner import AnyLearner, Phase
from tests.helpers.tiny_cohort import (
    global_model,
    tiny_batches,
    tiny_cohort,
    tiny_learner,
    train,
)
from tests.helpers.tiny_images import image_cohort, image_learner

PERSONAL = "personal."


def ditto_learner(proximal_lambda: float, **changes: Any) -> AnyLearner:
    return tiny_learner("ditto", **{"ditto.proximal-lambda": proximal_lambda, **changes})


def first_round(learner: AnyLearner, shift: float = 0.0) -> Guidance:
    """The order that brings the initial model, every value moved by shift."""
    model = {name: value + np.float32(shift) for name, value in global_model(learner).items()}
    return Guidance(model)


def after_a_round(learner: AnyLearner, shift: float = 0.0) -> dict[str, Tensor]:
    """The clients' parameters after training on the initial model, moved by shift."""
    guidance, clients = first_round(learner, shift), tiny_cohort(learner)
    for name, value in guidance.arrays.items():
        clients.parameters[name].copy_(torch.from_numpy(value))
    train(learner, guidance, clients)
    return clients.parameters


def halves(parameters: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """w and v, both under w's names."""
    personal = {n.removeprefix(PERSONAL): v for n, v in parameters.items() if PERSONAL in n}
    return {name: parameters[name] for name in personal}, personal


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=0, atol=0)


def alone(method: str, phase: str, epochs: int) -> AnyLearner:
    """The method with Ditto's order of batches, which the name of the phase draws."""
    learner = tiny_learner(method)
    learner.phases = lambda: [Phase(phase, ("",), epochs)]  # type: ignore[method-assign]
    return learner


def test_the_personal_terms_and_their_gradient_by_hand() -> None:
    """The sent model is 1 below client a's n values of v and 3 below b's: λ/2 · n and λ/2 · 9n, and
    a pull of λ and of 3λ back. w has no part."""
    ditto = ditto_learner(0.5)
    cohort = tiny_cohort(ditto)
    moved = torch.tensor([0.0, 2.0])
    leaves = {
        name: (value + moved.view(-1, *[1] * (value.dim() - 1))).requires_grad_()
        if name.startswith(PERSONAL)
        else value
        for name, value in cohort.parameters.items()
    }
    batch = tiny_batches(ditto, cohort)[0]
    terms = ditto.loss(leaves, batch, ditto.context(first_round(ditto, shift=-1.0), cohort))
    assert set(terms) == {"personal", "proximal"}
    _, personal = halves(leaves)
    size = sum(value[0].numel() for value in personal.values())
    torch.testing.assert_close(terms["proximal"], 0.25 * size * torch.tensor([1.0, 9.0]))
    for gradient in torch.autograd.grad(terms["proximal"].sum(), list(personal.values())):
        torch.testing.assert_close(gradient[0], torch.full_like(gradient[0], 0.5))
        torch.testing.assert_close(gradient[1], torch.full_like(gradient[1], 1.5))
    solo = tiny_learner("solo")
    expected = solo.loss(personal, batch, solo.context(first_round(solo), cohort))
    assert torch.equal(terms["personal"], expected["prediction"])


@pytest.mark.parametrize("proximal_lambda", [0.0, 10.0])
def test_the_global_half_is_trained_as_fedavgs(proximal_lambda: float) -> None:
    ditto = ditto_learner(proximal_lambda, **{"local-epochs": 2, "ditto.personal-epochs": 3})
    ours, _ = halves(after_a_round(ditto))
    assert_equal(ours, after_a_round(alone("fedavg", "local", 2)))


def test_without_a_pull_the_personal_half_is_solos() -> None:
    ditto = ditto_learner(0.0, **{"local-epochs": 1, "ditto.personal-epochs": 2})
    _, ours = halves(after_a_round(ditto, shift=1.0))
    assert_equal(ours, after_a_round(alone("solo", "personal", 2)))


def test_0_personal_epochs_are_as_many_as_local_ones() -> None:
    def trained(epochs: int, personal_epochs: int) -> dict[str, Tensor]:
        changes = {"local-epochs": epochs, "ditto.personal-epochs": personal_epochs}
        return halves(after_a_round(ditto_learner(0.3, **changes)))[1]

    assert_equal(trained(2, 0), trained(5, 2))


def test_each_phase_reports_its_own_terms() -> None:
    ditto = ditto_learner(0.5)
    losses, sent_arrays, _ = train(ditto, first_round(ditto, shift=0.1))
    assert set(losses) == {"total", "prediction", "personal", "proximal"}
    torch.testing.assert_close(losses["total"], losses["personal"] + losses["proximal"])
    assert sent_arrays == {}  # but the shared half


def test_the_personal_model_predicts_and_the_global_one_is_told_besides() -> None:
    ditto = image_learner("ditto")
    assert {name.split(".")[0] for name in global_model(ditto)} == {"encoder", "head"}
    cohort, solo_cohort = image_cohort(ditto), image_cohort(image_learner("solo"))
    generator = torch.Generator().manual_seed(0)
    for name, value in solo_cohort.parameters.items():
        value.normal_(generator=generator)
        cohort.parameters[PERSONAL + name].copy_(value)
    guidance = Guidance()
    metrics = ditto.evaluate(cohort, guidance)
    personal = image_learner("solo").evaluate(solo_cohort, guidance)
    fedavg = image_learner("fedavg")
    shared = fedavg.evaluate(image_cohort(fedavg), guidance)
    assert personal != shared
    assert metrics == {
        **personal,
        **{replace(metric, shared=True): v for metric, v in shared.items()},
    }


def test_both_models_have_an_encoder() -> None:
    """While either learns, images cannot be encoded once for all epochs."""
    ditto = tiny_learner("ditto")
    encoders = [name for name in ditto.initial_parameters() if name.startswith(ditto.encoder)]
    of_w = [name for name in encoders if name.startswith("encoder.")]
    assert of_w
    assert sorted(encoders) == sorted([*of_w, *(PERSONAL + name for name in of_w)])
    for phase in ditto.phases():
        assert any(map(phase.trains, encoders))
