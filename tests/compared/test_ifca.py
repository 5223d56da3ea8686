"""IFCA and FLSC: which clusters a client chooses, and their heads by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.maths.linear_heads import classifier_loss
from fedproto_app.strategies.common.learner import AnyLearner, train_cohort
from fedproto_app.strategies.fed_react.clustered_heads import ClusteredHeadStrategy
from tests.helpers.tiny_cohort import cohort_of
from tests.helpers.tiny_sequences import ENCODER_ROUNDS, WIDTH, head_learner, vector_client
from tests.strategies.fed_react.by_hand import Head, come_back, leave, play, server

# --- the client's half ---------------------------------------------------------------------------


FIRST = ENCODER_ROUNDS + 1
ALL_0, ALL_2, ALL_1 = (
    vector_client("a", [0, 0, 0, 0]),
    vector_client("b", [2, 2, 2]),
    vector_client("c", [1]),
)


def says(*scores: float) -> NDArray[np.float32]:
    """A head that gives every vector these scores."""
    head = np.zeros((3, WIDTH + 1), dtype=np.float32)
    head[:, -1] = scores
    return head


def sent_arrays(learner: AnyLearner, heads: list[NDArray[np.float32]]) -> Arrays:
    """What three clients send that see these clusters' heads."""
    cohort = cohort_of(learner, (ALL_0, ALL_2, ALL_1), FIRST)
    learner.begin(cohort)
    guidance = Guidance({"clusters": np.stack(heads)})
    context = learner.context(guidance, cohort)
    train_cohort(learner, cohort, context)
    return learner.contribution(cohort, context).arrays


CLUSTERS = [says(-1, 1, -1), says(-1, -1, 1), says(1, -1, -1)]


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
        cohort = cohort_of(learner, (client,), server_round)
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
    for row, client in enumerate((ALL_0, ALL_2, ALL_1)):
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
    cohort = cohort_of(learner, (ALL_0, ALL_2), FIRST)
    guidance = Guidance({"heads": says(1, 0, 0)[None]}, clients=["a"])
    assert learner.receive(cohort, guidance)
    cohort.memory.local[:] = torch.from_numpy(says(0, 1, 0))
    metrics = learner.evaluate(cohort, guidance)
    assert metrics[Metric("accuracy")] == [1, 0]
    assert metrics[Metric("accuracy", Model.LOCAL)] == [0, 0]


# --- the server's half ---------------------------------------------------------------------------


EAST: list[float] = [1, 0]
WEST: list[float] = [0, 1]
PAIRS = {"a": "east", "b": "east", "c": "west", "d": "west"}
HEADS: dict[str, Head] = {"a": (4, 0), "b": (8, 4), "c": (0, 2), "d": (2, 2)}
BY_GROUP: dict[str, Sequence[float]] = {"a": EAST, "b": EAST, "c": WEST, "d": WEST}


def ifca(*nodes: str, groups: dict[str, str] | None = None, **changes: Any) -> Any:
    return server(*nodes, groups=groups, **{"method": "ifca", **changes})


def heads(strategy: ClusteredHeadStrategy) -> list[list[float]]:
    return strategy.state()["heads"][:, 0].tolist()  # type: ignore[no-any-return]


def test_everyone_sees_the_same_random_start() -> None:
    played = play(ifca("ab", "cd"), 1, HEADS, chosen=BY_GROUP)
    shown = [guidance.arrays["clusters"] for guidance in played.train.values()]
    assert shown[0].shape == (2, 1, 2)
    np.testing.assert_array_equal(shown[0], shown[1])
    assert np.unique(shown[0]).size == 4
    np.testing.assert_array_equal(shown[0], ifca("abcd").state()["heads"])
    with_seed_1 = ifca("abcd", seed=1).state()["heads"]
    assert not np.array_equal(shown[0], with_seed_1)


