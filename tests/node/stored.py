"""Clients' states of one number each, into a store and out of it."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from fedproto_app.node.store import ClientStore


def state(value: float, clients: int = 1) -> dict[str, Tensor]:
    """States of so many clients, with a moment that training alone needs."""
    return {
        "parameters/w": torch.full((clients, 2), float(value)),
        "first/w": torch.full((clients, 2), -float(value)),
    }


def write_one(store: ClientStore, client: str, server_round: int, value: float) -> None:
    """An order in which one client's state is written."""
    store.write_states([client], server_round, state(value))
    store.settle()


def state_of(store: ClientStore, client: str, upto: int) -> float | None:
    """The number of a client's state, None if there is none."""
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
    """The rounds in a table of a node's state file, of one client or of all."""
    chosen = " WHERE client = ?" if client else ""
    query = f"SELECT DISTINCT round FROM {table}{chosen} ORDER BY round"
    return [row[0] for row in changed(folder, query, *[client][: len(client)])]


def changed(folder: Path, statement: str, *values: object) -> list[tuple[int, ...]]:
    """What SQLite answers to a statement about a node's state file."""
    with closing(sqlite3.connect(folder / "state.sqlite")) as database, database:
        return database.execute(statement, values).fetchall()


def copied_with(client: str, state: Path, to: Path) -> None:
    """Copy a node's folder, with the record of one client alone."""
    shutil.copytree(state, to)
    changed(to, "DELETE FROM records WHERE client != ?", client)
