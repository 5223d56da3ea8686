"""What many clients' errors come to, and an even choice among clients."""

from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.maths.client_errors import largest_share, worst_tenth
from fedproto_app.maths.even_choice import evenly


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        (1, 1.0),
        (10, 10.0),  # one of ten
        (11, 10.5),  # (11 + 10) / 2: a tenth of 11 is two clients
        (25, 24.0),  # (25 + 24 + 23) / 3
        (30, 29.0),  # three, not four, of 30
    ],
)
def test_the_worst_tenth_is_rounded_up(clients: int, expected: float) -> None:
    errors = np.random.default_rng(0).permutation(np.arange(1.0, clients + 1))
    assert worst_tenth(errors) == expected


def test_the_largest_share_of_a_sum() -> None:
    assert largest_share(np.array([1.0, 16.0, 3.0])) == (1, 0.8)
    assert largest_share(np.zeros(3)) == (0, 0.0)


def test_of_many_clients_every_group_is_shown_by_its_share() -> None:
    groups = np.array(["a", "b"] * 500 + ["c"] * 1000)
    shown = evenly(groups, 100)
    assert len(set(shown)) == 100
    assert (np.diff(shown) > 0).all()
    assert {g: int((groups[shown] == g).sum()) for g in "abc"} == {"a": 25, "b": 25, "c": 50}
    np.testing.assert_array_equal(evenly(np.array([""] * 7), 100), range(7))
    assert len(evenly(np.array([], dtype=np.str_), 100)) == 0