def test_a_cluster_is_the_weighted_mean_of_those_who_chose_it() -> None:
    strategy = ifca("ab", "cd", groups=PAIRS)
    played = play(strategy, 1, HEADS, samples={"a": 6, "b": 2}, chosen=BY_GROUP)
    assert heads(strategy) == [[5, 1], [1, 2]]  # (6·a + 2·b) / 8, (c + d) / 2
    assert played.sent == {"a": [5, 1], "b": [5, 1], "c": [1, 2], "d": [1, 2]}
    assert strategy.federation.history.log.figures == {"clusters": 2.0, "rand_index": 1.0}


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "clipped-mean", "krum"])
def test_a_rule_makes_a_clusters_head_whatever_samples_its_clients_claim(rule: str) -> None:
    """The middle of (4, 0), (8, 4) and (−900, 900) is (4, 4)."""
    changes = {"aggregation.rule": rule, "aggregation.hostile-share": 0.4}
    strategy = ifca("ab", "cd", groups=PAIRS, **changes)
    chosen = {**BY_GROUP, "c": EAST}
    heads_sent: dict[str, Head] = {**HEADS, "c": (-900, 900)}
    play(strategy, 1, heads_sent, samples={"a": 1, "b": 1, "c": 8}, chosen=chosen)
    assert heads(strategy)[0] == [4, 4]


def test_the_next_round_shows_the_means_and_averages_over_the_rounds() -> None:
    strategy = ifca("abcd")
    play(strategy, 1, HEADS, chosen=BY_GROUP)  # (6, 2) and (1, 2)
    second: dict[str, Head] = {"a": (0, 0), "b": (0, 0), "c": (5, 5), "d": (5, 5)}
    played = play(strategy, 2, second, chosen=BY_GROUP)
    assert played.train[1].arrays["clusters"][:, 0].tolist() == [[6, 2], [1, 2]]
    assert heads(strategy) == [[3, 1], [3, 3.5]]
    third = dict.fromkeys("abcd", (9.0, 9.0))
    play(strategy, 3, third, chosen=BY_GROUP)
    np.testing.assert_allclose(heads(strategy), [[5, 11 / 3], [5, 16 / 3]], rtol=1e-6)


def test_a_cluster_that_nobody_chose_keeps_its_head() -> None:
    strategy = ifca("abcd")
    start = heads(strategy)
    play(strategy, 1, HEADS, chosen=dict.fromkeys("abcd", EAST))
    assert heads(strategy) == [[3.5, 2], start[1]]
    play(strategy, 2, dict.fromkeys("abcd", (2.0, 0.0)), chosen=dict.fromkeys("abcd", WEST))
    # Its mean begins with those who chose it, not with the random start.
    assert heads(strategy) == [[3.5, 2], [2, 0]]


def test_a_client_may_change_its_cluster() -> None:
    strategy = ifca("abcd", groups=PAIRS)
    play(strategy, 1, HEADS, chosen=BY_GROUP)
    heads_sent = play(strategy, 2, HEADS, chosen={**BY_GROUP, "a": WEST}).sent
    assert heads_sent["a"] == heads_sent["c"] != heads_sent["b"]
    assert strategy.state()["chosen"].tolist() == [[0, 1], [1, 0], [0, 1], [0, 1]]
    artefact = strategy.findings()["clusters"]
    assert artefact["labels"].tolist() == [[0, 0, 1, 1], [1, 0, 1, 1]]
    np.testing.assert_allclose(artefact["rand_index"], [1, 3 / 6])
    assert np.isnan(artefact["forgetting_factor"]).all()
    assert "similarity" not in artefact


def test_who_does_not_answer_neither_counts_nor_gets_a_head() -> None:
    strategy = ifca("ab", "cd")
    play(strategy, 1, HEADS, chosen=BY_GROUP)
    heads_sent = play(strategy, 2, {"a": (0, 0), "b": (0, 0)}, chosen=BY_GROUP).sent
    assert set(heads_sent) == {"a", "b"}
    assert heads(strategy) == [[3, 1], [1, 2]]
    assert len(strategy.findings()["clusters"]["labels"][1]) == 4  # they are where they were


def test_who_left_does_not_count_until_the_return() -> None:
    """a and b are in one cluster but belong apart. Without them the rest is right."""
    strategy = ifca("ab", "cd", groups={**PAIRS, "b": "south"})
    play(strategy, 1, HEADS, chosen=BY_GROUP)
    assert strategy.federation.history.log.figures["rand_index"] == 5 / 6
    leave(strategy, 1)
    play(strategy, 2, HEADS, chosen=BY_GROUP)
    assert strategy.federation.history.log.figures["rand_index"] == 1
    come_back(strategy, 1)
    play(strategy, 3, {"c": HEADS["c"]}, chosen=BY_GROUP)
    assert strategy.federation.history.log.figures["rand_index"] == 5 / 6
    labels = strategy.findings()["clusters"]["labels"].tolist()
    assert labels == [[0, 0, 1, 1], [-1, -1, 1, 1], [0, 0, 1, 1]]


