"""State that waits in memory: it reads like state on the disk, and is written in time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedproto_app.node.store import ClientRecord, ClientStore
from tests.node.stored import changed, kept_numbers, shared, state, state_of

PLENTY = 10**9


def late_store(folder: Path, limit: int = PLENTY, clients: int = 0) -> ClientStore:
    return ClientStore(folder, limit, lasting=True, clients=clients)


def test_nothing_is_written_before_it_is_told_to(tmp_path: Path) -> None:
    store = late_store(tmp_path)
    store.begin(1)
    store.write_shared(1, shared(1))
    store.write_states(["a", "b"], 1, state(1, clients=2))
    store.keep("a", ClientRecord(1, {"mse": 1.0}))
    store.settle()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    store.flush()
    assert [path.name for path in tmp_path.iterdir()] == ["state.sqlite"]
    assert state_of(ClientStore(tmp_path), "a", upto=1) == 1


def test_later_training_does_not_change_what_waits(tmp_path: Path) -> None:
    store, tensors = late_store(tmp_path), state(1)
    store.write_states(["a"], 1, tensors)
    for value in tensors.values():
        value += 1
    assert state_of(store, "a", upto=1) == 1


def test_states_that_do_not_all_fit_go_to_the_disk_at_once(tmp_path: Path) -> None:
    """Two clients of four take half of the memory allowed for three."""
    size = sum(value.nbytes for value in state(1, clients=3).values())
    store = late_store(tmp_path, size, clients=4)
    store.begin(1)
    store.write_states(["a", "b"], 1, state(1, clients=2))
    assert state_of(ClientStore(tmp_path), "b", upto=1) == state_of(store, "b", upto=1) == 1

    all_fit = late_store(tmp_path / "other", size, clients=3)
    all_fit.write_states(["a", "b"], 1, state(1, clients=2))
    assert state_of(ClientStore(tmp_path / "other"), "b", upto=1) is None


# --- against a plain memory of all rounds -----------------------------------------------------

CLIENTS = [f"client {number}" for number in range(7)]
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 8))]


class Plain:
    """A plain model of the store: every state and record of every round, by client."""

    def __init__(self) -> None:
        self.states: dict[str, dict[int, float]] = {name: {} for name in CLIENTS}
        self.kept_values: dict[str, dict[int, float]] = {
            name: {} for name in CLIENTS
        }  # state by kept round

    def go_back(self, upto: int) -> None:
        for table in (self.states, self.kept_values):
            for values in table.values():
                for server_round in [r for r in values if r > upto]:
                    del values[server_round]

    def state(self, client: str, upto: int) -> float | None:
        values = self.states[client]
        return (
            values[max(r for r in values if r <= upto)] if min(values, default=99) <= upto else None
        )


def a_round(store: ClientStore, plain: Plain, server_round: int, seed: int) -> None:
    """Train random cohorts, let some clients fail, and keep some of the trained models.

    A round that is done anew is as it was, as in a run.
    """
    draws = np.random.default_rng([seed, server_round])
    store.begin(server_round)
    store.write_shared(server_round, shared(server_round))
    training = [CLIENTS[index] for index in draws.permutation(len(CLIENTS))[: draws.integers(2, 8)]]
    size = int(draws.integers(1, 5))
    for first in range(0, len(training), size):
        cohort = training[first : first + size]
        numbers = torch.tensor(draws.integers(1, 1000, len(cohort)), dtype=torch.float32)
        rows = numbers[:, None].expand(-1, 2).contiguous()
        store.write_states(cohort, server_round, {"parameters/w": rows, "first/w": -rows})
        for client, value in zip(cohort, numbers.tolist(), strict=True):
            plain.states[client][server_round] = value
    for client in CLIENTS:
        store.record(client, before=server_round)
        if plain.states[client] and draws.random() < 0.3:
            store.keep(client, ClientRecord(server_round, {"mse": 1 / server_round}))
            value = plain.state(client, server_round)
            assert value is not None
            plain.kept_values[client][server_round] = value
    store.settle()


def require_equal(store: ClientStore, plain: Plain, upto: int) -> None:
    """Compare all state that a run reads when it continues after this round."""
    for client in CLIENTS:
        assert state_of(store, client, upto) == plain.state(client, upto)
        kept_values = {r: value for r, value in plain.kept_values[client].items() if r <= upto}
        newest = max(kept_values, default=0)
        assert store.record(client, before=upto + 1).kept_round == newest
        if newest:
            assert kept_numbers(store, client) == (kept_values[newest], newest)
        else:
            assert store.read_kept(client) is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("limit", [PLENTY, 0], ids=["order", "cohort"])
def test_the_disk_knows_what_a_plain_memory_knows(tmp_path: Path, seed: int, limit: int) -> None:
    """One store per order, as at a site. A killed server goes back by one round or two."""
    draws, plain = np.random.default_rng(seed), Plain()
    checkpoints, server_round = [0], 0
    for _ in range(40):
        server_round += 1
        a_round(ClientStore(tmp_path, limit), plain, server_round, seed)
        if draws.random() < 0.7:
            checkpoints = [*checkpoints[-1:], server_round]
            continue
        server_round = checkpoints[-min(len(checkpoints), int(draws.integers(1, 3)))]
        checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint <= server_round]
        plain.go_back(server_round)
        store = ClientStore(tmp_path)
        require_equal(store, plain, server_round)
        store.settle()
    require_equal(ClientStore(tmp_path), plain, server_round)
    [(states,)] = changed(tmp_path, "SELECT count(*) FROM training")
    [(models,)] = changed(tmp_path, "SELECT count(*) FROM models")
    assert states <= len(CLIENTS) * 4  # those that the server may resume from
    assert models <= len(CLIENTS) * (4 + 3)  # and the kept ones


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("limit", [PLENTY, 150, 0], ids=["plenty", "little", "none"])
def test_memory_knows_what_a_plain_memory_knows(tmp_path: Path, seed: int, limit: int) -> None:
    """Flush before a checkpoint. After a kill, resume from the newest checkpoint or the last."""
    draws, plain = np.random.default_rng(seed), Plain()
    store = late_store(tmp_path, limit, len(CLIENTS) if limit == 0 else 0)
    checkpoints, server_round = [0], 0
    for _ in range(40):
        server_round += 1
        a_round(store, plain, server_round, seed)
        if draws.random() < 0.3:
            store.flush()
            if draws.random() < 0.8:  # else it is killed before the checkpoint
                checkpoints = [*checkpoints[-1:], server_round]
                continue
        elif draws.random() < 0.85:
            continue
        server_round = checkpoints[-min(len(checkpoints), int(draws.integers(1, 3)))]
        checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint <= server_round]
        plain.go_back(server_round)
        store = late_store(tmp_path, limit)
        store.begin(server_round + 1)
        require_equal(store, plain, server_round)
