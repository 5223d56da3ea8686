"""Clients' states of one number each, into a store and out of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from torch import Tensor

from fedproto_app.node.store import ClientStore


def state(value: float, clients: int = 1) -> dict[str, Tensor]:
    """Of so many clients, with a moment that training alone needs."""
    return {
        "parameters/w": torch.full((clients, 2), float(value)),
        "first/w": torch.full((clients, 2), -float(value)),
    }


def write_one(store: ClientStore, client: str, server_round: int, value: float) -> None:
    """Write one client's state."""
    store.write_states([client], server_round, state(value))


def state_of(store: ClientStore, client: str, upto: int) -> float | None:
    """The number of a client's state, None if there is none."""
    found = store.read_states([client], upto)
    if not found:
        return None
    [(places, tensors)] = found
    assert places == [0]
    numbers = {
        *tensors["parameters/w"].flatten().tolist(),
        *(-tensors["first/w"]).flatten().tolist(),
    }
    [number] = numbers
    return float(number)


def copied_with(client: str, state: Path, to: Path) -> None:
    """Copy a node's folder, with the record of one client alone."""
    shutil.copytree(state, to)
    for file in to.glob("kept-*.jsonl"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(one for one in lines if json.loads(one)["client"] == client))
