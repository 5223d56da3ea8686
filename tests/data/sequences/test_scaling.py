from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedproto_app.data.sequences.clients import resampled, scaled_by_itself, scaling
from fedproto_app.settings import SequenceSettings


def steps(*columns: list[float]) -> NDArray[np.float32]:
    return np.array(columns, np.float32).T


def test_resampling_is_linear_and_keeps_the_ends() -> None:
    long = steps([0, 1, 4, 9, 16], [4, 3, 2, 1, 0])
    # Of 5 steps 4: at the indices 0, 4/3, 8/3 and 4.
    expected = [[0, 4], [2, 8 / 3], [4 + 2 / 3 * 5, 4 / 3], [16, 0]]
    np.testing.assert_allclose(resampled(long, 4), expected, rtol=1e-6)
    assert resampled(long, 4).dtype == np.float32


@pytest.mark.parametrize("longest", [0, 5, 6])
def test_short_sequences_are_not_resampled(longest: int) -> None:
    short = steps([0, 1, 4, 9, 16])
    assert resampled(short, longest) is short


def test_a_sequence_is_scaled_by_itself_without_changing_its_proportions() -> None:
    # Deviations from the means are ±3 and ±4; the mean of their squares is 12.5.
    scaled = scaled_by_itself(steps([10, 16], [-4, 4]))
    np.testing.assert_allclose(scaled, steps([-3, 3], [-4, 4]) / np.sqrt(12.5), rtol=1e-6)


def test_scaling_forgets_place_and_size() -> None:
    drawn = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    moved = (drawn * 8 + np.array([100, 0, -7])).astype(np.float32)
    np.testing.assert_allclose(scaled_by_itself(moved), scaled_by_itself(drawn), atol=1e-5)


def test_a_constant_sequence_becomes_zeros() -> None:
    assert scaled_by_itself(steps([305.33] * 7, [0.1] * 7)).tolist() == [[0, 0]] * 7
    assert scaled_by_itself(steps([5], [6])).tolist() == [[0, 0]]


def test_a_clients_scale_comes_from_its_train_steps() -> None:
    # Train steps 1, 3, 5, 7: mean 4, deviation √5; the second dimension is constant.
    train = [steps([1, 3], [0.1, 0.1]), steps([5, 7], [0.1, 0.1])]
    scaled = scaling(train, SequenceSettings(scaling="client"))
    np.testing.assert_allclose(scaled(train[0])[:, 0], [-3 / 5**0.5, -1 / 5**0.5], rtol=1e-6)
    changed = scaled(steps([4, 9], [3, 4]))
    np.testing.assert_allclose(changed, [[0, 0], [5**0.5, 0]], rtol=1e-6)
    assert changed.dtype == np.float32


def test_other_scalings() -> None:
    constant = steps([1, 2, 4])
    assert scaling([constant], SequenceSettings(scaling="none"))(constant) is constant
    by_itself = scaling([constant], SequenceSettings(scaling="sequence"))
    np.testing.assert_array_equal(by_itself(constant), scaled_by_itself(constant))
