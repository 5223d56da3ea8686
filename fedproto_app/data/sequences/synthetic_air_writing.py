"""The embedded set of air-written digits: 3-D strokes of writers whose style is their own.

A digit is a hand-designed centre line of smooth pieces that meet at corners. A writer gives it a
form (some digits have two), proportions, slant and size, rounds the corners, lengthens the ends,
and writes on a plane that is tilted and bent as an arm moves it. The hand slows down where the line
is curved (speed ∝ curvature^(−1/3), Lacquaniti et al. 1983) and takes less than twice the time for
twice the path (Viviani and McCollum 1983), and it trembles. It is seen at a constant rate, so a
sequence is as long as the writing took.

Every writer draws from (seed, writer) and every sequence from (seed, writer, digit, repetition), so
a sequence is the same however many others there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.sequences.digit_forms import CLOSED, FORMS, Piece
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import DataSettings

Vector = NDArray[np.float64]

RATE = 25.0  # positions a second
SHORTEST, LONGEST = 20, 100  # positions of a sequence
LINE_POINTS = 200  # of a centre line before it is written
DECIMALS = 3  # of a centimetre, so that the last bit of a machine's exp() does not matter


@dataclass(frozen=True)
class Writer:
    """A person's style. Lengths are in digit heights unless a unit stands there."""

    name: str
    hand: str  # left | right
    forms: tuple[int, ...]  # [10] which form of each digit
    clockwise: bool  # how closed curves are written
    slant: float  # to the right, a height
    aspect: float  # width over its usual measure
    turn: float  # radians, of the base line
    size: float  # cm, of a height
    roundness: float  # of corners: width of the smoothing
    flourish: tuple[float, float]  # the ends' lengthening
    sloppiness: float  # standard deviation of points of the centre line
    tremor: float  # cm
    tempo: float  # seconds for a path of one height
    slowing: float  # exponent of the curvature
    tilt: tuple[float, float]  # depth a unit to the right, and up
    bend: float  # depth a unit squared


def synthetic_air_writing(settings: DataSettings) -> SequencePool:
    """``settings.synthetic.sequences`` digits: x to the right, y up and z away, in centimetres.

    Digits and writers take turns, so classes are balanced, and writers too: with at least ten
    sequences a writer each has every digit. The group of a writer is the hand.
    """
    synthetic = settings.synthetic
    writers = [_writer(number, synthetic.seed) for number in range(synthetic.clients)]
    index = np.arange(synthetic.sequences)
    labels, turn = index % len(FORMS), index // len(FORMS)
    whose, repetition = turn % len(writers), turn // len(writers)
    sequences = [
        _written(writers[w], digit, numpy_stream(synthetic.seed, "air-written", w, digit, r))
        for w, digit, r in zip(whose.tolist(), labels.tolist(), repetition.tolist(), strict=True)
    ]
    return SequencePool(
        dimensions=("x", "y", "z"),
        classes=tuple(FORMS),
        sequences=sequences,
        targets=labels.astype(np.int64),
        clients=np.array([writer.name for writer in writers])[whose],
        groups={writer.name: writer.hand for writer in writers},
    )


def _writer(number: int, seed: int) -> Writer:
    rng = numpy_stream(seed, "writer", number)
    left = number % 3 == 2
    return Writer(
        name=f"writer-{number:02d}",
        hand="left" if left else "right",
        forms=tuple(int(rng.integers(len(forms))) for forms in FORMS.values()),
        clockwise=bool(rng.random() < (0.6 if left else 0.1)),
        slant=float(rng.normal(-0.1 if left else 0.15, 0.12)),
        aspect=float(np.exp(rng.normal(0.1, 0.15))),
        turn=float(rng.normal(-0.05 if left else 0.05, 0.08)),
        size=float(20 * np.exp(rng.normal(0, 0.2))),
        roundness=float(rng.uniform(0.02, 0.09)),
        flourish=(float(rng.uniform(0, 0.15)), float(rng.uniform(0, 0.2))),
        sloppiness=float(rng.uniform(0.015, 0.045)),
        tremor=float(rng.uniform(0.1, 0.4)),
        tempo=float(np.clip(1.2 * np.exp(rng.normal(0, 0.25)), 0.7, 2.2)),
        slowing=float(rng.uniform(0.2, 0.45)),
        tilt=(float(rng.normal(0.15 if left else -0.15, 0.15)), float(rng.normal(0.2, 0.15))),
        bend=float(rng.uniform(0.05, 0.25)),
    )


def _written(writer: Writer, digit: int, rng: Generator) -> NDArray[np.float32]:
    """[T, 3] one writing of the digit."""
    line = _shaped(_centre_line(writer, digit, rng), writer, rng)
    path = _in_space(line, writer, rng)
    length = float(np.linalg.norm(np.diff(line, axis=0), axis=1).sum())
    seconds = writer.tempo * length**0.6 * np.exp(rng.normal(0, 0.08))
    steps = int(np.clip(round(seconds * RATE), SHORTEST, LONGEST))
    moments = _moments(line, writer, rng)
    at = np.linspace(0, moments[-1], steps)
    seen = np.stack([np.interp(at, moments, axis) for axis in path.T], axis=1)
    tremor = _smoothed(rng.normal(size=seen.shape), 1.0)
    return np.round(seen + writer.tremor * tremor, DECIMALS).astype(np.float32)


