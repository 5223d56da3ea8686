"""Phase 1: an encoder of sequences, trained without labels. Phase 2 takes its vectors as samples.

Clients (Fed-REACT, Algorithm 1) train as in Franceschi, Dieuleveut and Jaggi (NeurIPS 2019): a part
of a series should be similar to a part of that part, and dissimilar to parts of other series.
They send only the encoder. The server averages encoders by FedAvg, then the method's own strategy
runs. From the first phase on, the encoder is the run's global model. So it is written to
``model/global.safetensors``, and another run can load it (``encoder.path``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import NamedTuple, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor
from torch.nn import functional

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.messages import Arrays
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.core.stored import AnyArray
from fedproto_app.data.sequences.clients import ClientSequences, LabelledSequences
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.settings import EncoderSettings, Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.flower_strategy import FlowerStrategy
from fedproto_app.strategies.common.learner import Cohort, Context, Learner, Phase
from fedproto_app.strategies.common.strategy import BaseStrategy
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.labelled import ENCODED_AT_ONCE
from fedproto_app.tasks.sequences.task import CohortSequences, SequenceTask
from fedproto_app.tasks.table import make_task
from fedproto_app.tasks.task import AnyTask

# Sampling follows Franceschi et al. 2019, except for the lengths of crops. In their batches, series
# of the same length share a crop length, and series of different lengths each draw their own. Here
# a batch draws two fractions, and each series turns them into lengths between 1 and its own length.
# So crops have the same range of lengths, and batches have little or no padding.
# Shapes: K clients, B references, R negatives of each reference, D width of a vector.

Encode = Callable[[Tensor, Tensor], Tensor]  # series [K, n, T, d], lengths [K, n] → [K, n, D]


class Crops(NamedTuple):
    """Sub-series, each with the index of its series, its first step and its length.

    All three are int64 tensors […, B, 2 + R].
    A row holds the reference, then the positive, then the negatives.
    """

    series: Tensor
    starts: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class ContrastiveBatch:
    """A training step of K clients, with zeros after the end of a crop.

    inputs: the references [K, B, T, d], lengths: [K, B]. candidates: the positive and then the
    negatives of each reference, [K, B, 1 + R, T', d], candidate_lengths: [K, B, 1 + R].
    """

    inputs: Tensor
    lengths: Tensor
    candidates: Tensor
    candidate_lengths: Tensor


def triplet_loss(
    reference: Tensor, positive: Tensor, negatives: Tensor, *, averages: bool = False
) -> Tensor:
    """Return −log σ(z_ref·z_pos) − Σ_r log σ(−z_ref·z_neg,r) (Fed-REACT, eq. 1), averaged over B,
    [K].

    reference, positive: [K, B, D]. negatives: [K, B, R, D]. averages: take the mean over the
    negatives instead of the sum.
    """
    near = (reference * positive).sum(dim=2)  # (K, B)
    far = (negatives @ reference.unsqueeze(3)).squeeze(3)  # (K, B, R, D) x (K, B, D, 1)
    away = functional.logsigmoid(-far)
    away = away.mean(dim=2) if averages else away.sum(dim=2)
    return -(functional.logsigmoid(near) + away).mean(dim=1)


def contrastive_loss(encode: Encode, batch: ContrastiveBatch, *, averages: bool = False) -> Tensor:
    """Return the `triplet_loss` of a batch, [K].

    References are encoded separately, because they are longer and would pad the other crops.
    """
    reference = encode(batch.inputs, batch.lengths)
    compared = encode(batch.candidates.flatten(1, 2), batch.candidate_lengths.flatten(1, 2))
    compared = compared.view(*batch.candidate_lengths.shape, -1)  # (K, B, 1 + R, D)
    return triplet_loss(reference, compared[:, :, 0], compared[:, :, 1:], averages=averages)


def draw_crops(
    lengths: Tensor, steps: int, batch: int, negatives: int, generator: torch.Generator
) -> Crops:
    """Return the crops of a client's training steps, [steps, B, 2 + R] each.

    Every series is the reference equally often, in a new order each time. A negative comes from one
    of the other series, all equally likely, or from the reference's own series if the client has
    only one. lengths: [n] int64, at least 1, on the CPU like the generator.
    """
    count, rows = len(lengths), steps * batch
    orders = torch.rand(-(-rows // count), count, dtype=torch.float64, generator=generator)
    reference = orders.argsort(dim=1).flatten()[:rows].view(steps, batch, 1)
    distances = torch.full((steps, batch, negatives), max(count - 1, 1))
    negative = (reference + 1 + _draw(distances, generator)) % count
    series = torch.cat([reference, reference, negative], dim=2)  # (steps, B, 2 + R)

    full = lengths[series]
    shares = torch.rand(2, steps, 1, 1, dtype=torch.float64, generator=generator)
    cropped = 1 + _integer(shares[0], full)
    longer = _integer(shares[1], full[..., :1] - cropped[..., :1] + 1)
    cropped[..., :1] += longer  # the reference: at least as long as its positive

    starts = _draw(full - cropped + 1, generator)
    inside = _draw(longer + 1, generator)  # the positive's first step within the reference
    starts[..., 1:2] = starts[..., :1] + inside
    return Crops(series, starts, cropped)


def cut(values: Tensor, crops: Crops, longest: Tensor) -> ContrastiveBatch:
    """Return the batch of one step.

    values: series [K, n, T, d], padded on the right. crops: [K, B, 2 + R] each, on the values'
    device. longest: the largest length of the references and of the other crops, [2], on the CPU.
    """
    references, compared = (
        Crops(*(part[..., columns] for part in crops)) for columns in (slice(1), slice(1, None))
    )
    return ContrastiveBatch(
        _cut(values, references, int(longest[0])).squeeze(2),
        references.lengths.squeeze(2),
        _cut(values, compared, int(longest[1])),
        compared.lengths,
    )


def contrastive_batches(
    values: Tensor,
    lengths: Tensor,
    counts: Sequence[int],
    generators: Sequence[torch.Generator],
    *,
    steps: int,
    batch: int,
    negatives: int,
) -> Iterator[ContrastiveBatch]:
    """Yield a cohort's batches of a round: one for each step, with all clients.

    values: [K, n, T, d], lengths: [K, n]. counts: each client's number of real series, which come
    first, [K]. generators: one for each client, which draws its crops. batch, negatives:
    B, R.
    """
    crops_by_client = [
        draw_crops(client_lengths[:count], steps, batch, negatives, generator)
        for client_lengths, count, generator in zip(lengths.cpu(), counts, generators, strict=True)
    ]
    crops = Crops(*(torch.stack(parts) for parts in zip(*crops_by_client, strict=True)))
    # Computed on the CPU, so that no step waits for the values' device.
    references, compared = crops.lengths[..., 0], crops.lengths[..., 1:]
    longest = torch.stack([references.amax(dim=(0, 2)), compared.amax(dim=(0, 2, 3))], dim=1)
    crops = Crops(*(part.to(values.device) for part in crops))
    for step in range(steps):
        yield cut(values, Crops(*(part[:, step] for part in crops)), longest[step])


def _cut(values: Tensor, crops: Crops, longest: int) -> Tensor:
    """Cut series [K, n, T, d] to crops [K, B, m], with zeros after each end: [K, B, m, longest,
    d]."""
    within = torch.arange(longest, device=values.device)
    steps = (crops.starts.unsqueeze(3) + within).clamp(max=values.shape[2] - 1)  # (K, B, m, L)
    padding = within >= crops.lengths.unsqueeze(3)
    clients = torch.arange(len(values), device=values.device).view(-1, 1, 1, 1)
    cropped = values[clients, crops.series.unsqueeze(3), steps]
    return cropped.masked_fill(padding.unsqueeze(4), 0)


def _draw(counts: Tensor, generator: torch.Generator) -> Tensor:
    """Draw an integer 0 … count − 1 for each count."""
    share = torch.rand(counts.shape, dtype=torch.float64, generator=generator)
    return _integer(share, counts)


def _integer(share: Tensor, counts: Tensor) -> Tensor:
    """Map a share in [0, 1) to an integer 0 … count − 1, in parts of equal size."""
    return torch.minimum((share * counts).long(), counts - 1)  # a product may round up to count


class ContrastiveEncoderLearner(Learner[Context, SequenceTask]):
    """The triplet loss (Fed-REACT, eq. 1) on the encoder, by default the causal CNN.

    The encoder is trained on all train sequences, with a label or without.
    """

    needs_representation = True

    section: EncoderSettings

    @classmethod
    def sends(cls, section: object, sizes: Sizes) -> Sequence[Sends]:
        return [model(sizes.encoder)]

    def initial_parameters(self) -> dict[str, Tensor]:
        return self.task.initial_encoder()

    def phases(self) -> Sequence[Phase]:
        return [Phase("contrastive", (self.task.encoder,), 1)]

    def begin(self, cohort: Cohort) -> None:
        samples, steps = cohort.samples, [self.section.steps] * len(cohort.names)
        cohort.samples = replace(
            samples,
            batch_counts=steps,
            train_samples=samples.trainable,
            unlabelled=[0] * len(steps),
        )

    def batches(
        self, samples: CohortSequences, generators: Sequence[torch.Generator]
    ) -> Iterator[ContrastiveBatch]:
        return contrastive_batches(
            samples.values,
            samples.lengths,
            samples.train_samples,
            generators,
            steps=self.section.steps,
            batch=self.section.batch_size,
            negatives=self.section.negatives,
        )

    def loss(
        self, parameters: Mapping[str, Tensor], batch: ContrastiveBatch, context: Context
    ) -> dict[str, Tensor]:
        averages = self.section.negative_terms == "mean"
        encode = partial(self.task.encode, parameters)
        return {"contrastive": contrastive_loss(encode, batch, averages=averages)}


class EncoderStrategy(FedAvgStrategy):
    """The mean of the clients' encoders."""

    first_round = 1


class PretrainedStrategy(FlowerStrategy):
    """The rounds of the encoder's phase, and then the method's rounds."""

    def __init__(self, settings: Settings, federation: Federation, method: BaseStrategy) -> None:
        rounds = settings.pretraining_rounds
        super().__init__(method, [EncoderStrategy(settings, federation)] * rounds if rounds else ())
        if rounds:
            self._initial = self.first[0].initial_arrays()
        else:
            task = make_task(settings, federation.shape)
            assert isinstance(task, SequenceTask)
            encoder_settings = settings.encoder
            drawn = {name: value.numpy() for name, value in task.initial_encoder().items()}
            self._initial = read_encoder(encoder_settings, task) if encoder_settings.path else drawn

    def initial_arrays(self) -> Arrays:
        return self._initial


def read_encoder(settings: EncoderSettings, task: SequenceTask) -> Arrays:
    """Return the trained encoder that the settings name.

    Raise `SettingsError` if the file is no encoder or does not fit the settings and the data.
    """
    file, where = settings.file, f"encoder.path = {settings.path!r}"
    try:
        encoder: Arrays = load_file(file)
    except FileNotFoundError:
        raise SettingsError(f"{where}: there is no {file}") from None
    # TypeError and AttributeError: NumPy has no type for the numbers.
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"{where}: {file} cannot be read as a safetensors file of float32: {error}"
        ) from None
    expected = {name: value.numpy() for name, value in task.initial_encoder().items()}
    for name in sorted(expected.keys() | encoder.keys()):
        have, need = _kind(encoder.get(name)), _kind(expected.get(name))
        if have != need:
            raise SettingsError(
                f"{where}: {name} is {have}; [encoder] and data with {task.shape.inputs[0]} "
                f"dimensions need {need}"
            )
        if not np.isfinite(encoder[name]).all():
            raise SettingsError(f"{where}: {name} holds NaN or infinite values")
    return encoder


