"""State that waits in memory: to its reader no other than on the disk, and on the disk in time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedproto_app.node.memory_store import MemoryStore
from fedproto_app.node.store import ClientRecord, ClientStore

CLIENTS = ("a", "b", "c")
PLENTY = 10**9


def state(value: float) -> dict[str, torch.Tensor]:
    return {"parameters/w": torch.full((2,), value)}


def shared(value: float) -> dict[str, torch.Tensor]:
    return {"parameters/s": torch.full((1,), value)}


def told(store: ClientStore, upto: int) -> list[object]:
    """All that a reader learns of the clients."""
    found: list[object] = []
    for client in CLIENTS:
        newest = store.read_state(client, upto)
        found += [newest and newest["parameters/w"].tolist(), store.record(client)]
    return found


def kept(store: ClientStore) -> dict[str, dict[str, list[float]]]:
    models = {client: store.read_kept(client) or {} for client in store.kept_clients()}
    return {c: {n: v.tolist() for n, v in model.items()} for c, model in models.items()}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("limit", [PLENTY, 20], ids=["plenty", "little"])
def test_it_reads_as_the_disk_does_and_writes_the_same(
    tmp_path: Path, seed: int, limit: int
) -> None:
    """Rounds in which some clients train, some models are kept, and some end with a flush."""
    draws = np.random.default_rng(seed)
    disk, memory = ClientStore(tmp_path / "disk"), MemoryStore(tmp_path / "memory", limit)
    for server_round in range(1, 15):
        for store in (disk, memory):
            store.write_shared(server_round, shared(server_round))
        for client in CLIENTS:
            trains, keeps = draws.random(2) < (0.7, 0.4)
            for store in (disk, memory):
                if trains:
                    store.write_state(client, server_round, state(server_round))
                store.record(client, before=server_round)
                if keeps:
                    store.keep(client, ClientRecord(server_round, {"mse": 1 / server_round}))
        assert told(memory, server_round) == told(disk, server_round)
        if draws.random() < 0.3:
            memory.flush()
            again = ClientStore(tmp_path / "memory")
            assert told(again, server_round) == told(disk, server_round)
            assert kept(again) == kept(disk)


def test_nothing_is_written_before_it_is_told_to(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path, PLENTY)
    store.write_shared(1, shared(1))
    store.write_state("a", 1, state(1))
    store.keep("a", ClientRecord(1, {"mse": 1.0}))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    store.flush()
    names = {path.name for path in (tmp_path / "c-a").iterdir()}
    assert names == {"state-000001.safetensors", "shared-000001.safetensors", "kept-000001.json"}


def test_later_training_does_not_change_what_waits(tmp_path: Path) -> None:
    store, tensors = MemoryStore(tmp_path, PLENTY), state(1)
    store.write_state("a", 1, tensors)
    tensors["parameters/w"] += 1
    found = store.read_state("a", upto=1)
    assert found is not None
    assert found["parameters/w"].tolist() == [1, 1]


def test_a_server_that_goes_back_finds_the_states_of_its_checkpoint(tmp_path: Path) -> None:
    """Flushed in rounds 2 and 4; the run ended before the checkpoint of round 4 was written."""
    store = MemoryStore(tmp_path, PLENTY)
    for server_round in range(1, 6):
        store.write_state("a", server_round, state(server_round))
        store.keep("a", ClientRecord(server_round, {"mse": 1 / server_round}))
        if server_round in (2, 4):
            store.flush()
    again = MemoryStore(tmp_path, PLENTY)
    found = again.read_state("a", upto=2)
    assert found is not None
    assert found["parameters/w"].tolist() == [2, 2]
    assert again.record("a", before=3) == ClientRecord(2, {"mse": 0.5})
