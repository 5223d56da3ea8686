"""IFCA and FLSC: which clusters a client chooses, and that its head is as Fed-REACT's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.maths.linear_heads import classifier_loss
from fedproto_app.strategies.common.learner import AnyLearner, train_cohort
from tests.learners.tiny_sequences import (
    ENCODER_ROUNDS,
    WIDTH,
    head_learner,
    sequence_cohort,
    vector_client,
)

FIRST = ENCODER_ROUNDS + 1
A, B, C = vector_client("a", [0, 0, 0, 0]), vector_client("b", [2, 2, 2]), vector_client("c", [1])


def says(*scores: float) -> NDArray[np.float32]:
    """A head that gives every vector these scores."""
    head = np.zeros((3, WIDTH + 1), dtype=np.float32)
    head[:, -1] = scores
    return head


def sent_arrays(learner: AnyLearner, heads: list[NDArray[np.float32]]) -> Arrays:
    """What three clients send that see these clusters' heads."""
    cohort = sequence_cohort(learner, (A, B, C), FIRST)
    learner.begin(cohort)
    guidance = Guidance({"clusters": np.stack(heads)})
    context = learner.context(guidance, cohort)
    train_cohort(learner, cohort, context)
    return learner.contribution(cohort, context, FIRST).arrays


CLUSTERS = [says(-1, 1, -1), says(-1, -1, 1), says(1, -1, -1)]


def test_ifca_chooses_the_cluster_with_the_lowest_loss() -> None:
    chosen = sent_arrays(head_learner("ifca"), CLUSTERS)["chosen"]
    assert chosen.dtype == np.float32
    assert chosen.tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_flsc_chooses_the_clusters_with_the_lowest_losses() -> None:
    """Losses of a, whose labels are 0: (2² + 2²), 1 + 1 + 0, 0, in this order of clusters."""
    heads = [says(-1, 1, -1), says(0, 0, -1), says(1, -1, -1)]
    flsc = head_learner("flsc", **{"fed-react.overlap": 2})
    chosen = sent_arrays(flsc, heads)["chosen"]
    assert chosen[0].tolist() == [0, 1, 1]
    # Of b with label 2: 2² + 2² · 2 = 12 − 4 of the first, 1 + 1 + 2² of the second, 8 of the last.
    assert chosen[1].tolist() == [1, 1, 0]
    assert (
        sent_arrays(head_learner("flsc", **{"fed-react.overlap": 3}), heads)["chosen"].tolist()
        == [[1, 1, 1]] * 3
    )
    overlapping = sent_arrays(head_learner("flsc", **{"fed-react.overlap": 1}), heads)
    assert np.array_equal(overlapping["chosen"], sent_arrays(head_learner("ifca"), heads)["chosen"])


@pytest.mark.parametrize(("method", "expected"), [("ifca", [0, 1, 0, 0]), ("flsc", [0, 1, 1, 0])])
def test_ties_go_to_the_first(method: str, expected: list[int]) -> None:
    equal_head = says(1, -1, -1)
    learner = head_learner(method, **{"fed-react.clusters": 4})
    chosen = sent_arrays(
        learner, [says(-1, 1, 1), equal_head, equal_head.copy(), equal_head.copy()]
    )["chosen"]
    assert chosen[0].tolist() == expected


@pytest.mark.parametrize("method", ["ifca", "flsc"])
def test_a_head_without_a_loss_is_chosen_last(method: str) -> None:
    broken = says(float("nan"), 0, 0)
    chosen = sent_arrays(head_learner(method), [broken, says(-1, 1, 1), says(1, -1, -1)])["chosen"]
    assert chosen[:, 0].tolist() == [0, 0, 0]


def test_the_choice_is_by_the_samples_of_the_round() -> None:
    """Clusters know one class each, and a client that has all draws one sample a round."""
    client = vector_client("m", [0, 1, 2, 0, 1, 2])
    learner = head_learner("ifca", **{"fed-react.samples": 1})
    choices = set()
    for server_round in range(FIRST, FIRST + 12):
        cohort = sequence_cohort(learner, (client,), server_round)
        learner.begin(cohort)
        heads = np.stack([says(1, -1, -1), says(-1, 1, -1), says(-1, -1, 1)])
        guidance = Guidance({"clusters": heads})
        context = learner.context(guidance, cohort)
        label = int(cohort.samples.targets[0, 0])
        assert context.chosen.tolist() == [[float(n == label) for n in range(3)]]
        choices.add(label)
    assert choices == {0, 1, 2}


def test_the_choice_follows_the_loss_of_random_heads() -> None:
    rng = np.random.default_rng(0)
    heads = [rng.normal(size=(3, WIDTH + 1)).astype(np.float32) for _ in range(3)]
    learner = head_learner("flsc", **{"fed-react.samples": 0, "fed-react.overlap": 2})
    chosen = sent_arrays(learner, heads)["chosen"]
    for row, client in enumerate((A, B, C)):
        vectors = np.concatenate(client.train.values)
        losses = [classifier_loss(head, vectors, client.train.targets) for head in heads]
        assert chosen[row].tolist() == [float(n != np.argmax(losses)) for n in range(3)]


@pytest.mark.parametrize("method", ["ifca", "flsc"])
def test_the_head_is_fed_reacts(method: str) -> None:
    """Only the server uses the choice: the fit starts from nothing, as in Fed-REACT."""
    ours = sent_arrays(head_learner(method), CLUSTERS)
    assert set(ours) == {"head", "chosen"}
    assert np.array_equal(ours["head"], sent_arrays(head_learner("fed-react"), CLUSTERS)["head"])


def test_what_a_client_predicts_with_is_what_the_server_sent() -> None:
    learner = head_learner("ifca")
    cohort = sequence_cohort(learner, (A, B), FIRST)
    guidance = Guidance({"heads": says(1, 0, 0)[None]}, clients=["a"])
    assert learner.receive(cohort, guidance)
    cohort.memory.local[:] = torch.from_numpy(says(0, 1, 0))
    metrics = learner.evaluate(cohort, guidance)
    assert metrics[Metric("accuracy")] == [1, 0]
    assert metrics[Metric("accuracy", Model.LOCAL)] == [0, 0]
