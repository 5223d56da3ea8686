"""FedGRU's clusters against all assignments, its stacked GRUs against torch's, and its ensemble."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_compared.fedgru import (
    CHOICE,
    Ensemble,
    StackedGru,
    constrained_kmeans,
    member,
    of_member,
)


def cost(points: np.ndarray, labels: np.ndarray) -> float:
    """The sum of squared distances to the means of the clusters."""
    return sum(
        float(((points[labels == label] - points[labels == label].mean(axis=0)) ** 2).sum())
        for label in set(labels.tolist())
    )


@pytest.mark.parametrize(("smallest", "labels"), [(1, [0, 0, 0, 1]), (2, [0, 0, 1, 1])])
def test_a_point_far_away_needs_company_where_sizes_ask_for_it(
    smallest: int, labels: list[int]
) -> None:
    points = np.array([[0.0], [1.0], [2.0], [10.0]])
    actual = constrained_kmeans(points, 2, smallest, np.random.default_rng(0))
    assert actual.tolist() == labels
    assert constrained_kmeans(points[::-1], 2, smallest, np.random.default_rng(0))[0] == 0


@pytest.mark.parametrize("smallest", [1, 2, 3])
def test_no_other_assignment_costs_less(smallest: int) -> None:
    points = np.random.default_rng(smallest).normal(size=(7, 2))
    points[:2] += 4
    actual = constrained_kmeans(points, 2, smallest, np.random.default_rng(0))
    assert np.bincount(actual).min() >= smallest
    assignments = (np.array(labels) for labels in product((0, 1), repeat=7))
    allowed = [
        assignment
        for assignment in assignments
        if np.bincount(assignment, minlength=2).min() >= smallest
    ]
    assert cost(points, actual) == pytest.approx(
        min(cost(points, assignment) for assignment in allowed)
    )


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="3 points for 2 clusters of 2"):
        constrained_kmeans(np.zeros((3, 1)), 2, 2, np.random.default_rng(0))
    actual = constrained_kmeans(np.zeros((5, 1)), 2, 2, np.random.default_rng(0))
    assert np.bincount(actual).min() == 2


def test_fedgrus_model_has_two_layers_of_50_and_is_torchs() -> None:
    model = StackedGru(2, 50, WindowLayout(close=3, distances=3, horizon=1, period=24, times=0))
    parameters = model.initial_parameters(torch.Generator().manual_seed(0))
    assert sum(value.numel() for value in parameters.values()) == 7_950 + 15_300 + 51 == 23_301
    reference = torch.nn.GRU(1, 50, num_layers=2, batch_first=True)
    for layer in (0, 1):
        for name, value in reference.named_parameters():
            if name.endswith(f"_l{layer}"):
                ours = parameters[f"encoder.layer-{layer}.{name.removesuffix(f'_l{layer}')}"]
                value.data.copy_(ours.T if ours.dim() == 2 else ours)
    samples = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
    representation = model.encode(
        {name: value[None] for name, value in parameters.items()}, samples
    )
    in_time = torch.cat([samples[0, :, 3:], samples[0, :, :3]], dim=1)  # days ago, then hours
    _, last = reference(in_time[..., None])
    torch.testing.assert_close(representation[0], last[1], atol=1e-6, rtol=1e-5)


def test_the_head_sees_the_calendar_beside_the_state() -> None:
    model = StackedGru(1, 4, WindowLayout(close=2, distances=1, horizon=2, period=3, times=1))
    parameters = model.initial_parameters(torch.Generator().manual_seed(0))
    assert parameters["decoder.weight"].shape == (4 + 3, 2)
    stacked = {name: value[None] for name, value in parameters.items()}
    samples = torch.tensor([[[0.1, 0.2, 0.3, 0.4, 2.0]]])
    assert model.encode(stacked, samples)[0, 0, 4:].tolist() == [0, 0, 1]
    assert model.predict(stacked, model.encode(stacked, samples)).shape == (1, 1, 2)


MEMBER = StackedGru(2, 3, WindowLayout(close=2, distances=2, horizon=1, period=4, times=0))


def test_its_forecast_is_the_weighted_mean_of_its_members() -> None:
    """Two clients; what a member of weight 0 says does not matter, not even to the gradient."""
    ensemble, draw = Ensemble(MEMBER, 2), torch.Generator().manual_seed(0)
    initial = ensemble.initial_parameters(draw)
    assert set(initial) == {of_member(n, c) for n in member(initial, 0) for c in (0, 1)}
    assert all(torch.equal(member(initial, 0)[n], v) for n, v in member(initial, 1).items())
    parameters = {n: torch.randn(2, *v.shape, generator=draw) for n, v in initial.items()}
    parameters["decoder.1.weight"][1] = 1e38
    parameters[CHOICE] = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    samples = torch.randn(2, 5, 4, generator=draw) * 100
    alone = []
    for number in (0, 1):
        member_parameters = member(parameters, number)
        alone.append(MEMBER.predict(member_parameters, MEMBER.encode(member_parameters, samples)))
    assert not alone[1][1].isfinite().all() or alone[1][1].abs().max() > 1e37
    weight = parameters["decoder.1.weight"].requires_grad_()
    prediction = ensemble.predict(parameters, ensemble.encode(parameters, samples))
    torch.testing.assert_close(prediction[0], 0.25 * alone[0][0] + 0.75 * alone[1][0])
    assert torch.equal(prediction[1], alone[0][1])
    [gradient] = torch.autograd.grad(prediction.sum(), [weight])
    assert gradient[0].any()
    assert not gradient[1].any()
