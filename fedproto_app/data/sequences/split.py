"""The train, validation and test part of one client's sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.held_out import split_off
from fedproto_app.data.sequences.clusters import Holding, Places
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import DataSettings


@dataclass(frozen=True)
class Split:
    """Places of sequences in the pool. unlabelled: those of the train part without a label."""

    train: Places
    validation: Places
    test: Places
    unlabelled: Places = field(default_factory=lambda: np.zeros(0, np.int64))


def split_holding(pool: SequencePool, holding: Holding, settings: DataSettings, seed: int) -> Split:
    """The client's sequences by ``data.train-share`` and ``data.validation-share``, the rest test.

    With classes: at random from a stream of the client's name, class by class as far as whole
    numbers allow; the last sequence of a class is always one to train on. With real targets: in the
    pool's order, since windows of one recording resemble their neighbours in time: train comes
    first, test last. (Windows that overlap share steps across the two borders all the same.)
    Where the source has a split of its own and its clients are taken as given, its test sequences
    are the test part, and the two shares are those of the rest. ``data.clusters.labels`` leaves so
    many of the train and of the validation part, drawn without looking at them. Sequences without a
    label are to train on; those of the train part that are left out join them with
    ``data.clusters.unlabelled``.
    """
    rng = numpy_stream(seed, "sequences", holding.name)
    held, unlabelled = _parted_by(pool.has_target, holding.places)
    both = settings.train_share + settings.validation_share
    if pool.is_test is not None and settings.clusters.scheme == "given":
        test, rest = _parted_by(pool.is_test, held)
        _, unlabelled = _parted_by(pool.is_test, unlabelled)
    else:
        rest, test = _parted(pool, held, 1 - both, rng)
    train, validation = _parted(pool, rest, settings.validation_share / both, rng)
    if labels := settings.clusters.labels:
        draws = numpy_stream(seed, "labels", holding.name)
        shuffled = draws.permutation(train)
        train, left = np.sort(shuffled[:labels]), shuffled[labels:]
        validation = np.sort(draws.permutation(validation)[:labels])
        if settings.clusters.unlabelled:
            unlabelled = np.sort(np.concatenate([unlabelled, left]))
    return Split(train, validation, test, unlabelled)


def _parted_by(which: NDArray[np.bool_], places: Places) -> tuple[Places, Places]:
    """Of these places those that are one of `which` [n of the pool], and the others."""
    chosen = which[places]
    return places[chosen], places[~chosen]


def _parted(
    pool: SequencePool, places: Places, share: float, rng: np.random.Generator
) -> tuple[Places, Places]:
    """These places without the share of them that is held out, and that share."""
    if pool.classes:
        return split_off(places, pool.targets[places].astype(np.int64), share, rng)
    kept = len(places) - int(np.floor(share * len(places) + 0.5 + 1e-9))
    return places[:kept], places[kept:]


def why_refused(split: Split, settings: DataSettings) -> str | None:
    """Why a client with this split cannot take part; None if it can."""
    parts = {"train": split.train, "validation": split.validation, "test": split.test}
    empty = [title for title, places in parts.items() if not len(places)]
    if not empty:
        return None
    if len(empty) == len(parts) and len(split.unlabelled):
        return f"no sequence with a label among its {len(split.unlabelled)}"
    if len(empty) == len(parts):
        window = f" of data.sequences.window = {settings.sequences.window} steps"
        return "no sequence" + (window if settings.source == "recordings" else "")
    dealt = settings.clusters.scheme != "given"
    labelled = " with a label" if len(split.unlabelled) else ""
    return (
        f"no {empty[0]} sequence among its {sum(map(len, parts.values()))}{labelled}: "
        f"data.train-share = {settings.train_share:g}, "
        f"data.validation-share = {settings.validation_share:g}"
        + f", data.clusters.clients = {settings.clusters.clients}"
        * dealt
    )
