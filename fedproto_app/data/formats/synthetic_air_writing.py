"""The embedded data set of air-written digits: 3-D strokes of writers with different styles.

A digit is a hand-designed centre line of smooth pieces that meet at corners. Some digits have two
forms. A writer chooses a form, proportions, slant and size, rounds the corners and lengthens the
ends. The plane of writing is tilted and bent, as an arm moves. The hand trembles. It slows down
where the line is curved (speed ∝ curvature^(−1/3), Lacquaniti et al. 1983), and takes less than
twice the time for twice the path (Viviani and McCollum 1983). It is recorded at a constant rate, so
a longer writing time gives a longer sequence.

Every writer is drawn from (seed, writer) and every sequence from (seed, writer, digit, repetition).
So a sequence does not depend on the number of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.format import Format, Source
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import DataSettings

Vector = NDArray[np.float64]

RATE = 25.0  # positions per second
SHORTEST, LONGEST = 20, 100  # positions in a sequence
LINE_POINTS = 200  # points on a centre line
DECIMALS = 3  # of a centimetre: few, so that the last bit of a machine's exp() does not matter

# The digits' centre lines, designed by hand. People write some digits in two forms. The unit is
# the height of a digit.
Piece = tuple[tuple[float, float], ...]  # points (right, up) on a smooth curve
Form = tuple[Piece, ...]  # each piece begins where the previous one ends, at a corner

FORMS: dict[str, tuple[Form, ...]] = {
    "0": (
        (
            (
                (0.34, 1.0), (0.1, 0.84), (0.0, 0.48), (0.1, 0.14), (0.32, 0.0),
                (0.53, 0.15), (0.6, 0.5), (0.53, 0.85), (0.32, 1.0),
            ),
        ),
    ),
    "1": (
        (((0.08, 0.7), (0.34, 1.0)), ((0.34, 1.0), (0.32, 0.0))),
        (((0.32, 1.0), (0.3, 0.0)),),
    ),
    "2": (
        (
            ((0.04, 0.76), (0.14, 0.95), (0.33, 1.0), (0.52, 0.84), (0.46, 0.56), (0.02, 0.0)),
            ((0.02, 0.0), (0.6, 0.0)),
        ),
        (
            (
                (0.04, 0.78), (0.28, 1.0), (0.52, 0.8), (0.4, 0.42), (0.12, 0.03), (0.01, 0.12),
                (0.14, 0.2), (0.36, 0.06), (0.6, 0.04),
            ),
        ),
    ),
    "3": (
        (
            ((0.06, 0.88), (0.28, 1.0), (0.51, 0.84), (0.44, 0.62), (0.22, 0.53)),
            ((0.22, 0.53), (0.5, 0.44), (0.57, 0.2), (0.34, 0.0), (0.03, 0.12)),
        ),
        (
            ((0.05, 0.98), (0.54, 1.0)),
            ((0.54, 1.0), (0.24, 0.6)),
            ((0.24, 0.6), (0.52, 0.5), (0.58, 0.22), (0.35, 0.0), (0.03, 0.1)),
        ),
    ),
    "4": (
        (
            ((0.44, 1.0), (0.02, 0.32)),
            ((0.02, 0.32), (0.62, 0.32)),
            ((0.62, 0.32), (0.46, 0.68)),
            ((0.46, 0.68), (0.44, 0.0)),
        ),
        (
            ((0.1, 1.0), (0.03, 0.46)),
            ((0.03, 0.46), (0.5, 0.44)),
            ((0.5, 0.44), (0.52, 0.96)),
            ((0.52, 0.96), (0.48, 0.0)),
        ),
    ),
    "5": (
        (
            ((0.56, 1.0), (0.12, 0.98)),
            ((0.12, 0.98), (0.07, 0.56)),
            ((0.07, 0.56), (0.34, 0.63), (0.57, 0.4), (0.48, 0.1), (0.26, 0.0), (0.02, 0.1)),
        ),
        (
            (
                (0.56, 0.96), (0.3, 1.0), (0.1, 0.84), (0.18, 0.62), (0.44, 0.5), (0.55, 0.26),
                (0.36, 0.02), (0.03, 0.08),
            ),
        ),
    ),
    "6": (
        (
            (
                (0.48, 0.98), (0.2, 0.74), (0.04, 0.36), (0.12, 0.07), (0.33, 0.0), (0.55, 0.17),
                (0.48, 0.42), (0.26, 0.48), (0.07, 0.28),
            ),
        ),
    ),
    "7": (
        (((0.03, 0.98), (0.6, 1.0)), ((0.6, 1.0), (0.36, 0.5), (0.22, 0.0))),
        (
            ((0.05, 0.82), (0.05, 0.98)),
            ((0.05, 0.98), (0.3, 0.94), (0.6, 1.0)),
            ((0.6, 1.0), (0.2, 0.0)),
        ),
    ),
    "8": (
        (
            (
                (0.5, 0.86), (0.3, 1.0), (0.09, 0.8), (0.28, 0.54), (0.55, 0.24), (0.3, 0.0),
                (0.04, 0.22), (0.26, 0.5), (0.48, 0.74), (0.46, 0.94),
            ),
        ),
    ),
    "9": (
        (
            (
                (0.52, 0.84), (0.32, 1.0), (0.07, 0.8), (0.14, 0.54), (0.36, 0.54), (0.53, 0.84),
            ),
            ((0.53, 0.84), (0.5, 0.4), (0.44, 0.0)),
        ),
        (
            (
                (0.5, 0.9), (0.28, 1.0), (0.06, 0.78), (0.16, 0.52), (0.4, 0.6), (0.55, 0.86),
                (0.57, 0.5), (0.42, 0.08), (0.1, 0.04),
            ),
        ),
    ),
}  # fmt: skip
CLOSED = ("0", "8")  # closed digits, which can be written either way round


@dataclass(frozen=True)
class Writer:
    """A person's style. Lengths are in digit heights unless a unit is given."""

    name: str
    hand: str  # left | right
    forms: tuple[int, ...]  # [10] which form the writer uses for each digit
    clockwise: bool  # direction of closed curves
    slant: float  # shift to the right per height
    aspect: float  # width relative to the usual width
    turn: float  # angle of the base line, radians
    size: float  # height of a digit, cm
    roundness: float  # width of the smoothing at corners
    flourish: tuple[float, float]  # lengthening of the two ends
    sloppiness: float  # standard deviation of the centre line's points
    tremor: float  # cm
    tempo: float  # seconds for a path as long as one height
    slowing: float  # exponent of the curvature
    tilt: tuple[float, float]  # depth per unit to the right, and per unit up
    bend: float  # depth per unit squared


