"""The part of ``fedproto data check`` that looks at images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.images.clients import why_refused
from fedproto_app.data.images.partition import partition_pool
from fedproto_app.data.images.pool import ImagePool, ImageSplit, Positions
from fedproto_app.data.images.sources import load_pool
from fedproto_app.models.pretrained import pretrained_encoder
from fedproto_app.report.check.doubts import doubts_about_images
from fedproto_app.report.check.findings import (
    MOST_LISTED,
    Cell,
    Checked,
    Findings,
    hint,
    listed,
    refusals,
    span,
    with_own_clients,
)
from fedproto_app.report.images.charts import partition_charts
from fedproto_app.report.images.report import thirds
from fedproto_app.settings import DataSettings, Settings

Counts = NDArray[np.int64]

MOST_DECODED = 5000  # images. Of a larger source, only a sample is decoded
_BYTES_AT_ONCE = 2**26  # bytes of decoded pixels in memory at the same time


@dataclass(frozen=True)
class Partition:
    """The numbers of images that each client would hold: [M, C] by stage and class, per client.

    refused: for each client that a run would leave out, the reason.
    """

    train: Mapping[str, Counts]
    validation: Mapping[str, Counts]
    test: Mapping[str, Counts]
    refused: Mapping[str, str]

    @property
    def dealt(self) -> Counts:
        """The numbers of train images by class over all clients and stages, [C]."""
        counts: Counts = np.concatenate(list(self.train.values())).sum(axis=0)
        return counts

    @property
    def has_class(self) -> NDArray[np.bool_]:
        """Whether each client trains on each class at some stage, [N, C]."""
        return np.stack([table.any(axis=0) for table in self.train.values()])


def check(settings: Settings, all_rows: bool) -> Checked:
    """Print facts about the images and how a run would deal them to clients.

    all_rows: list all classes. The result says whether a run could start.
    """
    pool = load_pool(settings.data.model_copy(update={"pretrained_encoder": ""}))
    data = with_own_clients(settings.data, "partition", pool.train.clients is not None)
    decoded, corrupt = decode(pool)
    skips = data.corrupt_images == "skip"
    torn = _corrupt_lines(decoded, corrupt)
    partition, refused = None, [] if skips else torn
    warnings = [*doubts_about_images(pool), *(torn if skips else [])]
    try:
        partition = deal(pool, data, settings.seed)
        refused += refusals(partition.refused)
    except DataError as error:
        refused.append(str(error))
    facts = _pool_facts(pool, data, decoded, len(corrupt))
    if partition is not None:
        facts += _partition_facts(pool, partition)
    Findings(_class_rows(pool, partition), facts, refused, warnings).print(all_rows)
    proposed: dict[str, object] = {}
    if data.partition.scheme == "given":  # a closed form has one round for each stage
        stages = 1 if pool.train.stages is None else 1 + int(pool.train.stages.max())
        proposed = {"data.partition.scheme": "given", "rounds": stages}
    if partition is None:
        return Checked(False, proposed)
    usable = len(partition.refused) < len(partition.train)
    charts = partition_charts(partition.train, pool.classes)
    return Checked(usable and (skips or not corrupt), proposed, charts)


def decode(pool: ImagePool) -> tuple[int, dict[str, str]]:
    """Decode the images, or a random sample of `MOST_DECODED` of them, drawn with a fixed seed.

    Returns the number of decoded images and, for each corrupt image, its name and the reason.
    Raises `DataError` for a readable image that does not match the others.
    """
    train, test = len(pool.train.labels), len(pool.test.labels)
    looked_at = np.arange(train + test)
    if len(looked_at) > MOST_DECODED:
        rng = numpy_stream(0, "data check", "images")
        looked_at = np.sort(rng.choice(looked_at, MOST_DECODED, replace=False))
    corrupt = {
        **_corrupt(pool.train, looked_at[looked_at < train], pool.shape),
        **_corrupt(pool.test, looked_at[looked_at >= train] - train, pool.shape),
    }
    return len(looked_at), corrupt


def _corrupt(split: ImageSplit, places: Positions, shape: tuple[int, ...]) -> dict[str, str]:
    """Return, by name, why images at these places cannot be read. Readable images are left out."""
    size = max(1, _BYTES_AT_ONCE // prod(shape))
    parts = [places[first : first + size] for first in range(0, len(places), size)]
    return {
        split.names[part[row]]: reason
        for part in parts
        for row, reason in split.load(part).corrupt.items()
    }


def deal(pool: ImagePool, settings: DataSettings, seed: int) -> Partition:
    """Deal the images as a run with these settings and this seed would.

    Raises `DataError` if there are too few images.
    """
    holdings = partition_pool(pool, settings, seed)
    reasons = {
        holding.name: why_refused(holding.stages, settings.partition) for holding in holdings
    }

    def counts(part: str, labels: Positions) -> dict[str, Counts]:
        return {
            holding.name: np.stack(
                [_counts(labels[getattr(s, part)], pool) for s in holding.stages]
            )
            for holding in holdings
        }

    return Partition(
        counts("train", pool.train.labels),
        counts("validation", pool.train.labels),
        counts("test", pool.test.labels),
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def _counts(labels: Positions, pool: ImagePool) -> Counts:
    return np.bincount(labels, minlength=len(pool.classes))


def _class_rows(pool: ImagePool, partition: Partition | None) -> list[Sequence[Cell]]:
    """Return a row per class: its images and, if they were dealt, its train images and clients."""
    columns: list[tuple[str, Counts]] = [
        ("train", _counts(pool.train.labels, pool)),
        ("test", _counts(pool.test.labels, pool)),
    ]
    if partition is not None:
        columns += [("dealt", partition.dealt), ("clients", partition.has_class.sum(axis=0))]
    texts = [[title, *map(str, counts)] for title, counts in columns]
    return list(zip(("class", *pool.classes), *texts, strict=True))


def _pool_facts(
    pool: ImagePool, settings: DataSettings, decoded: int, corrupt: int
) -> list[tuple[str, Cell]]:
    """Return facts about the source, and how its images would be dealt to clients."""
    train, test = pool.train, pool.test
    channels, height, width = pool.shape
    images = len(train.labels) + len(test.labels)
    facts: list[tuple[str, Cell]] = [
        ("source", f"{settings.source}, for task = 'classification'"),
        ("classes", str(len(pool.classes))),
        (
            "images",
            f"{len(train.labels)} train, {len(test.labels)} test; {width} × {height}, "
            f"{'colour' if channels == 3 else 'grey'}",
        ),
    ]
    if train.clients is not None and test.clients is not None:
        names = [str(name) for name in np.unique(np.concatenate([train.clients, test.clients]))]
        facts.append(("clients", f"{len(names)}: {listed(names)}"))
    if train.stages is not None and test.stages is not None:
        facts.append(("stages", str(1 + max(train.stages.max(), test.stages.max()))))
    drawn = f" of {images}, drawn at random" if decoded < images else ""
    facts.append(("decoded", f"{decoded}{drawn}; {corrupt} corrupt"))
    if settings.pretrained_encoder:
        encoder = pretrained_encoder(settings.pretrained_encoder)
        source = f"{encoder.side} × {encoder.side} pixels by encoder {encoder.digest}"
        facts.append(("vectors", f"{encoder.length} values an image, made from {source}"))
    facts.append(("partition", _scheme(settings)))
    if reserved := settings.partition.reserve_per_class:
        facts.append(("reserved", f"{reserved} train images of each class, which no client gets"))
    if train.clients is not None and settings.partition.scheme != "given":
        facts.append(hint("--set data.partition.scheme=given takes the source's own clients"))
    return facts


def _scheme(settings: DataSettings) -> str:
    chosen = settings.partition
    if chosen.scheme == "given":
        return "given: clients and stages as the source has them"
    classes = f"classes a stage {chosen.classes}, " if chosen.scheme == "long-tail" else ""
    return (
        f"{chosen.scheme}: clients {chosen.clients}, stages {chosen.stages}, {classes}"
        f"imbalance factor {chosen.imbalance_factor:g}"
    )


def _partition_facts(pool: ImagePool, partition: Partition) -> list[tuple[str, Cell]]:
    """Return facts about what the clients would hold."""
    facts: list[tuple[str, Cell]] = []
    for part in ("train", "validation", "test"):
        images = np.concatenate([table.sum(axis=1) for table in getattr(partition, part).values()])
        facts.append((f"  {part}", f"{span(images)} images a client and stage"))
    facts.append(("  classes", f"{span(partition.has_class.sum(axis=1))} a client over its stages"))
    holders, rarest = partition.has_class.sum(axis=0), thirds(partition.dealt)[2][::-1]
    if tail := [f"{pool.classes[label]}: {holders[label]}" for label in rarest]:
        facts.append(("  tail", f"clients with the rarest classes: {listed(tail)}"))
    return facts


def _corrupt_lines(decoded: int, corrupt: Mapping[str, str]) -> list[str]:
    lines = [f"image {name}: {reason}" for name, reason in list(corrupt.items())[:MOST_LISTED]]
    if corrupt:
        lines.append(
            f"{len(corrupt)} corrupt of {decoded} decoded; "
            "data.corrupt-images = 'skip' leaves them out"
        )
    return lines
