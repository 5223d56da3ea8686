"""From a pool to clients ready to train, and to the shard of a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.clients import (
    ClientSequences,
    make_sequence_clients,
    resampled,
    scaled_by_itself,
    scaling,
    scaling_from,
    scaling_numbers,
)
from fedproto_app.data.sequences.partition import deal_sequences
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import DataSettings, SequenceSettings, Settings, settings_from
from fedproto_app.tasks.table import admission, load_shard
from tests.data.sequences.made_sequences import measured, pool_of

MODULE = __name__  # this module serves as a user's own: "package.module:factory"

CLIENTS = ["ann"] * 30 + ["bob"] * 30 + ["cid"] * 2
POOL = pool_of([0, 0, 1] * 20 + [2, 2], CLIENTS, {"ann": "left", "bob": "right"})


def labelled(settings: DataSettings) -> SequencePool:
    return POOL


def numbers(settings: DataSettings) -> SequencePool:
    return measured(62, CLIENTS)


def settings(factory: str, task: str = "sequence-classification", **more: Any) -> Settings:
    changes = {"data.clusters.scheme": "given", "data.sequences.scaling": "none", **more}
    return settings_from(
        {"task": task, "method": "solo", "data.source": f"{MODULE}:{factory}", **changes}
    )


def places(client: ClientSequences) -> list[int]:
    """Return all places of a client's sequences, which are their values."""
    parts = (client.train, client.validation, client.test)
    return sorted(int(steps[0, 0]) for part in parts for steps in part.values)


def test_clients_hold_their_sequences_and_targets() -> None:
    shard = load_shard(settings("labelled"), 0, 1)
    shares = "data.train-share = 0.7, data.validation-share = 0.1"
    assert shard.refused == {"cid": f"no validation sequence among its 2: {shares}"}
    assert (shard.shape.inputs, shard.shape.classes) == ((2,), ("ant", "bee", "cat"))
    ann, bob = shard.clients["ann"], shard.clients["bob"]
    assert (ann.group, bob.group) == ("left", "right")
    assert places(ann) == list(range(30))
    assert places(bob) == list(range(30, 60))
    assert ann.class_counts == ((14, 7, 0),)
    assert ann.train_samples == 21
    for part in (ann.train, ann.validation, ann.test):
        assert part.targets.tolist() == [POOL.targets[int(values[0, 0])] for values in part.values]
        assert all(len(values) == 2 + int(values[0, 0]) % 3 for values in part.values)


def test_clients_of_real_targets() -> None:
    shard = load_shard(settings("numbers", "sequence-regression"), 0, 1)
    ann = shard.clients["ann"]
    assert ann.class_counts == shard.shape.classes == ()
    assert ann.train.targets.tolist() == [place / 2 for place in range(21)]
    assert ann.test.targets.tolist() == [place / 2 for place in range(24, 30)]


def test_nodes_share_the_clients() -> None:
    run = settings("labelled", **{"data.clusters.scheme": "dirichlet"})
    clients = load_shard(run, 0, 1).clients
    nodes = [load_shard(run, node, 3).clients for node in range(3)]
    assert sorted(name for node in nodes for name in node) == sorted(clients)
    for node in nodes:
        for name, client in node.items():
            assert places(client) == places(clients[name])
    dealt = [place for client in clients.values() for place in places(client)]
    assert len(dealt) == len(set(dealt)) == 60


def test_sequences_are_resampled_and_then_scaled() -> None:
    ramp = [np.arange(9, dtype=np.float32)[:, None] * (place + 1) for place in range(10)]
    pool = replace(measured(10, ["ann"] * 10), sequences=ramp)

    def client(scaling: str) -> ClientSequences:
        changes = {"data.sequences.steps": 3, "data.sequences.scaling": scaling}
        data = settings("numbers", "sequence-regression", **changes).data
        return make_sequence_clients(pool, deal_sequences(pool, data, 0), data, 0)[0]["ann"]

    assert client("none").train.values[1].tolist() == [[0], [8], [16]]
    together = np.concatenate(client("client").train.values)
    assert together.mean() == pytest.approx(0, abs=1e-6)
    assert together.std() == pytest.approx(1, abs=1e-6)
    assert np.concatenate(client("client").test.values).mean() > 0  # later ones are steeper


def partly(settings: DataSettings) -> SequencePool:
    """Half of ann's sequences have no label, and other values."""
    pool = pool_of([0, 1] * 10 + [-1] * 20, ["ann"] * 40)
    larger = [steps * 10 for steps in pool.sequences[20:]]
    return replace(pool, sequences=[*pool.sequences[:20], *larger])


@pytest.mark.parametrize(
    ("method", "more", "unlabelled"),
    [
        ("fed-react", {}, 20),
        ("fed-react", {"encoder.path": "elsewhere"}, 0),
        ("analytic", {"keep": "last", "analytic.guess-rounds": 1}, 20),
        ("analytic", {}, 0),
        ("fedavg", {"analytic.guess-rounds": 1}, 0),
    ],
)
def test_methods_that_ignore_unlabelled_sequences(method: str, more: Any, unlabelled: int) -> None:
    changes = {"method": method, "data.sequences.scaling": "client", **more}
    ann = load_shard(settings("partly", **changes), 0, 1).clients["ann"]
    assert len(ann.unlabelled) == unlabelled
    validation = len(ann.validation) if method == "analytic" else 0
    assert ann.train_samples == len(ann.train) + unlabelled + validation
    assert sum(map(sum, ann.class_counts)) == len(ann.train)
    together = np.concatenate([*ann.train.values, *ann.unlabelled])
    assert together.mean() == pytest.approx(0, abs=1e-6)
    assert (abs(np.concatenate(ann.train.values).mean()) < 1e-6) == (unlabelled == 0)


