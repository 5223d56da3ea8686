"""FedALA's mixture, its weights' step and when they have settled, worked by hand."""

from __future__ import annotations

import torch

from fedproto_app.strategies.fedala import have_settled, mixed, stepped


def test_each_element_has_its_own_share_of_the_received_model() -> None:
    local, received = {"w": torch.tensor([[1.0, 2.0, 3.0]])}, {"w": torch.tensor([[5.0, 0.0, 3.0]])}
    mixture = mixed(local, received, {"w": torch.tensor([[0.25, 1.0, 0.5]])})
    assert mixture["w"].tolist() == [[2.0, 0.0, 3.0]]


def test_the_step_is_the_papers_and_weights_stay_shares() -> None:
    """At ½(θ − 2)² with θ_own = 0, θ_received = 4 and W = 3/4: θ = 3, the gradient (3 − 2)·4 = 4.

    At ½θ² with the same, 3·4 = 12; at ½(θ − 7)², −16.
    """
    local, received = {"w": torch.zeros(3, 1)}, {"w": torch.full((3, 1), 4.0)}
    weights = {"w": torch.full((3, 1), 0.75, requires_grad=True)}
    goals = torch.tensor([[2.0], [0.0], [7.0]])
    loss = 0.5 * (mixed(local, received, weights)["w"] - goals).square()
    (gradient,) = torch.autograd.grad(loss.sum(), [weights["w"]])
    assert gradient.flatten().tolist() == [4.0, 12.0, -16.0]
    after = stepped(weights, {"w": gradient}, 0.125)
    assert after["w"].flatten().tolist() == [0.25, 0.0, 1.0]


def test_losses_have_settled_where_the_newest_ones_are_near_each_other() -> None:
    """The deviation of 1, 1, 3 and 3 is 1, of 0, 0, 0 and 0.1 below 0.05."""
    losses = torch.tensor([[9.0, 9.0], [1.0, 0.0], [1.0, 0.0], [3.0, 0.0], [3.0, 0.1]])
    assert have_settled(losses, 0.9, 4).tolist() == [False, True]
    assert have_settled(losses, 1.1, 4).tolist() == [True, True]
    assert have_settled(losses[1:], 1.1, 4).tolist() == [False, False]  # no more than four
