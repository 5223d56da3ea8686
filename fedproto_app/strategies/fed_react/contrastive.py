"""Contrastive learning of an encoder without labels: the loss (Fed-REACT, eq. 1), its sampling.

The sampling is that of Franceschi et al. 2019. Their series of one length share a crop length in
each batch; those of several lengths have one each. Here a batch draws two shares between 0 and 1,
and each series turns them into lengths between 1 and its own length. So crops have the same range
of lengths as theirs. Batches of series of one length have no padding, others have little.
Shapes: K clients, B references, R negatives of each, D width of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Encode = Callable[[Tensor, Tensor], Tensor]  # series [K, n, T, d], lengths [K, n] → [K, n, D]


class Crops(NamedTuple):
    """Sub-series: numbers of their series, first steps, lengths; each […, B, 2 + R] int64.

    The first of each row is the reference, the second the positive, the others the negatives.
    """

    series: Tensor
    starts: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class ContrastiveBatch:
    """One training step of K clients; zeros after the end of a crop.

    inputs: the references [K, B, T, d], lengths: [K, B]. others: of each reference the positive,
    then the negatives, [K, B, 1 + R, T', d], other_lengths: [K, B, 1 + R].
    """

    inputs: Tensor
    lengths: Tensor
    others: Tensor
    other_lengths: Tensor


def triplet_loss(
    reference: Tensor, positive: Tensor, negatives: Tensor, *, averages: bool = False
) -> Tensor:
    """−log σ(z_ref·z_pos) − Σ_r log σ(−z_ref·z_neg,r) (Fed-REACT, eq. 1), its mean over B: [K].

    reference, positive: [K, B, D]; negatives: [K, B, R, D]. averages: over the negatives instead of
    the sum.
    """
    near = (reference * positive).sum(dim=2)  # (K, B)
    far = (negatives @ reference.unsqueeze(3)).squeeze(3)  # (K, B, R, D) x (K, B, D, 1)
    away = functional.logsigmoid(-far)
    away = away.mean(dim=2) if averages else away.sum(dim=2)
    return -(functional.logsigmoid(near) + away).mean(dim=1)


def contrastive_loss(encode: Encode, batch: ContrastiveBatch, *, averages: bool = False) -> Tensor:
    """`triplet_loss` of a batch, [K].

    References are encoded apart: they are longer and would lengthen all others.
    """
    reference = encode(batch.inputs, batch.lengths)
    others = encode(batch.others.flatten(1, 2), batch.other_lengths.flatten(1, 2))
    others = others.view(*batch.other_lengths.shape, -1)  # (K, B, 1 + R, D)
    return triplet_loss(reference, others[:, :, 0], others[:, :, 1:], averages=averages)


def draw_crops(
    lengths: Tensor, steps: int, batch: int, negatives: int, generator: torch.Generator
) -> Crops:
    """The crops of one client's training steps, [steps, B, 2 + R] each.

    Every series is the reference's equally often, in a new order each time. A negative comes from
    another series, each of them as likely, or from the same one if there is no other.
    lengths: [n] int64, at least 1, on the CPU like the generator.
    """
    count, rows = len(lengths), steps * batch
    orders = torch.rand(-(-rows // count), count, dtype=torch.float64, generator=generator)
    own = orders.argsort(dim=1).flatten()[:rows].view(steps, batch, 1)
    away = torch.full((steps, batch, negatives), max(count - 1, 1))
    other = (own + 1 + _draw(away, generator)) % count
    series = torch.cat([own, own, other], dim=2)  # (steps, B, 2 + R)

    whole = lengths[series]
    shares = torch.rand(2, steps, 1, 1, dtype=torch.float64, generator=generator)
    cropped = 1 + _integer(shares[0], whole)
    longer = _integer(shares[1], whole[..., :1] - cropped[..., :1] + 1)
    cropped[..., :1] += longer  # the reference: at least as long as its positive

    starts = _draw(whole - cropped + 1, generator)
    inside = _draw(longer + 1, generator)  # the positive's first step within the reference
    starts[..., 1:2] = starts[..., :1] + inside
    return Crops(series, starts, cropped)


def cut(values: Tensor, crops: Crops, longest: Tensor) -> ContrastiveBatch:
    """The batch of one step.

    values: [K, n, T, d] series, padded on the right; crops: [K, B, 2 + R] each, where the values
    are. longest: of the references and of the other crops, [2], on the CPU.
    """
    first, rest = (
        Crops(*(part[..., columns] for part in crops)) for columns in (slice(1), slice(1, None))
    )
    inputs = _cut(values, first, int(longest[0])).squeeze(2)
    others = _cut(values, rest, int(longest[1]))
    return ContrastiveBatch(inputs, first.lengths.squeeze(2), others, rest.lengths)


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
    """A round of a cohort: one batch a step, each of all clients.

    values: [K, n, T, d], lengths: [K, n]; counts: [K], how many series of a client, the first ones,
    are real. generators: one a client, which alone decides about its crops. batch, negatives: B, R.
    """
    each = [
        draw_crops(own[:count], steps, batch, negatives, generator)
        for own, count, generator in zip(lengths.cpu(), counts, generators, strict=True)
    ]
    crops = Crops(*(torch.stack(parts) for parts in zip(*each, strict=True)))
    # Found before all moves to the values' device, so that no step waits for that.
    references, others = crops.lengths[..., 0], crops.lengths[..., 1:]
    longest = torch.stack([references.amax(dim=(0, 2)), others.amax(dim=(0, 2, 3))], dim=1)
    there = Crops(*(part.to(values.device) for part in crops))
    for step in range(steps):
        yield cut(values, Crops(*(part[:, step] for part in there)), longest[step])


def _cut(values: Tensor, crops: Crops, longest: int) -> Tensor:
    """[K, n, T, d] and [K, B, m] → [K, B, m, longest, d], zeros after each one's end."""
    within = torch.arange(longest, device=values.device)
    steps = (crops.starts.unsqueeze(3) + within).clamp(max=values.shape[2] - 1)  # (K, B, m, L)
    padding = within >= crops.lengths.unsqueeze(3)
    clients = torch.arange(len(values), device=values.device).view(-1, 1, 1, 1)
    cropped = values[clients, crops.series.unsqueeze(3), steps]
    return cropped.masked_fill(padding.unsqueeze(4), 0)


def _draw(counts: Tensor, generator: torch.Generator) -> Tensor:
    """An integer 0 … count − 1 for each count."""
    share = torch.rand(counts.shape, dtype=torch.float64, generator=generator)
    return _integer(share, counts)


def _integer(share: Tensor, counts: Tensor) -> Tensor:
    """The integer 0 … count − 1 at this share of the way, each one's part being equal."""
    return torch.minimum((share * counts).long(), counts - 1)  # a product may round up to count
