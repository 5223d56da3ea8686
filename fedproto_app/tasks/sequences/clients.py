"""Load the clients of a source of sequences, ready to train, or say why they cannot take part."""

from __future__ import annotations

from dataclasses import replace

from fedproto_app.core.methods import method_named
from fedproto_app.data.sequences.clients import make_sequence_clients
from fedproto_app.data.sequences.partition import (
    Holding,
    deal_sequences,
    split_holding,
    why_refused,
)
from fedproto_app.data.sequences.pool import SequencePool, numbered_dimensions
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.data.shared_read import read_once
from fedproto_app.settings import SequenceSettings, Settings
from fedproto_app.tasks.table import Admission, require_fitting_targets

POOLS = (SequencePool,)


def targets_of(pool: SequencePool) -> str:
    """Return the kind of target, in the words of the table of tasks."""
    return "classes" if pool.classes else "real numbers"


def load_shard(settings: Settings, partition: int, partitions: int) -> Shard:
    """Return a node's clients with their sequences, split and scaled."""
    pool = read_once(load_sequences, settings.data, keep=partitions > 1)
    holdings = _dealt(pool, settings)[partition::partitions]
    method, sequences = method_named(settings.method), sequence_settings(settings)
    clients, refused = make_sequence_clients(
        pool,
        holdings,
        settings.data.model_copy(update={"sequences": sequences}),
        settings.seed,
        unlabelled=method.learns_without_labels(settings),
    )
    learns = method.learns_from_validation(settings)
    clients = {n: replace(client, learns_validation=learns) for n, client in clients.items()}
    return Shard(clients, refused, _shape_of(pool))


def sequence_settings(settings: Settings) -> SequenceSettings:
    """Return the settings of sequences, with the method's scaling instead of auto."""
    sequences = settings.data.sequences
    if sequences.scaling != "auto":
        return sequences
    return sequences.model_copy(update={"scaling": method_named(settings.method).scaling})


def _shape_of(pool: SequencePool) -> DataShape:
    names, count = pool.dimensions, len(pool.dimensions)
    if names == numbered_dimensions(count):
        names = ()
    # A single value needs no name to be told apart, and sites may name it differently.
    return DataShape((count,), pool.classes, names if count > 1 else (), names=names)


def read(settings: Settings) -> None:
    """Read the source for all nodes of this process and of processes forked from it."""
    read_once(load_sequences, settings.data)


def admission(settings: Settings) -> Admission:
    """Return which clients of the source can take part."""
    pool, data, seed = load_sequences(settings.data), settings.data, settings.seed
    return Admission(
        {
            holding.name: why_refused(split_holding(pool, holding, data, seed), data)
            for holding in _dealt(pool, settings)
        }
    )


def _dealt(pool: SequencePool, settings: Settings) -> list[Holding]:
    require_fitting_targets(settings, targets_of(pool))
    return deal_sequences(pool, settings.data, settings.seed)