def synthetic_air_writing(settings: DataSettings) -> SequencePool:
    """Return ``settings.synthetic.sequences`` digits: x right, y up and z away, in centimetres.

    Digits and writers take turns, so classes and writers are balanced. With at least ten sequences
    per writer, each writer has every digit. A writer's group is the hand, left or right. With
    ``data.sequences.target = "seconds"``, the target of a sequence is the writing time instead of
    the digit.
    """
    synthetic, target = settings.synthetic, settings.sequences.target
    if target not in ("", "seconds"):
        raise DataError(
            f"data.sequences.target = {target!r}: for synthetic-air-writing it is 'seconds', or "
            "empty for the digits"
        )
    writers = [_writer(number, synthetic.seed) for number in range(synthetic.clients)]
    index = np.arange(synthetic.sequences)
    digits, turn = index % len(FORMS), index // len(FORMS)
    numbers, repetitions = turn % len(writers), turn // len(writers)
    sequences = [
        _written(writers[n], digit, numpy_stream(synthetic.seed, "air-written", n, digit, r))
        for n, digit, r in zip(numbers.tolist(), digits.tolist(), repetitions.tolist(), strict=True)
    ]
    seconds = np.array([len(steps) / RATE for steps in sequences])
    return SequencePool(
        dimensions=("x", "y", "z"),
        classes=() if target else tuple(FORMS),
        sequences=sequences,
        targets=seconds if target else digits.astype(np.int64),
        clients=np.array([writer.name for writer in writers])[numbers],
        groups={writer.name: writer.hand for writer in writers},
    )


