"""The optimisers against torch.optim, client by client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from fedproto_app.maths.optim import (
    CohortAdam,
    CohortOptimizer,
    CohortSGD,
    ScaledSteps,
    TimeSmoothed,
)
from tests.helpers.pretended_gpu import DEVICE, PretendedGpu

SIZES = {"w": (4, 2), "b": (2,)}


def make_adam(parameters: dict[str, Tensor]) -> CohortOptimizer:
    return CohortAdam(parameters, learning_rate=0.01)


def make_sgd(parameters: dict[str, Tensor]) -> CohortOptimizer:
    return CohortSGD(parameters, learning_rate=0.1, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize(
    ("make", "torchs", "device"),
    [
        (make_adam, partial(torch.optim.Adam, lr=0.01), torch.device("cpu")),
        (make_adam, partial(torch.optim.Adam, lr=0.01), DEVICE),
        (make_sgd, partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01), "cpu"),
    ],
    ids=["adam-cpu", "adam-gpu", "sgd"],
)
def test_each_client_gets_torchs_steps_even_when_it_sits_some_out(
    make: Callable[[dict[str, Tensor]], CohortOptimizer],
    torchs: Callable[..., torch.optim.Optimizer],
    device: torch.device,
) -> None:
    generator = torch.Generator().manual_seed(0)
    start = {name: torch.randn(3, *size, generator=generator) for name, size in SIZES.items()}
    singles = [
        {name: value[k].clone().requires_grad_() for name, value in start.items()} for k in range(3)
    ]
    optimizers = [torchs(single.values()) for single in singles]
    with PretendedGpu():
        cohort = {name: value.to(device, copy=True) for name, value in start.items()}
        ours = make(cohort)
        for active in (3, 2, 2, 1, 3, 3):  # the first so many clients take part
            gradients = {
                n: torch.randn(v[:active].shape, generator=generator) for n, v in start.items()
            }
            ours.step(cohort, {name: value.to(device) for name, value in gradients.items()})
            for k in range(active):
                for name, value in singles[k].items():
                    value.grad = gradients[name][k]
                optimizers[k].step()
        for k, single in enumerate(singles):
            for name, value in single.items():
                actual = cohort[name][k].cpu()
                torch.testing.assert_close(actual, value.detach(), rtol=1e-6, atol=1e-7)
    if isinstance(ours, CohortAdam):
        assert ours.steps["w"].tolist() == [6, 5, 3]
    else:
        assert ours.state["momentum"]["w"].abs().sum() > 0


def smoothed_sgd(parameters: dict[str, Tensor], window: int, factor: float) -> CohortOptimizer:
    """Plain descent of rate 1 on smoothed gradients."""
    plain = CohortSGD(parameters, learning_rate=1.0, momentum=0.0, weight_decay=0.0)
    return TimeSmoothed(plain, parameters, window, factor)


def test_smoothed_gradients_by_hand() -> None:
    """w = 3, γ = 1/2: W = 7/4, and what came before the first gradient counts as 0."""
    cohort = {"w": torch.zeros(1, 2), "scalar": torch.zeros(1)}
    optimizer = smoothed_sgd(cohort, 3, 0.5)
    handed = []
    for value in (7.0, 14.0, 28.0, 0.0, 0.0, 0.0, 7.0):
        before = {name: old.clone() for name, old in cohort.items()}
        gradient = torch.tensor([[value, -value]])
        optimizer.step(cohort, {"w": gradient, "scalar": gradient[:, 0]})
        moved = {name: before[name] - cohort[name] for name in cohort}
        assert moved["w"][0, 0] == -moved["w"][0, 1] == moved["scalar"][0]
        handed.append(moved["scalar"].item())
    expected = [
        7 / 1.75,
        (14 + 7 / 2) / 1.75,
        (28 + 14 / 2 + 7 / 4) / 1.75,
        (28 / 2 + 14 / 4) / 1.75,
        (28 / 4) / 1.75,
        0.0,
        7 / 1.75,
    ]
    assert handed == pytest.approx(expected, abs=1e-5)


def test_a_client_that_sits_out_keeps_its_own_last_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    together = {"w": torch.zeros(3, 4, 2)}
    optimizer = smoothed_sgd(together, 3, 0.8)
    singles = [{"w": torch.zeros(1, 4, 2)} for _ in range(3)]
    optimizers = [smoothed_sgd(single, 3, 0.8) for single in singles]
    for active in (3, 2, 1, 2, 3, 1, 3, 3):
        gradient = torch.randn(active, 4, 2, generator=generator)
        optimizer.step(together, {"w": gradient})
        for k in range(active):
            optimizers[k].step(singles[k], {"w": gradient[k : k + 1]})
    torch.testing.assert_close(together["w"], torch.cat([single["w"] for single in singles]))


def test_parameters_of_different_phases_are_smoothed_apart() -> None:
    cohort = {"a": torch.zeros(1), "b": torch.zeros(1)}
    optimizer = smoothed_sgd(cohort, 2, 1.0)
    for _ in range(2):
        optimizer.step(cohort, {"a": torch.tensor([2.0])})
    optimizer.step(cohort, {"b": torch.tensor([2.0])})
    assert (cohort["a"].item(), cohort["b"].item()) == (-3.0, -1.0)


def test_smoothing_keeps_the_other_optimisers_state_and_the_gradients() -> None:
    cohort, gradient = {"w": torch.zeros(1, 2)}, torch.tensor([[3.0, 5.0]])
    smoothed_sgd(cohort, 2, 0.5).step(cohort, {"w": gradient})
    assert gradient.tolist() == [[3.0, 5.0]]
    adam = CohortAdam(cohort, learning_rate=0.1)
    assert TimeSmoothed(adam, cohort, 3, 0.9).state is adam.state


def test_a_renewed_client_goes_on_as_with_a_fresh_optimiser() -> None:
    """Client 1 of three is renewed after two steps, the rest keep their moments and counts."""
    generator = torch.Generator().manual_seed(0)
    gradients = [{"w": torch.randn(3, 4, generator=generator)} for _ in range(4)]
    old, renewed = {"w": torch.zeros(3, 4)}, {"w": torch.zeros(3, 4)}
    unrenewed, adam = CohortAdam(old, learning_rate=0.1), CohortAdam(renewed, learning_rate=0.1)
    for gradient in gradients[:2]:
        unrenewed.step(old, gradient)
        adam.step(renewed, gradient)
    adam.renew(torch.tensor([False, True, False]))
    single = {"w": renewed["w"][1:2].clone()}
    new_adam = CohortAdam(single, learning_rate=0.1)
    for gradient in gradients[2:]:
        unrenewed.step(old, gradient)
        adam.step(renewed, gradient)
        new_adam.step(single, {"w": gradient["w"][1:2]})
    torch.testing.assert_close(renewed["w"][1:2], single["w"])
    torch.testing.assert_close(renewed["w"][[0, 2]], old["w"][[0, 2]])
    assert (renewed["w"][1] - old["w"][1]).abs().min() > 1e-3
    assert adam.steps["w"].tolist() == [4, 2, 4]


def test_scaled_steps_are_those_of_a_scaled_learning_rate() -> None:
    """By 3 for one parameter of Adam and of SGD, and a client that sits out is not moved."""
    generator = torch.Generator().manual_seed(0)
    start = {name: torch.randn(2, 3, generator=generator) for name in ("w", "filter")}

    def sgd(parameters: dict[str, Tensor], rate: float) -> CohortOptimizer:
        return CohortSGD(parameters, rate, momentum=0.5, weight_decay=0.1)

    for make in (CohortAdam, sgd):
        scaled, plain, faster = (
            {name: value.clone() for name, value in start.items()} for _ in range(3)
        )
        inner = make(scaled, 0.1)
        optimizer = ScaledSteps(inner, {"filter": 3.0})
        assert optimizer.state is inner.state
        at_rate, at_three = make(plain, 0.1), make(faster, 0.1 * 3)
        for active in (2, 1):
            gradients = {n: torch.randn(active, 3, generator=generator) for n in start}
            idle = scaled["filter"][active:].clone()
            optimizer.step(scaled, gradients)
            at_rate.step(plain, gradients)
            at_three.step(faster, gradients)
            assert torch.equal(scaled["filter"][active:], idle)
            if make is sgd:  # its weight decay goes by the parameters, which differ from now on
                break
        assert torch.equal(scaled["w"], plain["w"])
        torch.testing.assert_close(scaled["filter"], faster["filter"])
