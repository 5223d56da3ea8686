"""FedAvg as a batched torch loop without a framework: what the app's cohorts do, and nothing else.

    torchrun --nproc-per-node 2 -m benchmarks.peers.batched_loop CLIENTS.npz ROUNDS LINES.jsonl

Each process trains its share of the clients, a cohort at once: every parameter has a client axis in
front. The GRUs are written with bmm, and Adam is torch's fused one. The difference from the app is
the price of its messages, records, checks and general code.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor

from benchmarks.peers.forecaster import (
    CLOSE,
    HIDDEN,
    LEARNING_RATE,
    Batch,
    Forecaster,
    run_rounds,
)

SHAPES = {name: parameter.shape for name, parameter in Forecaster().named_parameters()}
COHORT = 16  # of 2 to 50 clients at once, 12 to 16 took the least processor time on a core


def train_share(shared: Tensor, clients: list[list[Batch]]) -> Tensor:
    """Return the sum of the clients' models after an epoch, followed by the sum of their losses."""
    total = torch.zeros(len(shared) + 1)
    for _, alike in groupby(sorted(clients, key=len), key=len):
        group = list(alike)
        for first in range(0, len(group), COHORT):
            total += train_cohort(shared, group[first : first + COHORT])
    return total


def train_cohort(shared: Tensor, clients: list[list[Batch]]) -> Tensor:
    """Train clients with equally many batches at once. Returns the same sums as `train_share`."""
    parts = torch.split(shared, [shape.numel() for shape in SHAPES.values()])
    models = {
        name: part.view(shape).expand(len(clients), *shape).clone().requires_grad_()
        for (name, shape), part in zip(SHAPES.items(), parts, strict=True)
    }
    optimizer = torch.optim.Adam(models.values(), lr=LEARNING_RATE, fused=True)
    orders = torch.stack([torch.randperm(len(batches)) for batches in clients], dim=1)
    losses = torch.zeros(())
    for numbers in orders.tolist():
        drawn = [batches[number] for batches, number in zip(clients, numbers, strict=True)]
        inputs, targets, present = (torch.stack(tensors) for tensors in zip(*drawn, strict=True))
        optimizer.zero_grad()
        squared = (forecasts(models, inputs) - targets).square() * present
        loss = (squared.sum(dim=(1, 2)) / present.sum(dim=(1, 2)).clamp(min=1)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses += loss.detach()
    sums = [model.detach().sum(dim=0).flatten() for model in models.values()]
    return torch.cat([*sums, losses.view(1) / len(orders)])


def forecasts(models: dict[str, Tensor], inputs: Tensor) -> Tensor:
    """Return the clients' forecasts [K, B, 1] for their windows [K, B, T]."""
    close = last_state(models, "close.", inputs[:, :, :CLOSE])
    periodic = last_state(models, "periodic.", inputs[:, :, CLOSE:])
    weight, bias = models["decoder.weight"], models["decoder.bias"]
    return torch.baddbmm(bias[:, None], torch.cat([close, periodic], dim=2), weight.mT)


def last_state(models: dict[str, Tensor], prefix: str, window: Tensor) -> Tensor:
    """Return the GRUs' states [K, B, H] after the windows [K, B, T]."""
    input_weight, state_weight = (models[f"{prefix}weight_{end}_l0"].mT for end in ("ih", "hh"))
    input_bias, state_bias = (models[f"{prefix}bias_{end}_l0"][:, None] for end in ("ih", "hh"))
    state = window.new_zeros(*window.shape[:2], HIDDEN)
    for value in torch.split(window, 1, dim=2):
        from_input = torch.baddbmm(input_bias, value, input_weight)
        from_state = torch.baddbmm(state_bias, state, state_weight)
        gates = torch.sigmoid(from_input[..., : 2 * HIDDEN] + from_state[..., : 2 * HIDDEN])
        reset, update = gates.chunk(2, dim=2)
        new = torch.tanh(from_input[..., 2 * HIDDEN :] + reset * from_state[..., 2 * HIDDEN :])
        state = torch.lerp(new, state, update)
    return state


if __name__ == "__main__":
    run_rounds(train_share)