def _writer(number: int, seed: int) -> Writer:
    rng = numpy_stream(seed, "writer", number)
    left_handed = number % 3 == 2
    return Writer(
        name=f"writer-{number:02d}",
        hand="left" if left_handed else "right",
        forms=tuple(int(rng.integers(len(forms))) for forms in FORMS.values()),
        clockwise=bool(rng.random() < (0.6 if left_handed else 0.1)),
        slant=float(rng.normal(-0.1 if left_handed else 0.15, 0.12)),
        aspect=float(np.exp(rng.normal(0.1, 0.15))),
        turn=float(rng.normal(-0.05 if left_handed else 0.05, 0.08)),
        size=float(20 * np.exp(rng.normal(0, 0.2))),
        roundness=float(rng.uniform(0.02, 0.09)),
        flourish=(float(rng.uniform(0, 0.15)), float(rng.uniform(0, 0.2))),
        sloppiness=float(rng.uniform(0.015, 0.045)),
        tremor=float(rng.uniform(0.1, 0.4)),
        tempo=float(np.clip(1.2 * np.exp(rng.normal(0, 0.25)), 0.7, 2.2)),
        slowing=float(rng.uniform(0.2, 0.45)),
        tilt=(
            float(rng.normal(0.15 if left_handed else -0.15, 0.15)),
            float(rng.normal(0.2, 0.15)),
        ),
        bend=float(rng.uniform(0.05, 0.25)),
    )


def _written(writer: Writer, digit: int, rng: Generator) -> NDArray[np.float32]:
    """Return one writing of the digit, [T, 3]."""
    line = _shaped(_centre_line(writer, digit, rng), writer, rng)
    path = _in_space(line, writer, rng)
    length = float(np.linalg.norm(np.diff(line, axis=0), axis=1).sum())
    seconds = writer.tempo * length**0.6 * np.exp(rng.normal(0, 0.08))
    steps = int(np.clip(round(seconds * RATE), SHORTEST, LONGEST))
    moments = _moments(line, writer, rng)
    times = np.linspace(0, moments[-1], steps)
    positions = np.stack([np.interp(times, moments, axis) for axis in path.T], axis=1)
    tremor = _smoothed(rng.normal(size=positions.shape), 1.0)
    return np.round(positions + writer.tremor * tremor, DECIMALS).astype(np.float32)


def _centre_line(writer: Writer, digit: int, rng: Generator) -> Vector:
    """Return the form's curve with jittered points and sharp corners, equally spaced, [P, 2]."""
    name, forms = list(FORMS.items())[digit]
    # Now and then, a writer uses another form than usual.
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
    """Return the matrix [40, n] that maps the piece's n points, jittered or not, to a curve."""
    from scipy.interpolate import CubicSpline  # slow to import, and needed by this source alone

    chords = np.linalg.norm(np.diff(np.array(piece), axis=0), axis=1)
    # The square root (centripetal) keeps a spline from overshooting between near points.
    knots = np.concatenate([[0], np.cumsum(np.sqrt(chords))])
    weights: Vector = CubicSpline(knots, np.eye(len(piece)), bc_type="natural")(
        np.linspace(0, knots[-1], 40)
    )
    return weights


def _at_equal_distances(line: Vector) -> Vector:
    """Resample a line [n, 2] to P points at equal distances, [P, 2]."""
    steps = np.linalg.norm(np.diff(line, axis=0), axis=1)
    distance = np.concatenate([[0], np.cumsum(steps)])
    places = np.linspace(0, distance[-1], LINE_POINTS)
    return np.stack([np.interp(places, distance, axis) for axis in line.T], axis=1)


def _shaped(line: Vector, writer: Writer, rng: Generator) -> Vector:
    """Return the line in the writer's proportions, with long ends and round corners, [P, 2]."""
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
    """Return the unit vector from the first point to the last, [2]."""
    way = part[-1] - part[0]
    unit: Vector = way / np.linalg.norm(way)
    return unit


def _in_space(line: Vector, writer: Writer, rng: Generator) -> Vector:
    """Return the line in centimetres, [P, 3], on the writer's tilted and bent plane."""
    right, up = line.T
    tilt = np.array(writer.tilt) + rng.normal(0, 0.05, 2)
    drift = rng.normal(0, 0.06) * np.linspace(-1, 1, len(line))
    depth = line @ tilt + writer.bend * (right**2 + up**2) + drift
    size = writer.size * np.exp(rng.normal(0, 0.08))
    path: Vector = size * np.stack([right, up, depth], axis=1) + rng.normal(0, 2, 3)
    return path


def _moments(line: Vector, writer: Writer, rng: Generator) -> Vector:
    """Return the times at which the hand passes each point, [P], in an arbitrary unit."""
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
    """Smooth values [n, ...] along the first axis with a Gaussian. mode: how the ends continue."""
    from scipy.ndimage import gaussian_filter1d  # slow to import, and needed by this source alone

    smooth: Vector = gaussian_filter1d(values, width, axis=0, mode=mode)
    return smooth


FORMAT = Format(
    (
        Source(
            "synthetic-air-writing",
            "labelled sequences",
            synthetic_air_writing,
            "no path",
        ),
    )
)
