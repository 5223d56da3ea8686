from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.formats.synthetic_air_writing import (
    LONGEST,
    RATE,
    SHORTEST,
    synthetic_air_writing,
)
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import DataSettings, SequenceSettings, SyntheticSettings


@cache
def pool(clients: int = 12, sequences: int = 600, seed: int = 0, target: str = "") -> SequencePool:
    synthetic = SyntheticSettings(clients=clients, sequences=sequences, seed=seed)
    chosen = SequenceSettings(target=target)
    return synthetic_air_writing(DataSettings(synthetic=synthetic, sequences=chosen))


def writings(digits: SequencePool, digit: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the writer and the steps of each writing of a digit."""
    for place in np.flatnonzero(digits.targets == digit):
        yield str(digits.clients[place]), digits.sequences[place]


def resampled(digits: SequencePool) -> NDArray[np.float64]:
    """Return thirty points at equal times, without place and size, [n, 90]."""
    places, rows = np.linspace(0, 1, 30), []
    for sequence in digits.sequences:
        when = np.linspace(0, 1, len(sequence))
        points = np.stack([np.interp(places, when, axis) for axis in sequence.T], axis=1)
        rows.append(((points - points.mean(axis=0)) / points.std(axis=0)).ravel())
    return np.array(rows)


def share_told_apart(digits: SequencePool, training: NDArray[np.bool_]) -> float:
    """Return the share of the other sequences whose nearest in training has their label."""
    rows, labels = resampled(digits), digits.targets
    tested, trained = rows[~training], rows[training]
    distance = (tested**2).sum(1)[:, None] + (trained**2).sum(1) - 2 * tested @ trained.T
    return float((labels[training][distance.argmin(axis=1)] == labels[~training]).mean())


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
    assert len({sequence.tobytes() for sequence in digits.sequences}) == len(digits.sequences)


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
    timed = pool(2, 40, target="seconds")
    assert timed.classes == ()
    assert timed.targets.tolist() == [len(steps) / RATE for steps in pool(2, 40).sequences]
    with pytest.raises(DataError, match=r"^data\.sequences\.target = 'charge': .*'seconds'"):
        pool(target="charge")


def test_writers_and_digits_take_turns() -> None:
    digits = pool()
    for name in digits.groups:
        chosen = digits.targets[digits.clients == name]
        assert np.bincount(chosen, minlength=10).tolist() == [5] * 10
    fewer = pool(clients=3, sequences=47)
    assert len(fewer.sequences) == len(fewer.targets) == len(fewer.clients) == 47
    assert np.bincount(fewer.targets).tolist() == [5] * 7 + [4] * 3


def test_a_seed_is_a_data_set() -> None:
    first, other_set = pool(2, 40), pool(2, 40, seed=1)
    repeated = pool.__wrapped__(2, 40)
    for steps, steps_again, another in zip(
        first.sequences, repeated.sequences, other_set.sequences, strict=True
    ):
        np.testing.assert_array_equal(steps, steps_again)
        assert not np.array_equal(steps, another)


def test_a_sequence_is_the_same_among_more_writers_and_more_repetitions() -> None:
    fewer, more = pool(2, 20), pool(5, 150)
    for steps, longer_run in zip(fewer.sequences, more.sequences[:20], strict=True):
        np.testing.assert_array_equal(steps, longer_run)


def test_the_nearest_neighbour_tells_digits_apart_if_there_are_enough_examples() -> None:
    """With few, no method could show that it learns."""
    digits, places = pool(), np.arange(600)
    assert share_told_apart(digits, places < 480) > 0.93  # four repetitions of five, all writers
    assert share_told_apart(digits, digits.clients < "writer-08") > 0.85  # unseen writers
    assert share_told_apart(digits, places < 20) < 0.85


@pytest.mark.parametrize("digit", range(10))
def test_a_writer_is_known_by_the_style(digit: int) -> None:
    """The nearest sequence of a digit is often by the same writer. Chance is 4 in 59."""
    digits = pool()
    chosen = digits.targets == digit
    rows, names = resampled(digits)[chosen], digits.clients[chosen]
    distance = np.linalg.norm(rows[:, None] - rows, axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (names[distance.argmin(axis=1)] == names).mean() > 0.25


def test_left_handers_lean_to_the_left() -> None:
    digits = pool(clients=60, sequences=600)
    lean: dict[str, list[float]] = {"left": [], "right": []}
    for name, sequence in writings(digits, 1):
        way = sequence[-1] - sequence[sequence[:, 1].argmax()]
        lean[digits.groups[name]].append(float(way[0] / way[1]))
    assert len(lean["left"]) == 20
    assert np.mean(lean["left"]) < np.mean(lean["right"]) - 0.1


def test_some_write_the_zero_clockwise_and_stay_with_it() -> None:
    digits = pool(clients=30, sequences=900)
    ways: dict[str, set[bool]] = {}
    for name, sequence in writings(digits, 0):
        x, y = (sequence - sequence.mean(axis=0)).T[:2].astype(np.float64)
        clockwise = bool((x[:-1] * y[1:] - x[1:] * y[:-1]).sum() < 0)  # twice the area
        ways.setdefault(name, set()).add(clockwise)
    assert all(len(way) == 1 for way in ways.values())
    left_hand, right = (
        np.mean([True in ways[name] for name in ways if digits.groups[name] == hand])
        for hand in ("left", "right")
    )
    assert 0 < right < left_hand < 1
