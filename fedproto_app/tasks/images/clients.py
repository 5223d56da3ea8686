"""Load the clients of a source of images, ready to train, or say why they cannot take part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedproto_app.core.errors import DataError
from fedproto_app.core.methods import method_named
from fedproto_app.data.images.clients import make_image_clients, why_refused
from fedproto_app.data.images.partition import Holding, partition_pool
from fedproto_app.data.images.pool import ImagePool
from fedproto_app.data.images.sources import load_pool
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.data.shared_read import read_once
from fedproto_app.models.pretrained import vectors_name
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.tasks.table import Admission

POOLS = (ImagePool,)


def load_shard(settings: Settings, partition: int, partitions: int) -> Shard:
    """Return a node's clients with their decoded images."""
    pool, holdings = read_once(dealt, settings.data, settings.seed, keep=partitions > 1)
    clients, refused = make_image_clients(pool, holdings[partition::partitions], settings.data)
    learns = method_named(settings.method).learns_from_validation(settings)
    clients = {n: replace(client, learns_validation=learns) for n, client in clients.items()}
    _require_fitting_stages(settings, [len(client.stages) for client in clients.values()])
    vectors = (vectors_name(pool.encoder),) if pool.encoder else ()
    return Shard(clients, refused, DataShape(pool.shape, pool.classes, vectors))


def read(settings: Settings) -> None:
    """Read the source for all nodes of this process and of processes forked from it."""
    read_once(dealt, settings.data, settings.seed)


def dealt(settings: DataSettings, seed: int) -> tuple[ImagePool, list[Holding]]:
    """Return the images of the source, and what each client holds of them."""
    pool = load_pool(settings)
    return pool, partition_pool(pool, settings, seed)


def admission(settings: Settings) -> Admission:
    """Return which clients of the source can take part.

    No image is decoded, so a damaged file is not noticed.
    """
    _, holdings = dealt(settings.data, settings.seed)
    _require_fitting_stages(settings, [len(holding.stages) for holding in holdings])
    partition = settings.data.partition
    return Admission({holding.name: why_refused(holding.stages, partition) for holding in holdings})


def _require_fitting_stages(settings: Settings, stages: Sequence[int]) -> None:
    """Raise `DataError` if the run cannot train on all stages of clients with this many stages.

    This is for stages that the source gives. The settings themselves check drawn stages.
    """
    stage_count = max(stages, default=1)
    if stage_count > settings.rounds:
        raise DataError(
            f"rounds = {settings.rounds}: fewer than the {stage_count} stages of the data, so some "
            "would never be trained on"
        )
    if stage_count > 1 and (settings.keep != "last" or settings.patience):
        raise DataError(
            f"keep = {settings.keep!r}, patience = {settings.patience}: errors of different "
            f"stages cannot be compared; the data have {stage_count} stages, which need "
            "keep = 'last' and patience = 0"
        )
