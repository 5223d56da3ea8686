"""Sequences as vectors: what a node keeps on its disk, and when it makes them again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.messages import Arrays, Order
from fedproto_app.data.sequences.clients import ClientSequences
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.node.shares import shares_of
from fedproto_app.node.store import ClientStore
from fedproto_app.node.trainer import Node
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.strategies.fed_react import encoder as module
from fedproto_app.strategies.fed_react.encoder import represent_sequences, represented
from tests.helpers.tiny_sequences import (
    CLASSES,
    DIMENSIONS,
    ENCODER_ROUNDS,
    WIDTH,
    encoder_arrays,
    sequence_client,
    sequence_task,
    sequences_of,
    task_of,
)

PARTS = ("train", "validation", "test")
A = sequence_client("a", [0, 1, 2, 0], [9, 4, 1], tested=[1, 2])
B = sequence_client("b", [2, 1], [3])
HEADS = {"heads": np.zeros((1, 3, WIDTH + 1), dtype=np.float32)}


class SmallNode:
    """A node with clients a, b and c, of which c has no test sequence."""

    def __init__(self, folder: Path) -> None:
        self.task, self.folder, self.store = sequence_task("fed-react"), folder, ClientStore(folder)
        self.encoder = encoder_arrays(self.task)
        self.use(A, B)

    def use(self, *clients: ClientSequences) -> None:
        """Replace the clients."""
        by_name = {client.name: client for client in clients}
        shape = DataShape((DIMENSIONS,), CLASSES)
        self.shard = Shard(by_name, {"c": "no test sequence"}, shape)

    def represented(self, names: str, arrays: Arrays | None = None) -> Shard:
        """The shard of vectors of these clients, by the encoder or by these arrays."""
        encoder = self.encoder if arrays is None else arrays
        return represented(self.shard, [*names], encoder, self.task, self.store)

    def alone(self, client: ClientSequences) -> NDArray[np.float32]:
        """The vectors of a client's sequences, encoded one by one."""
        stacked = {n: torch.from_numpy(value).unsqueeze(0) for n, value in self.encoder.items()}
        encoded = [
            self.task.encode(stacked, torch.from_numpy(v)[None, None], torch.tensor([[len(v)]]))[0]
            for part in PARTS
            for v in getattr(client, part).values
        ]
        return torch.cat(encoded).numpy()


@pytest.fixture
def node(tmp_path: Path) -> SmallNode:
    return SmallNode(tmp_path)


def vectors_of(shard: Shard, name: str) -> NDArray[np.float32]:
    """[n, D] of all parts of a client."""
    client = shard.clients[name]
    return np.concatenate([vector for part in PARTS for vector in getattr(client, part).values])


