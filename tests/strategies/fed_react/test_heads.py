"""Fed-REACT's client half: what it draws, fits and sends, and what it predicts with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.messages import Arrays, Guidance, Order
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.data.sequences.clients import ClientSequences
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.maths.linear_heads import classifier_loss, fit_classifier
from fedproto_app.node.store import ClientStore
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, train_cohort
from tests.helpers.tiny_cohort import cohort_of
from tests.helpers.tiny_sequences import CLASSES, ENCODER_ROUNDS, WIDTH, head_learner, vector_client
from tests.helpers.whole_orders import WholeNode
from tests.node.stored import rounds_in

A = vector_client("a", [0, 1, 2, 0, 1, 2, 0, 1, 2])
B = vector_client("b", [0, 0, 1, 1, 1])
C = vector_client("c", [2])
NO_GUIDANCE = Guidance()
GIVEN_ENCODER = {"encoder.path": "a run"}
FIRST = ENCODER_ROUNDS + 1  # the first round of the second phase, where the encoder is learned


def order(server_round: int, guidance: Guidance = NO_GUIDANCE) -> Order:
    return Order("run", "t", server_round, ["a", "b"], guidance=guidance)


def drawn(
    learner: AnyLearner, server_round: int, clients: tuple[ClientSequences, ...] = (A, B, C)
) -> dict[str, list[int]]:
    """The places of M_t among each client's train sequences."""
    cohort = cohort_of(learner, clients, server_round)
    learner.begin(cohort)
    samples, places = cohort.samples, {}
    for row, client in enumerate(clients):
        count = samples.train_samples[row]
        place_of = {value.tobytes(): place for place, value in enumerate(client.train.values)}
        mine = [value.numpy().tobytes() for value in samples.values[row, :count]]
        places[client.name] = [place_of[value_bytes] for value_bytes in mine]
        assert samples.targets[row, :count].tolist() == [
            client.train.targets[place] for place in places[client.name]
        ]
        assert (samples.lengths[row, :count] == 1).all()
    return places


def trained(
    learner: AnyLearner, clients: tuple[ClientSequences, ...] = (A, B, C), server_round: int = FIRST
) -> tuple[Cohort, dict[str, Tensor], Arrays]:
    """The clients after a round, with their losses and what they send."""
    cohort = cohort_of(learner, clients, server_round)
    learner.begin(cohort)
    context = learner.context(NO_GUIDANCE, cohort)
    losses = train_cohort(learner, cohort, context)
    return cohort, losses, learner.contribution(cohort, context).arrays


@pytest.mark.parametrize(("samples", "sizes"), [(3, [3, 3, 1]), (6, [6, 5, 1]), (0, [9, 5, 1])])
def test_a_client_draws_as_many_as_set_and_none_twice(samples: int, sizes: list[int]) -> None:
    places = drawn(head_learner(**{"fed-react.samples": samples}), FIRST)
    assert [len(places[name]) for name in "abc"] == sizes
    assert [len(set(places[name])) for name in "abc"] == sizes


def test_each_round_draws_anew_and_every_sequence_has_its_turn() -> None:
    learner = head_learner()
    rounds = [drawn(learner, FIRST + later)["a"] for later in range(200)]
    assert drawn(learner, FIRST)["a"] == rounds[0]
    assert len({tuple(sorted(places)) for places in rounds}) > 60  # of 84 subsets
    counts = np.bincount(np.concatenate(rounds), minlength=9)
    # Each is drawn with probability 1/3: 67 of 200 times, and the standard deviation is 6.7.
    assert (abs(counts - 200 / 3) < 30).all()


def test_a_learned_and_a_given_encoder_see_the_same_samples_and_fit_the_same_heads() -> None:
    learned, with_encoder = head_learner(), head_learner(**GIVEN_ENCODER)
    for task_round in (1, 2, 5):
        assert drawn(learned, ENCODER_ROUNDS + task_round) == drawn(with_encoder, task_round)
    (after_learning, *_), (after_loading, *_) = (
        trained(learned, (A, B)),
        trained(with_encoder, (A, B), server_round=1),
    )
    assert torch.equal(after_learning.memory.local, after_loading.memory.local)


def test_the_head_of_all_samples_is_the_support_vector_machine() -> None:
    cohort, losses, arrays = trained(head_learner(**{"fed-react.samples": 0}))
    assert set(arrays) == {"head"}
    heads = arrays["head"]
    assert (heads.shape, heads.dtype) == ((3, 3, WIDTH + 1), np.float32)
    for row, client in enumerate((A, B, C)):
        vectors, targets = np.concatenate(client.train.values), client.train.targets
        np.testing.assert_allclose(heads[row], fit_classifier(vectors, targets, 3, 1.0), atol=1e-3)
        fits = classifier_loss(heads[row], vectors, targets)
        assert losses["head"][row].item() == pytest.approx(fits, rel=1e-5)
    assert heads[1, 2].tolist() == [0] * WIDTH + [-1]  # b has no class 2
    assert cohort.samples.train_samples == [9, 5, 1]


def test_a_head_is_fitted_to_the_samples_of_the_round_alone() -> None:
    learner = head_learner()
    cohort, *_ = trained(learner)
    places = drawn(learner, FIRST)["a"]
    vectors = np.concatenate([A.train.values[place] for place in places])
    head = fit_classifier(vectors, A.train.targets[places], 3, 1.0)
    np.testing.assert_allclose(cohort.memory.local[0], head, atol=1e-3)
    assert cohort.samples.train_samples == [3, 3, 1]