def _kind(array: AnyArray | None) -> str:
    return "no array" if array is None else f"{array.dtype} {list(array.shape)}"


# After the phase, a node represents its clients' sequences by vectors of the frozen encoder. The
# vectors are computed once, stored on the node's disk and never leave it. A vector is stored as a
# sequence of one step, so the type of the clients stays the same.


class VectorStore(Protocol):
    """A node's store of its encoder and of the vectors of its clients' sequences."""

    def write_first_phase(self, tensors: Mapping[str, Tensor]) -> None: ...

    def read_first_phase(self) -> dict[str, Tensor]: ...

    def write_vectors(self, client: str, digest: str, vectors: Tensor) -> None: ...

    def read_vectors(self, client: str, digest: str) -> Tensor | None: ...


def represented(
    shard: Shard, names: list[str], received: Arrays, task: AnyTask, store: VectorStore
) -> Shard:
    """Return the shard with these clients only, and with vectors in place of their sequences.

    received: the guidance's arrays. If they lack the encoder, the stored encoder is used. Clients
    whose vectors are not all finite are refused. Raise `DataError` if this node has no encoder yet.
    """
    assert isinstance(task, SequenceTask)
    encoder = {n: torch.from_numpy(a) for n, a in received.items() if n.startswith(task.encoder)}
    if encoder:
        store.write_first_phase(encoder)
    else:
        encoder = store.read_first_phase()
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
            refused[name] = "the encoder turns its sequences into NaN or infinite values"
    shape = DataShape((task.representation_dim,), shard.shape.classes)
    return Shard(clients, refused, shape)


def _vectors(
    client: ClientSequences,
    encoder: Mapping[str, Tensor],
    digest: str,
    task: SequenceTask,
    store: VectorStore,
) -> Tensor:
    """Return the vectors of the client's train, validation and test sequences, [n, D]. Store them
    if all are finite."""
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
    """Return the vectors [n, D] of sequences [T_i, d]. encoder: with a client axis of length 1."""
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
