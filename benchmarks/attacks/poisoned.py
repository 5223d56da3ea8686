"""Poisoned data, as custom sources (`data-source`), for hostile clients that train honestly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedproto_app.data.formats.public_sets import load_digits
from fedproto_app.data.formats.synthetic_air_writing import synthetic_air_writing
from fedproto_app.data.formats.synthetic_traffic import load_synthetic_traffic
from fedproto_app.data.images.pool import ImagePool
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings


def reversed_series(settings: DataSettings) -> Iterator[ClientSeries]:
    """Yield the sites with time running backwards."""
    for series in load_synthetic_traffic(settings):
        yield replace(series, values=series.values[::-1].copy())


def mirrored_series(settings: DataSettings) -> Iterator[ClientSeries]:
    """Yield the sites with every second value mirrored at the mean: high follows low."""
    for series in load_synthetic_traffic(settings):
        mean = float(np.nanmean(series.values))
        signs = np.where(np.arange(len(series.values)) % 2, -1.0, 1.0)
        yield replace(series, values=mean + signs * (series.values - mean))


def shifted_digits(settings: DataSettings) -> ImagePool:
    """Images of digits with the next digit's label."""
    pool = load_digits(settings)
    classes = len(pool.classes)
    train = replace(pool.train, labels=(pool.train.labels + 1) % classes)
    return replace(pool, train=train)


def shifted_writing(settings: DataSettings) -> SequencePool:
    """Yield gestures with the next class's label."""
    pool = synthetic_air_writing(settings)
    targets = (pool.targets.astype(np.int64) + 1) % len(pool.classes)
    return replace(pool, targets=targets)
