"""The scale of a series, by hand, and what a kept model stores of it."""

from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Clock
from fedproto_app.data.scale import Scale, TrainedSeries

VALUES = np.array([1.0, 5.0, np.nan, 1.0, 5.0])  # mean 3, deviation 2


def test_a_scale_by_hand() -> None:
    scale = Scale.of_series(VALUES, np.append(VALUES, -1.0), period=1)
    # The differences are 4, 4 and 6.
    assert scale == Scale(3.0, 2.0, seasonal_difference=14 / 3, is_negative=True)
    assert scale.standardised(VALUES[:2]).tolist() == [-1, 1]
    assert scale.original(np.array([-1.0, 1.0])).tolist() == [1, 5]
    assert scale.original_size(1.5) == 3


@pytest.mark.parametrize(
    ("trained", "newer", "floor"),
    [(VALUES, VALUES, 0.0), (VALUES, -VALUES, -np.inf), (-VALUES, VALUES, -np.inf)],
)
def test_only_what_was_never_negative_has_a_floor(
    trained: np.ndarray, newer: np.ndarray, floor: float
) -> None:
    assert Scale.of_series(trained, trained, period=1).floor(newer) == floor


@pytest.mark.parametrize(
    "clock", [None, Clock(np.timedelta64(90, "s"), np.timedelta64(0, "s"), True)]
)
def test_a_kept_model_stores_numbers_from_which_its_scale_is_read(clock: Clock | None) -> None:
    trained = TrainedSeries(Scale.of_series(VALUES, VALUES, period=2), end=9, clock=clock)
    numbers = trained.numbers()
    assert TrainedSeries.read(numbers, "a") == trained
    del numbers["std"]
    with pytest.raises(DataError, match="client 'a': its kept model has no number 'std'"):
        TrainedSeries.read(numbers, "a")