def test_regression_sends_one_row() -> None:
    client = vector_client("r", [3.0, 40.0, -20.0, 8.0])
    learner = head_learner(
        task="sequence-regression",
        **{"data.sequences.target-scale": 10.0, "fed-react.samples": 0, "fed-react.penalty": 1e6},
    )
    cohort, *_ = trained(learner, (client,))
    assert cohort.memory.local.shape == (1, 1, WIDTH + 1)
    # Four samples and five unknowns: nearly interpolated, in scaled units.
    predicted = np.concatenate(client.train.values) @ cohort.memory.local[0, 0, :-1].numpy()
    predicted = predicted + cohort.memory.local[0, 0, -1].item()
    np.testing.assert_allclose(predicted, client.train.targets / 10, atol=1e-3)


def always(label: int) -> NDArray[np.float32]:
    """A head that says one class of everything."""
    head = np.zeros((3, WIDTH + 1), dtype=np.float32)
    head[label, -1] = 1
    return head


def with_heads(learner: AnyLearner, clients: str, *heads: NDArray[np.float32]) -> Cohort:
    """These clients before training, each with a head of its own."""
    of_name = {client.name: client for client in (A, B, C)}
    cohort = cohort_of(learner, [of_name[name] for name in clients], FIRST)
    cohort.memory.local[:] = torch.from_numpy(np.stack(heads))
    return cohort


def test_before_any_head_came_a_client_predicts_with_its_own() -> None:
    learner = head_learner()
    cohort = with_heads(learner, "ab", always(0), always(1))
    cohort.memory.received[:] = torch.from_numpy(always(2))  # unused until one came
    metrics = learner.evaluate(cohort, NO_GUIDANCE)
    assert metrics[Metric("accuracy")] == pytest.approx([1 / 3, 3 / 5])
    assert metrics[Metric("validation-error")] == pytest.approx([2 / 3, 2 / 5])
    for name in ("accuracy", "validation-error"):
        assert metrics[Metric(name, Model.LOCAL)] == metrics[Metric(name)]


def test_guided_clients_take_their_clusters_head_and_the_others_go_on() -> None:
    learner = head_learner()
    cohort = with_heads(learner, "abc", always(0), always(0), always(0))
    heads = np.stack([always(1), always(2)])
    before = cohort.memory.local.clone()
    assert learner.receive(cohort, Guidance({"heads": heads}, ["b", "c"])) == [1, 2]
    for useless in (NO_GUIDANCE, Guidance({"heads": always(1)[None]}, ["of another cohort"])):
        assert learner.receive(cohort, useless) == []
        assert cohort.memory.has_received.tolist() == [0, 1, 1]
        assert not cohort.memory.received[0].any()
        assert torch.equal(cohort.memory.received[1:], torch.from_numpy(heads))
        assert torch.equal(cohort.memory.local, before)
    metrics = learner.evaluate(cohort, NO_GUIDANCE)
    assert metrics[Metric("accuracy")] == pytest.approx([1 / 3, 3 / 5, 1])
    assert metrics[Metric("accuracy", Model.LOCAL)] == pytest.approx([1 / 3, 2 / 5, 0])


def test_heads_and_names_must_be_equally_many() -> None:
    learner = head_learner()
    arrays = {"heads": np.stack([always(1), always(2)])}
    with pytest.raises(ValueError, match="longer than"):
        learner.receive(with_heads(learner, "a", always(0)), Guidance(arrays, ["a"]))


def test_a_client_predicts_by_the_linear_rule() -> None:
    """The metrics of a random head against a loop over the test vectors."""
    learner = head_learner()
    draws = np.random.default_rng(0)
    heads = [draws.normal(size=(3, WIDTH + 1)).astype(np.float32) for _ in "ab"]
    metrics = learner.evaluate(with_heads(learner, "ab", *heads), NO_GUIDANCE)
    for row, (client, head) in enumerate(zip((A, B), heads, strict=True)):
        for part, name in ((client.test, "accuracy"), (client.validation, "validation-error")):
            scores = np.concatenate(part.values) @ head[:, :-1].T + head[:, -1]
            right = (scores.argmax(axis=1) == part.targets).mean()
            expected = right if name == "accuracy" else 1 - right
            assert metrics[Metric(name)][row] == pytest.approx(expected)


@pytest.mark.parametrize("cohort_size", [1, 16])
def test_a_node_writes_only_the_clients_that_a_head_came_for(
    tmp_path: Path, cohort_size: int
) -> None:
    """Both train in round 1. In round 2 neither does, and a head comes for a."""
    learner = head_learner(**{"cohort-size": cohort_size}, **GIVEN_ENCODER)
    shard = Shard({"a": A, "b": B}, {}, DataShape((WIDTH,), CLASSES))
    node = WholeNode(learner, shard, ClientStore(tmp_path))
    node.train(order(1))
    heads = {"heads": always(2)[None]}
    node.evaluate(order(2, Guidance(heads, ["a"])))
    assert rounds_in(tmp_path, "training", "a") == [1, 2]
    assert rounds_in(tmp_path, "training", "b") == [1]
    [(_, state)] = ClientStore(tmp_path).read_states(["a"], 2)
    assert np.array_equal(state["memory/received"][0], always(2))
