"""Write and read clients' states of one number each."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from fedproto_app.node.store import ClientRecord, ClientStore


def state(value: float, clients: int = 1) -> dict[str, Tensor]:
    """Return states of so many clients, with a moment that only training needs."""
    return {
        "parameters/w": torch.full((clients, 2), float(value)),
        "first/w": torch.full((clients, 2), -float(value)),
    }


def write_one(store: ClientStore, client: str, server_round: int, value: float) -> None:
    """Carry out an order that writes one client's state."""
    store.write_states([client], server_round, state(value))
    store.settle()


def shared(value: float) -> dict[str, Tensor]:
    """Return a global model of one number."""
    return {"parameters/s": torch.full((1,), float(value))}


def train_rounds(store: ClientStore, rounds: Iterable[int], kept: Mapping[int, float]) -> None:
    """Carry out orders of client a, whose states and global models are the rounds' numbers.

    kept: the validation errors of the rounds whose model is kept.
    """
    for server_round in rounds:
        store.begin(server_round)
        store.write_states(["a"], server_round, state(server_round))
        store.write_shared(server_round, shared(server_round))
        if server_round in kept:
            store.keep("a", ClientRecord(server_round, {"mse": kept[server_round]}))
        store.settle()


def kept_numbers(store: ClientStore, client: str = "a") -> tuple[float, float]:
    """Return the numbers of the client's kept model: of its own part, and of the global model."""
    model = store.read_kept(client)
    assert model is not None
    [personal] = set(model["parameters/w"].tolist()) if "parameters/w" in model else [0.0]
    return personal, float(model["parameters/s"])


def state_of(store: ClientStore, client: str, upto: int) -> float | None:
    """Return the number of a client's state, or None."""
    stored = store.read_states([client], upto)
    if not stored:
        return None
    [(places, tensors)] = stored
    assert places == [0]
    numbers = {
        *tensors["parameters/w"].flatten().tolist(),
        *(-tensors["first/w"]).flatten().tolist(),
    }
    [number] = numbers
    return float(number)


def rounds_in(folder: Path, table: str, client: str = "") -> list[int]:
    """Return the rounds in a table of a node's state file, of one client or of all."""
    chosen = " WHERE client = ?" if client else ""
    query = f"SELECT DISTINCT round FROM {table}{chosen} ORDER BY round"
    return [row[0] for row in changed(folder, query, *[client][: len(client)])]


def changed(folder: Path, statement: str, *values: object) -> list[tuple[int, ...]]:
    """Return SQLite's rows for a statement on a node's state file."""
    with closing(sqlite3.connect(folder / "state.sqlite")) as database, database:
        return database.execute(statement, values).fetchall()


def copied_with(client: str, state: Path, to: Path) -> None:
    """Copy a node's folder, with only one client's records."""
    shutil.copytree(state, to)
    changed(to, "DELETE FROM records WHERE client != ?", client)
