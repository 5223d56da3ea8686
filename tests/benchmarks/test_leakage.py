"""The attacks find a planted leak, and none where nothing leaks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.leakage import days
from benchmarks.leakage.attackers import (
    decoded,
    explained,
    in_mean,
    in_products,
    inverted,
    mean_of_others,
    membership_area,
)
from benchmarks.leakage.membership import memberships
from benchmarks.leakage.victims import Victims
from fedproto_app.data.sources import load_series

RNG = np.random.default_rng(0)
SECRETS = RNG.standard_normal((30, 6)) + 5


def test_a_decoder_finds_disguised_secrets_and_nothing_in_noise() -> None:
    disguised = SECRETS @ RNG.standard_normal((6, 40)) + 7
    assert explained(decoded(disguised, SECRETS), SECRETS).low > 0.99
    noise = RNG.standard_normal((30, 40))
    estimate = explained(decoded(noise, SECRETS), SECRETS)
    assert estimate.low < 0.05
    assert estimate.value < 0.1


def test_the_share_is_of_the_error_of_the_others_mean() -> None:
    """Secrets 0, 3, 7: the others' means are 5, 3.5, 1.5, with errors 25, 0.25, 30.25. Guesses 0,
    0, 7 have the total error 3²."""
    secrets = np.array([[0.0], [3], [7]])
    assert mean_of_others(secrets).tolist() == [[5], [3.5], [1.5]]
    estimate = explained(np.array([[0.0], [0], [7]]), secrets)
    assert estimate.value == pytest.approx(1 - 9 / 55.5)


def test_an_area_is_the_chance_that_a_members_score_is_higher() -> None:
    """First client: 3 and 1 against 2 and 1 win 1 + 1 + 0 + ½ of 4. Second: all ties."""
    area = membership_area(
        [np.array([3.0, 1]), np.zeros(2)], [np.array([2.0, 1]), np.zeros(3)]
    )  # fmt: skip
    assert area.value == pytest.approx((2.5 / 4 + 0.5) / 2)


def test_members_of_a_mean_and_of_a_sum_of_products_are_found_where_there_are_few() -> None:
    """They are not found in a mean or a sum of others."""
    clients = [RNG.standard_normal((2, 5, 40)) for _ in range(20)]  # two worlds of five windows
    ways = {
        "mean": lambda windows, world: in_mean(windows, world.mean(axis=0), np.zeros(40)),
        "products": lambda windows, world: in_products(windows, world.T @ world),
    }
    for way in ways.values():
        members = [way(client[0], client[0]) for client in clients]
        outsiders = [way(client[1], client[0]) for client in clients]
        assert membership_area(members, outsiders).low > 0.9
        strangers = [RNG.standard_normal((5, 40)) for _ in clients]
        mine, stranger_scores = (
            [way(client[w], stranger) for client, stranger in zip(clients, strangers, strict=True)]
            for w in (0, 1)
        )
        area = membership_area(mine, stranger_scores)
        assert area.low < 0.5 < area.high


def test_a_window_is_found_in_its_gradient() -> None:
    """The gradient 2(w·x − y)·x of a linear forecast w·x shows x up to its length, and the bias's
    gradient gives the length."""
    weight = torch.tensor([0.5, -1.0, 2.0]).double()

    def gradient_of(inputs: Tensor, target: Tensor) -> list[Tensor]:
        slip = 2 * (inputs @ weight - target)
        return [slip * inputs, slip]

    truth = torch.tensor([0.3, -0.2, 1.1]).double()
    gradient = gradient_of(truth, torch.tensor(0.4).double())
    recovered = inverted(
        gradient_of, gradient, torch.ones(3).double(), torch.zeros(()).double(), 50
    )
    np.testing.assert_allclose(recovered, truth, atol=1e-4)


def test_of_real_clients_the_days_of_a_mean_are_found_and_a_shared_model_hides_its_windows() -> (
    None
):
    victims = Victims({"data.synthetic.clients": 6, "data.synthetic.days": 14}, rounds=1)
    for half in (victims.halved(0), victims.halved(1)):
        assert len(half.windows) == 6
    batches = np.concatenate([victims.halved(world).windows[0].batches for world in (0, 1)])
    assert sorted(batches.tolist()) == sorted(victims.windows[0].batches.tolist())
    areas = {membership.says: membership.area for membership in memberships(victims)}
    assert areas["Kindred's prototype"].low > 0.52
    assert areas["FedAvg's model after 1 rounds"].high < 0.6


def test_single_days_are_read_without_a_limit_and_not_with_it() -> None:
    """Ends of a block are read all the same, as docs/leakage.md says."""
    victims = Victims({"data.synthetic.clients": 3, "data.synthetic.days": 30}, rounds=1)
    series = load_series(victims.settings("kindred").data)
    day = days.of_one_day(victims, series, limited=False)
    assert day is not None
    assert np.median(day) > 0.999
    assert days.of_one_day(victims, series, limited=True) is None
    for limited in (False, True):
        ends = days.of_edges(victims, series, limited)
        assert ends is not None
        assert ends.min() > 0.99
