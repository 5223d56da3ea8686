"""Sequences as vectors: what a node keeps on its disk, and when it makes them again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
from fedproto_app.tasks.sequences.task import SequenceTask
from tests.strategies.tiny_sequences import (
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


@pytest.fixture
def task() -> SequenceTask:
    return sequence_task("fed-react")


@pytest.fixture
def store(tmp_path: Path) -> ClientStore:
    return ClientStore(tmp_path)


def shard_of(*clients: ClientSequences) -> Shard:
    by_name = {client.name: client for client in clients}
    return Shard(by_name, {"c": "no test sequence"}, DataShape((DIMENSIONS,), CLASSES))


@pytest.fixture
def shard() -> Shard:
    a = sequence_client("a", [0, 1, 2, 0], [9, 4, 1], tested=[1, 2])
    return shard_of(a, sequence_client("b", [2, 1], [3]))


def vectors_of(shard: Shard, name: str) -> NDArray[np.float32]:
    """[n, D] of all parts of a client."""
    client = shard.clients[name]
    assert isinstance(client, ClientSequences)
    return np.concatenate([vector for part in PARTS for vector in getattr(client, part).values])


def alone(client: ClientSequences, encoder: Arrays, task: SequenceTask) -> NDArray[np.float32]:
    """The vectors of a client's sequences, encoded one by one."""
    stacked = {name: torch.from_numpy(value).unsqueeze(0) for name, value in encoder.items()}
    sequences = [sequence for part in PARTS for sequence in getattr(client, part).values]
    encoded = [
        task.encode(
            stacked, torch.from_numpy(sequence)[None, None], torch.tensor([[len(sequence)]])
        )[0]
        for sequence in sequences
    ]
    return torch.cat(encoded).numpy()


