"""Phase 1, client half (Fed-REACT, Algorithm 1): learn the shared encoder without labels.

Franceschi, Dieuleveut and Jaggi (NeurIPS 2019): a part of a series should be similar to a part of
that part, and dissimilar to parts of other series. Clients send only the encoder; the server half
is FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedproto_app.core.messages import Guidance
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.settings import EncoderSettings
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Context, Learner, Phase
from fedproto_app.tasks.sequences.samples import CohortSequences
from fedproto_app.tasks.sequences.task import SequenceTask

# Sampling follows Franceschi et al. 2019. In their batches, series of the same length share a crop
# length, and series of different lengths each draw a length. Here a batch draws two shares between
# 0 and 1, and each series turns them into lengths between 1 and the length of the series. So crops
# have the same range of lengths, and batches have little or no padding.
# Shapes: K clients, B references, R negatives of each, D width of a vector.

Encode = Callable[[Tensor, Tensor], Tensor]  # series [K, n, T, d], lengths [K, n] → [K, n, D]


class Crops(NamedTuple):
    """Sub-series: indices of their series, first steps, lengths; each […, B, 2 + R] int64.

    A row holds the reference, then the positive, then the negatives.
    """

    series: Tensor
    starts: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class ContrastiveBatch:
    """A training step of K clients; zeros after the end of a crop.

    inputs: the references [K, B, T, d], lengths: [K, B]. others: the positive and then the
    negatives of each reference, [K, B, 1 + R, T', d], other_lengths: [K, B, 1 + R].
    """

    inputs: Tensor
    lengths: Tensor
    others: Tensor
    other_lengths: Tensor


def triplet_loss(
    reference: Tensor, positive: Tensor, negatives: Tensor, *, averages: bool = False
) -> Tensor:
    """Return −log σ(z_ref·z_pos) − Σ_r log σ(−z_ref·z_neg,r) (Fed-REACT, eq. 1), averaged over B:
    [K].

    reference, positive: [K, B, D]; negatives: [K, B, R, D]. averages: take the mean over the
    negatives instead of the sum.
    """
    near = (reference * positive).sum(dim=2)  # (K, B)
    far = (negatives @ reference.unsqueeze(3)).squeeze(3)  # (K, B, R, D) x (K, B, D, 1)
    away = functional.logsigmoid(-far)
    away = away.mean(dim=2) if averages else away.sum(dim=2)
    return -(functional.logsigmoid(near) + away).mean(dim=1)


def contrastive_loss(encode: Encode, batch: ContrastiveBatch, *, averages: bool = False) -> Tensor:
    """Return the `triplet_loss` of a batch, [K].

    References are encoded separately: they are longer and would add padding to the other crops.
    """
    reference = encode(batch.inputs, batch.lengths)
    compared = encode(batch.others.flatten(1, 2), batch.other_lengths.flatten(1, 2))
    compared = compared.view(*batch.other_lengths.shape, -1)  # (K, B, 1 + R, D)
    return triplet_loss(reference, compared[:, :, 0], compared[:, :, 1:], averages=averages)


def draw_crops(
    lengths: Tensor, steps: int, batch: int, negatives: int, generator: torch.Generator
) -> Crops:
    """Return the crops of a client's training steps, [steps, B, 2 + R] each.

    Every series gives the reference equally often, in a new order each time. A negative comes from
    another series, each with the same probability, or from the same series if the client has only
    one. lengths: [n] int64, at least 1, on the CPU like the generator.
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
    """Return the batch of a step.

    values: series [K, n, T, d], padded on the right; crops: [K, B, 2 + R] each, on the values'
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

    values: [K, n, T, d], lengths: [K, n]; counts: the number of real series of each client, which
    come first, [K]. generators: one for each client, which determines its crops. batch, negatives:
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

    It learns from all train sequences, with a label or without.
    """

    needs_representation = True

    section: EncoderSettings

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
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

    def context(self, guidance: Guidance, cohort: Cohort) -> Context:
        return Context()

    def loss(
        self, parameters: Mapping[str, Tensor], batch: ContrastiveBatch, context: Context
    ) -> dict[str, Tensor]:
        averages = self.section.negative_terms == "mean"
        encode = partial(self.task.encode, parameters)
        return {"contrastive": contrastive_loss(encode, batch, averages=averages)}