def assert_near(ours: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def encoded_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of sequences that were encoded, a number a client."""
    counts: list[int] = []

    def counting(sequences: list[NDArray[np.float32]], *arguments: object) -> torch.Tensor:
        counts.append(len(sequences))
        return represent_sequences(sequences, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "represent_sequences", counting)
    return counts


def test_a_vector_is_what_the_encoder_makes_of_the_sequence_alone(node: SmallNode) -> None:
    shard_of_vectors = node.represented("ab")
    for before in (A, B):
        after: Any = shard_of_vectors.clients[before.name]
        assert_near(vectors_of(shard_of_vectors, before.name), node.alone(before))
        for part in PARTS:
            old, new = getattr(before, part), getattr(after, part)
            assert np.array_equal(old.targets, new.targets)
            assert [vector.shape for vector in new.values] == [(1, WIDTH)] * len(old)
            assert all(vector.dtype == np.float32 for vector in new.values)
        parts = {part: getattr(before, part) for part in PARTS}
        assert replace(after, **parts) == before


def test_the_shard_afterwards_is_of_vectors_and_of_the_clients_asked_for(node: SmallNode) -> None:
    shard_of_vectors = node.represented("bcx")
    assert set(shard_of_vectors.clients) == {"b"}
    assert shard_of_vectors.shape == DataShape((WIDTH,), CLASSES)
    absent = {"c": "no test sequence", "x": "not a client of this node"}
    assert shard_of_vectors.absent(["b", "c", "x"]) == absent


def test_many_sequences_are_encoded_some_at_a_time(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENCODED_AT_ONCE", 3)
    assert_near(vectors_of(node.represented("a"), "a"), node.alone(A))


def test_the_encoder_comes_once_and_the_vectors_are_read_back(
    node: SmallNode, encoded_counts: list[int]
) -> None:
    first = node.represented("a")
    assert encoded_counts == [8]
    reread = SmallNode(node.folder).represented("ab", HEADS)
    assert encoded_counts == [8, 6]  # b had not been asked for
    assert np.array_equal(vectors_of(first, "a"), vectors_of(reread, "a"))
    assert_near(vectors_of(reread, "b"), node.alone(B))


def test_one_changed_number_is_another_encoder_with_other_vectors(
    node: SmallNode, encoded_counts: list[int]
) -> None:
    first = node.represented("a")
    node.represented("a")  # sent once more, but the same
    assert encoded_counts == [8]
    node.encoder["encoder.linear.bias"][-1] += 1
    changed, reused = node.represented("a"), node.represented("a", {})
    assert encoded_counts == [8, 8]
    assert not np.allclose(vectors_of(first, "a"), vectors_of(changed, "a"))
    assert np.array_equal(vectors_of(changed, "a"), vectors_of(reused, "a"))


def test_without_an_encoder_nothing_can_be_done(node: SmallNode) -> None:
    with pytest.raises(DataError, match="no encoder yet"):
        node.represented("a", HEADS)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def test_damaged_vectors_are_made_again(
    node: SmallNode, encoded_counts: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    first = node.represented("a")
    (path,) = node.folder.rglob("vectors.safetensors")
    content = path.read_bytes()
    cut_short(path)
    recomputed = node.represented("a", {})
    assert encoded_counts == [8, 8]
    assert "vectors.safetensors is damaged" in caplog.text
    assert np.array_equal(vectors_of(first, "a"), vectors_of(recomputed, "a"))
    assert path.read_bytes() == content


def test_a_damaged_encoder_is_told_and_a_new_one_mends_it(
    node: SmallNode, caplog: pytest.LogCaptureFixture
) -> None:
    first = node.represented("a")
    cut_short(node.folder / "first-phase.safetensors")
    with pytest.raises(DataError, match="no encoder yet"):
        node.represented("a", {})
    assert "first-phase.safetensors is damaged" in caplog.text
    node.represented("a")
    assert np.array_equal(vectors_of(first, "a"), vectors_of(node.represented("a", {}), "a"))


def test_a_client_with_another_number_of_sequences_is_encoded_anew(
    node: SmallNode, encoded_counts: list[int]
) -> None:
    node.represented("ab")
    grown = replace(A, test=sequences_of([0, 1, 2], [5]))
    node.use(grown, B)
    shard_of_vectors = node.represented("ab", {})
    assert encoded_counts == [8, 6, 9]
    assert_near(vectors_of(shard_of_vectors, "a"), node.alone(grown))


def test_a_client_with_vectors_that_are_not_finite_costs_no_other_client(node: SmallNode) -> None:
    """One test sequence of a has values so large that vectors overflow."""
    values = [np.full_like(A.test.values[0], 3e38), *A.test.values[1:]]
    node.encoder = encoder_arrays(node.task, shift=10.0)
    before = vectors_of(node.represented("b"), "b")
    node.use(replace(A, test=replace(A.test, values=values)), B)
    shard_of_vectors = node.represented("ab", {})
    reason = "the encoder turns its sequences into NaN or infinite values"
    assert shard_of_vectors.absent(["a", "b", "c"]) == {"a": reason, "c": "no test sequence"}
    assert np.array_equal(vectors_of(shard_of_vectors, "b"), before)
    assert [path.parent.name for path in node.folder.rglob("vectors.*")] == ["c-b"]
    assert node.shard.refused == {"c": "no test sequence"}  # of all orders

    settings = node.task.settings
    learner = make_learner(settings, task_of(settings, WIDTH), ENCODER_ROUNDS + 1)
    order = Order("run", "t", ENCODER_ROUNDS + 1, ["a", "b"], evaluate=True)
    shares = shares_of(order.clients, order.server_round, shard_of_vectors, node.task, 16)
    (reply,) = Node(settings, shard_of_vectors, node.store, learner).train(order, shares)
    assert reply.names == ["b"]
    assert np.isfinite(reply.arrays["head"]).all()