def test_reasons_are_those_of_the_shard() -> None:
    for run in (settings("labelled"), settings("numbers", "sequence-regression")):
        reasons, shard = admission(run).reasons, load_shard(run, 0, 1)
        assert list(reasons) == ["ann", "bob", "cid"]
        assert {name: why for name, why in reasons.items() if why} == shard.refused


@pytest.mark.parametrize("read", [admission, lambda run: load_shard(run, 0, 1)])
def test_targets_that_the_task_cannot_learn(read: Any) -> None:
    message = f"task = 'sequence-regression': .* '{MODULE}:labelled' are c"
    with pytest.raises(DataError, match=message):
        read(settings("labelled", "sequence-regression"))
    with pytest.raises(DataError, match="are real numbers; set task = 'sequence-regression'"):
        read(settings("numbers"))


def test_a_client_of_another_cluster_calls_its_sequences_otherwise() -> None:
    dealt = {"data.clusters.scheme": "dirichlet", "data.clusters.clients": 2}
    changes = {**dealt, "data.clusters.clusters": 2, "data.clusters.renamed": True}
    run = settings("labelled", **changes)
    shard, holdings = load_shard(run, 0, 1), deal_sequences(POOL, run.data, run.seed)
    assert len({tuple(holding.names) for holding in holdings}) == 2
    for holding in holdings:
        client = shard.clients[holding.name]
        for part in (client.train, client.validation, client.test):
            true = [int(POOL.targets[int(steps[0, 0])]) for steps in part.values]
            assert part.targets.tolist() == holding.names[true].tolist()
        counts = np.bincount(client.train.targets.astype(int), minlength=3)
        assert client.class_counts == (tuple(counts),)


def steps(*columns: list[float]) -> NDArray[np.float32]:
    return np.array(columns, np.float32).T


def test_resampling_is_linear_and_keeps_the_ends() -> None:
    long = steps([0, 1, 4, 9, 16], [4, 3, 2, 1, 0])
    # Of 5 steps 4: at the indices 0, 4/3, 8/3 and 4.
    expected = [[0, 4], [2, 8 / 3], [4 + 2 / 3 * 5, 4 / 3], [16, 0]]
    np.testing.assert_allclose(resampled(long, 4), expected, rtol=1e-6)
    assert resampled(long, 4).dtype == np.float32


def test_short_sequences_are_not_resampled() -> None:
    short = steps([0, 1, 4, 9, 16])
    assert all(resampled(short, longest) is short for longest in (0, 5, 6))


def test_a_sequence_is_scaled_by_itself_without_changing_its_proportions() -> None:
    # Deviations from the means are ±3 and ±4, and the mean of their squares is 12.5.
    scaled = scaled_by_itself(steps([10, 16], [-4, 4]))
    np.testing.assert_allclose(scaled, steps([-3, 3], [-4, 4]) / np.sqrt(12.5), rtol=1e-6)


def test_a_constant_sequence_becomes_zeros() -> None:
    assert scaled_by_itself(steps([305.33] * 7, [0.1] * 7)).tolist() == [[0, 0]] * 7
    assert scaled_by_itself(steps([5], [6])).tolist() == [[0, 0]]


def test_a_clients_scale_comes_from_its_train_steps() -> None:
    # Train steps 1, 3, 5, 7: mean 4, deviation √5. The second dimension is constant.
    train = [steps([1, 3], [0.1, 0.1]), steps([5, 7], [0.1, 0.1])]
    scaled = scaling(train, SequenceSettings(scaling="client"))
    np.testing.assert_allclose(scaled(train[0])[:, 0], [-3 / 5**0.5, -1 / 5**0.5], rtol=1e-6)
    changed = scaled(steps([4, 9], [3, 4]))
    np.testing.assert_allclose(changed, [[0, 0], [5**0.5, 0]], rtol=1e-6)
    assert changed.dtype == np.float32


@pytest.mark.parametrize("name", ["client", "sequence", "none"])
def test_a_scaling_is_made_again_from_its_numbers_in_any_order(name: str) -> None:
    generator = np.random.default_rng(0)
    steps = generator.normal(3, np.arange(12), (9, 12)).astype(np.float32)
    settings = SequenceSettings(scaling=name)
    scaled = scaling([steps], settings)
    stored = dict(sorted(scaling_numbers(scaled).items()))  # "mean 10" comes before "mean 2"
    np.testing.assert_array_equal(scaling_from(stored, settings)(steps), scaled(steps))


def test_other_scalings() -> None:
    constant = steps([1, 2, 4])
    assert scaling([constant], SequenceSettings(scaling="none"))(constant) is constant
    by_itself = scaling([constant], SequenceSettings(scaling="sequence"))
    np.testing.assert_array_equal(by_itself(constant), scaled_by_itself(constant))