def _centre_line(writer: Writer, digit: int, rng: Generator) -> Vector:
    """[P, 2] the form's curve with points jittered, at equal distances, corners still sharp."""
    name, forms = list(FORMS.items())[digit]
    # Now and then even a steady hand writes the other form.
    form = int(rng.integers(len(forms))) if rng.random() < 0.08 else writer.forms[digit]
    corner = np.zeros(2)
    curves: list[Vector] = []
    for piece in forms[form]:
        jitter = rng.normal(0, writer.sloppiness, (len(piece), 2))
        if curves:
            jitter[0] = corner  # pieces stay joined
        corner = jitter[-1]
        curves.append(_spline(piece) @ (np.array(piece) + jitter))
    line = np.concatenate(curves)
    if writer.clockwise and name in CLOSED:
        line = line * (-1, 1) + (0.6, 0)
    return _at_equal_distances(line)


@cache
def _spline(piece: Piece) -> Vector:
    """[40, n] the matrix that makes a smooth curve of the piece's n points, jittered or not."""
    from scipy.interpolate import CubicSpline  # slow to import, and seldom used

    chords = np.linalg.norm(np.diff(np.array(piece), axis=0), axis=1)
    # The square root keeps a spline from overshooting between near points (centripetal).
    knots = np.concatenate([[0], np.cumsum(np.sqrt(chords))])
    weights: Vector = CubicSpline(knots, np.eye(len(piece)), bc_type="natural")(
        np.linspace(0, knots[-1], 40)
    )
    return weights


def _at_equal_distances(line: Vector) -> Vector:
    """[n, 2] → [P, 2]."""
    steps = np.linalg.norm(np.diff(line, axis=0), axis=1)
    distance = np.concatenate([[0], np.cumsum(steps)])
    at = np.linspace(0, distance[-1], LINE_POINTS)
    return np.stack([np.interp(at, distance, axis) for axis in line.T], axis=1)


def _shaped(line: Vector, writer: Writer, rng: Generator) -> Vector:
    """[P, 2] the line in the writer's proportions, with ends lengthened and corners rounded."""
    before, after = np.array(writer.flourish) * rng.uniform(0.5, 1.5, 2)
    start = line[0] - before * _direction(line[:8])
    end = line[-1] + after * _direction(line[-8:])
    line = _at_equal_distances(np.vstack([start, line, end]))
    length = np.linalg.norm(np.diff(line, axis=0), axis=1).sum()
    width = writer.roundness * LINE_POINTS / length
    line = _smoothed(line, width, "nearest") - (0.3, 0.5)

    aspect = writer.aspect * np.exp(rng.normal(0, 0.08))
    slant, turn = writer.slant + rng.normal(0, 0.06), writer.turn + rng.normal(0, 0.05)
    right = aspect * line[:, 0] + slant * line[:, 1]
    cos, sin = np.cos(turn), np.sin(turn)
    return np.stack([cos * right - sin * line[:, 1], sin * right + cos * line[:, 1]], axis=1)


def _direction(part: Vector) -> Vector:
    """[2] the unit vector from the first point to the last."""
    way = part[-1] - part[0]
    unit: Vector = way / np.linalg.norm(way)
    return unit


def _in_space(line: Vector, writer: Writer, rng: Generator) -> Vector:
    """[P, 3] the line in centimetres, on the writer's tilted and bent plane, somewhere."""
    right, up = line.T
    tilt = np.array(writer.tilt) + rng.normal(0, 0.05, 2)
    drift = rng.normal(0, 0.06) * np.linspace(-1, 1, len(line))
    depth = line @ tilt + writer.bend * (right**2 + up**2) + drift
    size = writer.size * np.exp(rng.normal(0, 0.08))
    path: Vector = size * np.stack([right, up, depth], axis=1) + rng.normal(0, 2, 3)
    return path


def _moments(line: Vector, writer: Writer, rng: Generator) -> Vector:
    """[P] when the hand is at each point of the line, in some unit of time."""
    velocity = np.gradient(line, axis=0)
    angle = np.unwrap(np.arctan2(velocity[:, 1], velocity[:, 0]))
    pace = np.linalg.norm(velocity, axis=1)
    curvature = _smoothed(np.abs(np.gradient(angle)) / pace, 3.0)
    mood = _smoothed(rng.normal(size=len(line)), 25.0)
    haste = 0.15 * mood / mood.std()
    ends = np.minimum(np.arange(len(line)) + 1, np.arange(len(line))[::-1] + 1) / len(line)
    speed = (1.0 + curvature) ** -writer.slowing * np.exp(haste) * np.minimum(1, 0.3 + 8 * ends)
    moments: Vector = np.concatenate([[0], np.cumsum(pace[1:] / speed[1:])])
    return moments


def _smoothed(
    values: Vector, width: float, mode: Literal["reflect", "nearest"] = "reflect"
) -> Vector:
    """[n, ...] along the first axis, by a Gaussian; mode: what is beyond the ends."""
    from scipy.ndimage import gaussian_filter1d  # slow to import, and seldom used

    smooth: Vector = gaussian_filter1d(values, width, axis=0, mode=mode)
    return smooth