@pytest.fixture
def encoded_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of sequences that were encoded, a number a client."""
    counts: list[int] = []

    def counting(sequences: list[NDArray[np.float32]], *arguments: object) -> torch.Tensor:
        counts.append(len(sequences))
        return represent_sequences(sequences, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "represent_sequences", counting)
    return counts


def test_a_vector_is_what_the_encoder_makes_of_the_sequence_alone(
    shard: Shard, task: SequenceTask, store: ClientStore
) -> None:
    encoder = encoder_arrays(task)
    shard_of_vectors = represented(shard, ["a", "b"], encoder, task, store)
    for name in ("a", "b"):
        before, after = shard.clients[name], shard_of_vectors.clients[name]
        assert isinstance(before, ClientSequences)
        assert isinstance(after, ClientSequences)
        np.testing.assert_allclose(
            vectors_of(shard_of_vectors, name), alone(before, encoder, task), rtol=1e-5, atol=1e-6
        )
        for part in PARTS:
            old, new = getattr(before, part), getattr(after, part)
            assert np.array_equal(old.targets, new.targets)
            assert [vector.shape for vector in new.values] == [(1, WIDTH)] * len(old)
            assert all(vector.dtype == np.float32 for vector in new.values)
        parts = {part: getattr(before, part) for part in PARTS}
        assert replace(after, **parts) == before


def test_the_shard_afterwards_is_of_vectors_and_of_the_clients_asked_for(
    shard: Shard, task: SequenceTask, store: ClientStore
) -> None:
    shard_of_vectors = represented(shard, ["b", "c", "x"], encoder_arrays(task), task, store)
    assert set(shard_of_vectors.clients) == {"b"}
    assert shard_of_vectors.shape == DataShape((WIDTH,), CLASSES)
    assert shard_of_vectors.absent(["b", "c", "x"]) == {
        "c": "no test sequence",
        "x": "not a client of this node",
    }


def test_many_sequences_are_encoded_some_at_a_time(
    shard: Shard, task: SequenceTask, store: ClientStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENCODED_AT_ONCE", 3)
    shard_of_vectors = represented(shard, ["a"], encoder_arrays(task), task, store)
    client = shard.clients["a"]
    assert isinstance(client, ClientSequences)
    expected = alone(client, encoder_arrays(task), task)
    np.testing.assert_allclose(vectors_of(shard_of_vectors, "a"), expected, rtol=1e-5, atol=1e-6)


def test_the_encoder_comes_once_and_the_vectors_are_read_back(
    shard: Shard, task: SequenceTask, store: ClientStore, tmp_path: Path, encoded_counts: list[int]
) -> None:
    first = represented(shard, ["a"], encoder_arrays(task), task, store)
    assert encoded_counts == [8]
    heads = {"heads": np.zeros((1, 3, WIDTH + 1), dtype=np.float32)}
    reread = represented(shard, ["a", "b"], heads, task, ClientStore(tmp_path))
    assert encoded_counts == [8, 6]  # b had not been asked for
    assert np.array_equal(vectors_of(first, "a"), vectors_of(reread, "a"))
    client = shard.clients["b"]
    assert isinstance(client, ClientSequences)
    expected = alone(client, encoder_arrays(task), task)
    np.testing.assert_allclose(vectors_of(reread, "b"), expected, rtol=1e-5, atol=1e-6)


def test_another_encoder_makes_other_vectors(
    shard: Shard, task: SequenceTask, store: ClientStore, encoded_counts: list[int]
) -> None:
    first = represented(shard, ["a"], encoder_arrays(task), task, store)
    shifted = represented(shard, ["a"], encoder_arrays(task, shift=0.25), task, store)
    reused = represented(shard, ["a"], {}, task, store)
    assert encoded_counts == [8, 8]
    assert not np.allclose(vectors_of(first, "a"), vectors_of(shifted, "a"))
    assert np.array_equal(vectors_of(shifted, "a"), vectors_of(reused, "a"))


def test_one_changed_number_is_another_encoder(
    shard: Shard, task: SequenceTask, store: ClientStore, encoded_counts: list[int]
) -> None:
    encoder = encoder_arrays(task)
    represented(shard, ["a"], encoder, task, store)
    represented(shard, ["a"], encoder, task, store)  # sent once more, but the same
    assert encoded_counts == [8]
    encoder["encoder.linear.bias"][-1] += 1
    represented(shard, ["a"], encoder, task, store)
    assert encoded_counts == [8, 8]


def test_without_an_encoder_nothing_can_be_done(
    shard: Shard, task: SequenceTask, store: ClientStore
) -> None:
    heads = {"heads": np.zeros((1, 3, WIDTH + 1), dtype=np.float32)}
    with pytest.raises(DataError, match="no encoder yet"):
        represented(shard, ["a"], heads, task, store)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def test_damaged_vectors_are_made_again(
    shard: Shard,
    task: SequenceTask,
    store: ClientStore,
    tmp_path: Path,
    encoded_counts: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = represented(shard, ["a"], encoder_arrays(task), task, store)
    (path,) = tmp_path.rglob("vectors.safetensors")
    content = path.read_bytes()
    cut_short(path)
    recomputed = represented(shard, ["a"], {}, task, store)
    assert encoded_counts == [8, 8]
    assert "vectors.safetensors is damaged" in caplog.text
    assert np.array_equal(vectors_of(first, "a"), vectors_of(recomputed, "a"))
    assert path.read_bytes() == content


def test_a_damaged_encoder_is_told_and_a_new_one_mends_it(
    shard: Shard,
    task: SequenceTask,
    store: ClientStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = represented(shard, ["a"], encoder_arrays(task), task, store)
    cut_short(tmp_path / "encoder.safetensors")
    with pytest.raises(DataError, match="no encoder yet"):
        represented(shard, ["a"], {}, task, store)
    assert "encoder.safetensors is damaged" in caplog.text
    represented(shard, ["a"], encoder_arrays(task), task, store)
    recomputed = represented(shard, ["a"], {}, task, store)
    assert np.array_equal(vectors_of(first, "a"), vectors_of(recomputed, "a"))


def test_a_client_with_another_number_of_sequences_is_encoded_anew(
    shard: Shard, task: SequenceTask, store: ClientStore, encoded_counts: list[int]
) -> None:
    represented(shard, ["a", "b"], encoder_arrays(task), task, store)
    client = shard.clients["a"]
    assert isinstance(client, ClientSequences)
    grown = replace(client, test=sequences_of([0, 1, 2], [5]))
    unchanged = shard.clients["b"]
    assert isinstance(unchanged, ClientSequences)
    shard_of_vectors = represented(shard_of(grown, unchanged), ["a", "b"], {}, task, store)
    assert encoded_counts == [8, 6, 9]
    expected = alone(grown, encoder_arrays(task), task)
    np.testing.assert_allclose(vectors_of(shard_of_vectors, "a"), expected, rtol=1e-5, atol=1e-6)


def overflowing(client: ClientSequences) -> ClientSequences:
    """The same with one test sequence whose values are so large that vectors overflow."""
    values = [np.full_like(client.test.values[0], 3e38), *client.test.values[1:]]
    return replace(client, test=replace(client.test, values=values))


def test_a_client_with_vectors_that_are_not_finite_costs_no_other_client(
    shard: Shard, task: SequenceTask, store: ClientStore, tmp_path: Path
) -> None:
    a, b = shard.clients["a"], shard.clients["b"]
    assert isinstance(a, ClientSequences)
    assert isinstance(b, ClientSequences)
    encoder = encoder_arrays(task, shift=10.0)
    before = vectors_of(represented(shard, ["b"], encoder, task, store), "b")
    shard_of_vectors = represented(shard_of(overflowing(a), b), ["a", "b"], {}, task, store)
    reason = "the encoder makes NaN or infinite values of its sequences"
    assert shard_of_vectors.absent(["a", "b", "c"]) == {"a": reason, "c": "no test sequence"}
    assert np.array_equal(vectors_of(shard_of_vectors, "b"), before)
    assert [path.parent.name for path in tmp_path.rglob("vectors.*")] == ["c-b"]
    assert shard.refused == {"c": "no test sequence"}  # of all orders

    learner = make_learner(task.settings, task_of(task.settings, WIDTH), ENCODER_ROUNDS + 1)
    node = Node(task.settings, shard_of_vectors, store, learner)
    order = Order("run", "t", ENCODER_ROUNDS + 1, ["a", "b"], evaluate=True)
    (reply,) = node.train(order, shares_of(order, shard_of_vectors, task, 16))
    assert reply.names == ["b"]
    assert np.isfinite(reply.arrays["head"]).all()
