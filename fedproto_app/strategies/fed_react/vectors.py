"""Represent the sequences of a node's clients by vectors of the frozen encoder.

The vectors are computed once, stored on the node's disk and never leave it. A vector is a sequence
of one step, so the clients keep their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.errors import DataError
from fedproto_app.core.messages import Arrays
from fedproto_app.data.sequences.clients import ClientSequences, LabelledSequences
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.tasks.sequences.task import ENCODED_AT_ONCE, SequenceTask
from fedproto_app.tasks.task import AnyTask


class VectorStore(Protocol):
    """A node's store of its encoder and of the vectors of its clients' sequences."""

    def write_encoder(self, tensors: Mapping[str, Tensor]) -> None: ...

    def read_encoder(self) -> dict[str, Tensor]: ...

    def write_vectors(self, client: str, digest: str, vectors: Tensor) -> None: ...

    def read_vectors(self, client: str, digest: str) -> Tensor | None: ...


def represented(
    shard: Shard, names: list[str], received: Arrays, task: AnyTask, store: VectorStore
) -> Shard:
    """Return the shard with these clients and their sequences as vectors.

    received: arrays of the guidance; if they lack the encoder, the stored encoder is used. Clients
    whose vectors are not all finite are refused. Raise `DataError` if this node has no encoder yet.
    """
    assert isinstance(task, SequenceTask)
    encoder = {n: torch.from_numpy(a) for n, a in received.items() if n.startswith(task.encoder)}
    if encoder:
        store.write_encoder(encoder)
    else:
        encoder = store.read_encoder()
    if not encoder:
        raise DataError("this node has no encoder yet")
    digest = _digest(encoder)
    stacked = {name: value.unsqueeze(0).to(task.device) for name, value in encoder.items()}
    clients, refused = {}, dict(shard.refused)
    for name in names:
        client = shard.clients.get(name)
        if client is None:
            continue
        assert isinstance(client, ClientSequences)
        vectors = _vectors(client, stacked, digest, task, store)
        if vectors.isfinite().all():
            clients[name] = _with_vectors(client, vectors)
        else:
            refused[name] = "the encoder makes NaN or infinite values of its sequences"
    shape = DataShape((task.representation_dim,), shard.shape.classes)
    return Shard(clients, refused, shape)


def _vectors(
    client: ClientSequences,
    encoder: Mapping[str, Tensor],
    digest: str,
    task: SequenceTask,
    store: VectorStore,
) -> Tensor:
    """Return vectors of the client's train, validation and test sequences, [n, D]; store them if
    all are finite."""
    parts = (client.train, client.validation, client.test)
    vectors = store.read_vectors(client.name, digest)
    if vectors is None or len(vectors) != sum(map(len, parts)):
        sequences = [sequence for part in parts for sequence in part.values]
        vectors = represent_sequences(sequences, encoder, task)
        if vectors.isfinite().all():
            store.write_vectors(client.name, digest, vectors)
    return vectors


def _with_vectors(client: ClientSequences, vectors: Tensor) -> ClientSequences:
    """Return the client with vectors [n, D] instead of its labelled sequences."""
    parts = (client.train, client.validation, client.test)
    rows = vectors.numpy()
    ends = np.cumsum([len(part) for part in parts])
    train, validation, test = (
        LabelledSequences(list(rows[end - len(part) : end, None]), part.targets)
        for part, end in zip(parts, ends, strict=True)
    )
    return replace(client, train=train, validation=validation, test=test, unlabelled=())


def represent_sequences(
    sequences: list[np.ndarray], encoder: Mapping[str, Tensor], task: SequenceTask
) -> Tensor:
    """Return vectors [n, D] of sequences [T_i, d]. encoder: with a client axis of length 1."""
    vectors = []
    for first in range(0, len(sequences), ENCODED_AT_ONCE):
        batch = sequences[first : first + ENCODED_AT_ONCE]
        lengths = torch.tensor([[len(sequence) for sequence in batch]])
        padded = torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, batch)), True)
        values = padded.unsqueeze(0).to(task.device)
        vectors.append(task.encode_all(encoder, values, lengths.to(task.device))[0].cpu())
    return torch.cat(vectors)


def _digest(encoder: Mapping[str, Tensor]) -> str:
    """Return a digest that identifies the encoder."""
    mark = sha256()
    for name in sorted(encoder):
        mark.update(name.encode() + encoder[name].contiguous().numpy().tobytes())
    return mark.hexdigest()[:16]