def flsc(**changes: Any) -> Any:
    return ifca("ab", "cd", groups=PAIRS, **{"method": "flsc", "fed-react.clusters": 3, **changes})


TWO_EACH: dict[str, Sequence[float]] = {
    "a": [1, 1, 0],
    "b": [1, 0, 1],
    "c": [0, 1, 1],
    "d": [0, 1, 1],
}


def test_an_flsc_client_gets_the_mean_of_its_clusters_heads() -> None:
    strategy = flsc()
    heads_sent = play(strategy, 1, HEADS, chosen=TWO_EACH).sent
    np.testing.assert_allclose(heads(strategy), [[6, 2], [2, 4 / 3], [10 / 3, 8 / 3]], rtol=1e-6)
    expected = {"a": [4, 5 / 3], "b": [14 / 3, 7 / 3], "c": [8 / 3, 2], "d": [8 / 3, 2]}
    for name, head in expected.items():
        np.testing.assert_allclose(heads_sent[name], head, rtol=1e-6)
    # Who is in several clusters has no Rand index.
    assert strategy.federation.history.log.figures == {"clusters": 3.0}
    assert strategy.findings() == {}


def test_flsc_with_an_overlap_of_one_is_ifca() -> None:
    plain = ifca("ab", "cd", groups=PAIRS)
    flsc_of_one = flsc(**{"fed-react.clusters": 2, "fed-react.overlap": 1})
    assert (
        play(plain, 1, HEADS, chosen=BY_GROUP).sent
        == play(flsc_of_one, 1, HEADS, chosen=BY_GROUP).sent
    )
    assert flsc_of_one.federation.history.log.figures == plain.federation.history.log.figures


@pytest.mark.parametrize(
    "choice", [[0, 0], [1, 1], [0.5, 0.5], [2, 0], [-1, 1], [2, -1], [1, 1e-9]], ids=str
)
def test_a_choice_that_is_none_is_refused_and_its_head_counts_nowhere(choice: list[float]) -> None:
    strategy = ifca("ab", "cd", groups=PAIRS)
    heads_sent = play(
        strategy, 1, {**HEADS, "b": (999, 999)}, chosen={**BY_GROUP, "b": choice}
    ).sent
    assert heads(strategy) == [[4, 0], [1, 2]]
    assert set(heads_sent) == {"a", "c", "d"}
    (refusal,) = strategy.federation.history.log.refused
    assert (refusal.node, refusal.client) == ("node-1", "b")
    assert refusal.reason.startswith("chose clusters [")
    assert refusal.reason.endswith("], expected 1 of 2")
    assert strategy.state()["names"].tolist() == ["a", "c", "d"]
    # It is asked again and evaluated with its own head meanwhile.
    assert play(strategy, 2, HEADS, chosen=BY_GROUP).sent["b"] == [5, 1]


def test_flsc_refuses_a_client_that_chose_another_number_of_clusters() -> None:
    strategy = flsc()
    chosen = {**TWO_EACH, "a": [1, 0, 0], "b": [1, 1, 1]}
    assert set(play(strategy, 1, HEADS, chosen=chosen).sent) == {"c", "d"}
    assert [refusal.client for refusal in strategy.federation.history.log.refused] == ["a", "b"]


def test_a_round_in_which_nobody_chose_changes_nothing() -> None:
    strategy = ifca("abcd")
    before = heads(strategy)
    assert play(strategy, 1, HEADS, chosen=dict.fromkeys("abcd", (0, 0))).sent == {}
    assert heads(strategy) == before
    assert strategy.findings() == {}
    restored = ifca("abcd")
    restored.restore(strategy.state())
    for each_strategy in (strategy, restored):  # the set of clients that reported is restored
        play(each_strategy, 2, {"b": HEADS["b"]}, chosen={"b": EAST})
    assert restored.state().keys() == strategy.state().keys()
    assert restored.state()["heard/names"].tolist() == ["a", "b", "c", "d"]
