from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.sequences.synthetic_air_writing import (
    LONGEST,
    RATE,
    SHORTEST,
    synthetic_air_writing,
)
from fedproto_app.settings import DataSettings, SequenceSettings, SyntheticSettings


@cache
def pool(clients: int = 12, sequences: int = 600, seed: int = 0) -> SequencePool:
    synthetic = SyntheticSettings(clients=clients, sequences=sequences, seed=seed)
    return synthetic_air_writing(DataSettings(synthetic=synthetic))


def resampled(digits: SequencePool) -> np.ndarray:
    """Return thirty points at equal times, without place and size, [n, 90]."""
    places = np.linspace(0, 1, 30)
    rows = []
    for sequence in digits.sequences:
        when = np.linspace(0, 1, len(sequence))
        points = np.stack([np.interp(places, when, axis) for axis in sequence.T], axis=1)
        rows.append(((points - points.mean(axis=0)) / points.std(axis=0)).ravel())
    return np.array(rows)


def nearest(rows: np.ndarray, training: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the label of the nearest known row."""
    distance = (rows**2).sum(1)[:, None] + (training**2).sum(1) - 2 * rows @ training.T
    return labels[distance.argmin(axis=1)]


def test_sequences_are_finite_positions_in_centimetres() -> None:
    digits = pool()
    assert digits.dimensions == ("x", "y", "z")
    assert digits.classes == tuple("0123456789")
    assert digits.targets.dtype == np.int64
    for sequence in digits.sequences:
        assert sequence.dtype == np.float32
        assert sequence.shape[1] == 3
        assert np.isfinite(sequence).all()
        assert 5 < np.ptp(sequence[:, 1]) < 60


def test_a_digit_takes_as_long_as_its_path_and_its_writer() -> None:
    digits = pool()
    lengths = np.array([len(sequence) for sequence in digits.sequences])
    assert lengths.min() >= SHORTEST
    assert lengths.max() <= LONGEST
    assert len(np.unique(lengths)) > 40
    assert lengths[digits.targets == 8].mean() > 1.4 * lengths[digits.targets == 1].mean()
    of_writers = [lengths[digits.clients == name].mean() for name in digits.groups]
    assert max(of_writers) > 1.3 * min(of_writers)


def test_the_time_of_a_writing_as_target() -> None:
    digits = pool(2, 40)
    seconds = DataSettings(
        synthetic=SyntheticSettings(clients=2, sequences=40),
        sequences=SequenceSettings(target="seconds"),
    )
    timed = synthetic_air_writing(seconds)
    assert timed.classes == ()
    assert timed.targets.tolist() == [len(steps) / RATE for steps in digits.sequences]
    other_set = seconds.model_copy(update={"sequences": SequenceSettings(target="charge")})
    with pytest.raises(DataError, match=r"^data\.sequences\.target = 'charge': .*'seconds'"):
        synthetic_air_writing(other_set)


def test_every_writer_has_every_digit_equally_often() -> None:
    digits = pool()
    for name in digits.groups:
        chosen = digits.targets[digits.clients == name]
        assert np.bincount(chosen, minlength=10).tolist() == [5] * 10


def test_the_pool_has_the_set_number_of_sequences() -> None:
    digits = pool(clients=3, sequences=47)
    assert len(digits.sequences) == len(digits.targets) == 47
    assert np.bincount(digits.targets).tolist() == [5] * 7 + [4] * 3
    assert len(digits.clients) == 47


def test_a_seed_is_a_data_set() -> None:
    first, other_set = pool(2, 40), pool(2, 40, seed=1)
    synthetic = SyntheticSettings(clients=2, sequences=40)
    repeated = synthetic_air_writing(DataSettings(synthetic=synthetic))
    for first_sequence, repeated_sequence in zip(first.sequences, repeated.sequences, strict=True):
        np.testing.assert_array_equal(first_sequence, repeated_sequence)
    assert not any(
        np.array_equal(first_sequence, another)
        for first_sequence, another in zip(first.sequences, other_set.sequences, strict=True)
    )


def test_a_sequence_is_the_same_among_more_writers_and_more_repetitions() -> None:
    fewer, more = pool(2, 20), pool(5, 150)
    for first_sequence, other_set in zip(fewer.sequences, more.sequences[:20], strict=True):
        np.testing.assert_array_equal(first_sequence, other_set)


def test_no_two_writings_are_alike() -> None:
    digits = pool()
    assert len({sequence.tobytes() for sequence in digits.sequences}) == len(digits.sequences)


def test_the_nearest_neighbour_tells_digits_apart() -> None:
    digits = pool()
    rows = resampled(digits)
    training = np.arange(len(rows)) < 480  # all writers, four repetitions of five
    predicted = nearest(rows[~training], rows[training], digits.targets[training])
    assert (predicted == digits.targets[~training]).mean() > 0.93


def test_digits_of_unseen_writers_can_be_classified() -> None:
    digits = pool()
    rows = resampled(digits)
    training = digits.clients < "writer-08"
    predicted = nearest(rows[~training], rows[training], digits.targets[training])
    assert (predicted == digits.targets[~training]).mean() > 0.85


def test_few_examples_do_not_suffice() -> None:
    """Otherwise no method could show that it learns."""
    digits = pool()
    rows = resampled(digits)
    predicted = nearest(rows[20:], rows[:20], digits.targets[:20])
    assert (predicted == digits.targets[20:]).mean() < 0.85


@pytest.mark.parametrize("digit", range(10))
def test_a_writer_is_known_by_the_style(digit: int) -> None:
    """The nearest sequence of a digit is often by the same writer; chance is 4 in 59."""
    digits = pool()
    chosen = digits.targets == digit
    rows, names = resampled(digits)[chosen], digits.clients[chosen]
    distance = np.linalg.norm(rows[:, None] - rows, axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (names[distance.argmin(axis=1)] == names).mean() > 0.25


def test_left_handers_lean_to_the_left() -> None:
    digits = pool(clients=60, sequences=600)
    lean: dict[str, list[float]] = {"left": [], "right": []}
    for name, target, sequence in zip(
        digits.clients, digits.targets, digits.sequences, strict=True
    ):
        if target == 1:
            way = sequence[-1] - sequence[sequence[:, 1].argmax()]
            lean[digits.groups[str(name)]].append(float(way[0] / way[1]))
    assert len(lean["left"]) == 20
    assert np.mean(lean["left"]) < np.mean(lean["right"]) - 0.1


def test_some_write_the_zero_clockwise_and_stay_with_it() -> None:
    digits = pool(clients=30, sequences=900)
    ways: dict[str, set[bool]] = {}
    for name, target, sequence in zip(
        digits.clients, digits.targets, digits.sequences, strict=True
    ):
        if target == 0:
            x, y = (sequence - sequence.mean(axis=0)).T[:2].astype(np.float64)
            clockwise = bool((x[:-1] * y[1:] - x[1:] * y[:-1]).sum() < 0)  # twice the area
            ways.setdefault(str(name), set()).add(clockwise)
    assert all(len(way) == 1 for way in ways.values())
    share = {
        hand: np.mean([True in ways[name] for name in ways if digits.groups[name] == hand])
        for hand in ("left", "right")
    }
    assert 0 < share["right"] < share["left"] < 1


def test_the_hand_slows_down_in_bends() -> None:
    """The speed at a sharp corner of a 7 is below its mean speed."""
    digits = pool()
    slower = []
    for target, sequence in zip(digits.targets, digits.sequences, strict=True):
        if target == 7:
            speed = np.linalg.norm(np.diff(sequence, axis=0), axis=1)
            way = np.diff(sequence[::2, :2], axis=0)
            angle = np.abs(np.diff(np.unwrap(np.arctan2(way[:, 1], way[:, 0]))))
            corner = 2 * int(angle[1:-1].argmax()) + 3
            slower.append(speed[corner - 1 : corner + 2].mean() < speed.mean())
    assert np.mean(slower) > 0.8
