"""Split one client's sequences into train, validation and test parts."""

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
    """Places of sequences in the pool. unlabelled: train sequences without a label."""

    train: Places
    validation: Places
    test: Places
    unlabelled: Places = field(default_factory=lambda: np.zeros(0, np.int64))


def split_holding(pool: SequencePool, holding: Holding, settings: DataSettings, seed: int) -> Split:
    """Split the client's sequences by ``data.train-share`` and ``data.validation-share``.

    The remaining share is the test part. With classes, sequences are drawn from a stream of the
    client's name, class by class as far as whole numbers allow; at least one sequence of each class
    is for training. With real targets, the pool's order stays, train first and test last, because
    neighbouring windows of a recording are alike. (Overlapping windows still share steps across the
    borders of the parts.) If the source has a split and its clients are taken as given, its test
    sequences are the test part, and the shares apply to the other sequences.

    ``data.clusters.labels`` limits the labelled train and the validation sequences to this number
    each, drawn regardless of class. Sequences without a label are for training; with
    ``data.clusters.unlabelled``, so are the train sequences whose labels were dropped.
    """
    rng = numpy_stream(seed, "sequences", holding.name)
    labelled, unlabelled = _parted_by(pool.has_target, holding.places)
    fit_share = settings.train_share + settings.validation_share
    if pool.is_test is not None and settings.clusters.scheme == "given":
        test, remaining = _parted_by(pool.is_test, labelled)
        _, unlabelled = _parted_by(pool.is_test, unlabelled)
    else:
        remaining, test = _parted(pool, labelled, 1 - fit_share, rng)
    train, validation = _parted(pool, remaining, settings.validation_share / fit_share, rng)
    if labels := settings.clusters.labels:
        draws = numpy_stream(seed, "labels", holding.name)
        shuffled = draws.permutation(train)
        train, without_label = np.sort(shuffled[:labels]), shuffled[labels:]
        validation = np.sort(draws.permutation(validation)[:labels])
        if settings.clusters.unlabelled:
            unlabelled = np.sort(np.concatenate([unlabelled, without_label]))
    return Split(train, validation, test, unlabelled)


def _parted_by(mask: NDArray[np.bool_], places: Places) -> tuple[Places, Places]:
    """Return the places that are in the mask, and the other places. mask: [n], over the pool."""
    chosen = mask[places]
    return places[chosen], places[~chosen]


def _parted(
    pool: SequencePool, places: Places, share: float, rng: np.random.Generator
) -> tuple[Places, Places]:
    """Return the places that stay, and the share of the places that is held out."""
    if pool.classes:
        return split_off(places, pool.targets[places].astype(np.int64), share, rng)
    remaining = len(places) - int(np.floor(share * len(places) + 0.5 + 1e-9))
    return places[:remaining], places[remaining:]


def why_refused(split: Split, settings: DataSettings) -> str | None:
    """Return why a client with this split cannot take part; None if it can."""
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
