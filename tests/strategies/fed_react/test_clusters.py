"""The server of Fed-REACT, Algorithm 2, worked by hand on heads of two values."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from fedproto_app.core.errors import FederationError
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.clustering import Cosine, head_similarity
from fedproto_app.settings import settings_from
from fedproto_app.strategies.fed_react import strategy as evolutionary_cluster
from fedproto_app.strategies.fed_react.strategy import Affect, affect, probe_vector
from fedproto_app.tasks.sequences.task import SequenceTask
from fedproto_app.tasks.table import make_task
from tests.strategies.fed_react.by_hand import (
    APART,
    PAIRS,
    THREE_PAIRS,
    Head,
    admit,
    at,
    clusters,
    come_back,
    figures,
    heads_at,
    leave,
    mean_head,
    play,
    server,
    together,
)


def test_the_first_round_finds_clusters_and_sends_nothing() -> None:
    strategy = server("ab", "cd", groups=PAIRS)
    assert play(strategy, 1, APART).sent == {}
    angles = np.deg2rad([0, 10, 90, 100])
    similarity = np.cos(angles[:, None] - angles)
    np.testing.assert_allclose(strategy.state()["similarity"], similarity, atol=1e-6)
    assert clusters(strategy) == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert figures(strategy) == {
        "rand_index": 1.0,
        "forgetting_factor": 0.0,
        "clusters": 2.0,
        "clients_sent_a_head": 0.0,
    }


def test_a_cluster_with_the_clients_of_before_gets_its_mean_head_weighted_by_samples() -> None:
    strategy = server("ab", "cd")
    play(strategy, 1, APART)
    heads = {"a": (1.0, 0.0), "b": (1.0, 0.4), "c": (0.0, 2.0), "d": (0.2, 1.0)}
    heads_sent = play(strategy, 2, heads, {"a": 6, "b": 2, "c": 4, "d": 4}).sent
    np.testing.assert_allclose(heads_sent["a"], [1.0, 0.1], atol=1e-7)  # (6·a + 2·b) / 8
    np.testing.assert_allclose(heads_sent["c"], [0.1, 1.5], atol=1e-7)
    assert (heads_sent["b"], heads_sent["d"]) == (heads_sent["a"], heads_sent["c"])
    assert figures(strategy)["clients_sent_a_head"] == 4.0


def test_a_cluster_that_changed_sends_nothing_until_it_is_the_same_again() -> None:
    """Client c goes over to a and b, and e and f stay what they were."""
    strategy = server("abcdef", **{"fed-react.clusters": 3})
    moved = {**THREE_PAIRS, "c": at(3)[0]}
    play(strategy, 1, THREE_PAIRS)
    assert set(play(strategy, 2, THREE_PAIRS).sent) == set("abcdef")
    before = clusters(strategy)

    assert set(play(strategy, 3, moved).sent) == {"e", "f"}
    assert together(strategy) == {"abc", "d", "ef"}
    assert clusters(strategy) == {**before, "c": before["a"]}  # clusters keep their names

    heads_sent = play(strategy, 4, moved).sent
    assert set(heads_sent) == set("abcdef")
    assert heads_sent["c"] == mean_head(moved, "abc")


def test_the_last_round_sends_whatever_changed() -> None:
    strategy = server("abcdef", **{"fed-react.clusters": 3, "rounds": 3})
    play(strategy, 1, THREE_PAIRS)
    play(strategy, 2, THREE_PAIRS)
    assert set(play(strategy, 3, {**THREE_PAIRS, "c": at(3)[0]}).sent) == set("abcdef")
    assert together(strategy) == {"abc", "d", "ef"}


@pytest.mark.parametrize("learned", [0, 7])
def test_a_run_of_one_round_sends_at_once(learned: int) -> None:
    """The last round is counted with the first phase's."""
    encoder = {"encoder.path": "", "encoder.rounds": learned} if learned else {}
    strategy = server("abcd", rounds=1, **encoder)
    assert set(play(strategy, learned + 1, APART).sent) == set("abcd")


def test_a_snapshot_sends_every_round_and_forgets_the_one_before() -> None:
    strategy = server("abcd", **{"fed-react.clustering": "snapshot"})
    assert set(play(strategy, 1, APART).sent) == set("abcd")
    second = heads_at("abcd", 0, 90, 5, 95)
    heads_sent = play(strategy, 2, second).sent
    assert together(strategy) == {"ac", "bd"}
    assert heads_sent["c"] == mean_head(second, "ac")
    cosine = np.cos(np.deg2rad(90))
    assert strategy.state()["similarity"][0, 1] == pytest.approx(cosine, abs=1e-6)
    assert figures(strategy)["forgetting_factor"] == 0.0


@pytest.mark.parametrize("kind", get_args(Cosine))
def test_heads_are_compared_as_the_settings_say(kind: Cosine) -> None:
    strategy = server("abcd", **{"fed-react.similarity": kind})
    play(strategy, 1, APART)
    state = strategy.state()
    np.testing.assert_array_equal(state["similarity"], head_similarity(state["heads"], kind))


def test_affect_gets_the_settings_and_in_the_toolbox_the_clusters_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[Any, ...]] = []

    def spy(past: Any, observed: Any, clusters: int, *more: Any) -> Affect:
        calls.append(tuple(a.tolist() if isinstance(a, np.ndarray) else a for a in more))
        return affect(past, observed, clusters, *more)

    monkeypatch.setattr(evolutionary_cluster, "affect", spy)
    for kind in ("adaptive", "all-rounds", 0.5, "toolbox"):
        changes = {"fed-react.affect-iterations": 2, "fed-react.forgetting": kind}
        strategy = server("abcd", **changes)
        play(strategy, 1, APART)
    assert [arguments[0] for arguments in calls] == [2, 2]
    admit(strategy.federation, "e")
    play(strategy, 2, {**heads_at("abcd", 0, 90, 5, 95), "e": at(3)[0]})
    assert calls[-1] == (2, [0, 0, 1, 1, 2], True)


TURNED = heads_at("abcd", 0, 40, 90, 130)


def cosines(*degrees: float) -> np.ndarray:
    angles = np.deg2rad(degrees)
    return np.cos(angles[:, None] - angles)


@pytest.mark.parametrize("share", [0, 0.25, 1])
def test_a_fixed_forgetting_factor(share: float) -> None:
    """α_1 is 0, or there would be nothing to cluster."""
    strategy = server("abcd", **{"fed-react.forgetting": share})
    play(strategy, 1, APART)
    assert figures(strategy)["forgetting_factor"] == 0
    play(strategy, 2, TURNED)
    assert figures(strategy)["forgetting_factor"] == share
    first, second = cosines(0, 10, 90, 100), cosines(0, 40, 90, 130)
    expected = share * first + (1 - share) * second
    np.testing.assert_allclose(strategy.state()["similarity"], expected, atol=1e-6)


def test_all_rounds_weigh_the_same_and_a_newcomers_are_its_own() -> None:
    strategy = server("abcd", **{"fed-react.forgetting": "all-rounds"})
    play(strategy, 1, APART)
    admit(strategy.federation, "e")
    rounds = [APART, {**TURNED, "e": at(50)[0]}, {**APART, "e": at(20)[0]}]
    play(strategy, 2, rounds[1])
    resumed = server("abcd", "e", **{"fed-react.forgetting": "all-rounds"})
    resumed.restore(strategy.state())
    for strategy_or_copy in (strategy, resumed):
        play(strategy_or_copy, 3, rounds[2])
        assert figures(strategy_or_copy)["forgetting_factor"] == pytest.approx(2 / 3)
        similarity = strategy_or_copy.state()["similarity"]
        old, turned = cosines(0, 10, 90, 100), cosines(0, 40, 90, 130)
        np.testing.assert_allclose(similarity[:4, :4], (old + turned + old) / 3, atol=1e-6)
        newcomer = (cosines(0, 40, 90, 130, 50) + cosines(0, 10, 90, 100, 20)) / 2
        np.testing.assert_allclose(similarity[4], newcomer[4], atol=1e-6)
        assert strategy_or_copy.state()["rounds-together"][3].tolist() == [3, 3, 3, 3, 2]


def test_a_head_for_every_cluster_whoever_is_in_it() -> None:
    """Line 10 is not asked: c gets its new cluster's mean, which holds both rounds."""
    changes = {"fed-react.clusters": 3, "fed-react.history": "all", "fed-react.smoothing": "mean"}
    strategy = server("abcdef", **changes)
    moved = {**THREE_PAIRS, "c": at(3)[0]}
    first = play(strategy, 1, THREE_PAIRS).sent
    assert set(first) == set("abcdef")
    heads_sent = play(strategy, 2, moved).sent
    assert together(strategy) == {"abc", "d", "ef"}
    mean_now = np.mean([moved[n] for n in "abc"], axis=0)
    np.testing.assert_allclose(heads_sent["c"], (np.array(first["a"]) + mean_now) / 2, atol=1e-6)
    assert heads_sent["c"] == heads_sent["a"]
    np.testing.assert_allclose(heads_sent["d"], (np.array(first["d"]) + moved["d"]) / 2, atol=1e-6)


def test_predictions_are_compared_at_the_servers_own_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the vector 2 a head (w, b) predicts 2w + b. The weights alone would separate a and b."""
    encoders_probed: list[list[str]] = []

    def probe(encoder: Any, task: Any) -> np.ndarray:
        encoders_probed.append(list(encoder))
        return np.array([2.0])

    monkeypatch.setattr(evolutionary_cluster, "probe_vector", probe)
    strategy = server("abcd", **{"fed-react.similarity": "predictions"})
    heads: dict[str, Head] = {"a": (3, 0), "b": (-3, 12), "c": (0, 1), "d": (1, -1)}
    play(strategy, 1, heads)
    assert together(strategy) == {"ab", "cd"}
    play(strategy, 2, heads)
    assert encoders_probed == [["encoder.weight"]]  # once, of what the clients have


@pytest.mark.parametrize("smoothing", ["mean", "forgetting"])
def test_heads_are_smoothed_over_the_rounds_in_which_they_are_sent(smoothing: str) -> None:
    """A1 is the plain mean, A2 weighs the past by α_t, the newest by 1 − α_t, from round 2 on."""
    strategy = server("abc", **{"fed-react.clusters": 1, "fed-react.smoothing": smoothing})
    first: dict[str, Head] = {"a": (1, 0), "b": (1, 0), "c": (1, 0)}
    second: dict[str, Head] = {"a": (4, 0), "b": (1, 0), "c": (1, 0)}
    third: dict[str, Head] = {"a": (3, 0), "b": (6, 0), "c": (0, 9)}
    play(strategy, 1, first)
    assert play(strategy, 2, second).sent["a"] == [2, 0]
    head_sent = play(strategy, 3, third).sent["a"]
    alpha = figures(strategy)["forgetting_factor"]
    # ψ̂_2 is 1 everywhere, and W_3 is 1 for a and b, 0 for c with both: mean 1/3, variance 2/9. By
    # Fed-REACT, eq. 27, α = 6·2/9 / (6·(1 − 1/3)² + 6·2/9).
    assert alpha == pytest.approx(1 / 3, abs=1e-6)
    share = 1 / 2 if smoothing == "mean" else alpha
    np.testing.assert_allclose(head_sent, [share * 2 + (1 - share) * 3, (1 - share) * 3], atol=1e-6)
    next_head = play(strategy, 4, third).sent["a"]
    if smoothing == "mean":
        np.testing.assert_allclose(next_head, [(2 + 3 + 3) / 3, (0 + 3 + 3) / 3], atol=1e-6)


def test_a_new_cluster_under_an_old_number_starts_its_mean_anew() -> None:
    """Two clusters merge, which frees a number for a part of the cluster of c to f."""
    changes = {"fed-react.clusters": 3, "fed-react.clustering": "snapshot"}
    strategy = server("abcdef", **changes, **{"fed-react.smoothing": "mean"})
    play(strategy, 1, heads_at("abcdef", 0, 60, 200, 200, 200, 200))
    assert together(strategy) == {"a", "b", "cdef"}
    second = heads_at("abcdef", 0, 0, 120, 120, 240, 240)
    heads_sent = play(strategy, 2, second).sent
    assert together(strategy) == {"ab", "cd", "ef"}
    assert set(clusters(strategy).values()) == {0, 1, 2}
    split_off = [n for n in "ce" if clusters(strategy)[n] < 2]  # not called as c to f were before
    assert len(split_off) == 1
    np.testing.assert_allclose(heads_sent[split_off[0]], second[split_off[0]], atol=1e-6)
    heir = {"c": "e", "e": "c"}[split_off[0]]
    mean_head = np.mean([at(200)[0], second[heir]], axis=0)
    np.testing.assert_allclose(heads_sent[heir], mean_head, atol=1e-6)


@pytest.mark.parametrize(
    ("count", "expected"), [(1, {"abcd"}), (4, {"a", "b", "c", "d"}), (0, {"ab", "cd"})]
)
def test_one_cluster_one_each_or_as_many_as_the_silhouette_says(
    count: int, expected: set[str]
) -> None:
    strategy = server("ab", "cd", groups=PAIRS, **{"fed-react.clusters": count})
    play(strategy, 1, APART)
    heads_sent = play(strategy, 2, APART).sent
    assert together(strategy) == expected
    for names in expected:
        for name in names:
            assert heads_sent[name] == mean_head(APART, names)
    # Of six pairs, two belong together: C = 1 joins four too many, C = N parts both of them.
    assert figures(strategy)["rand_index"] == pytest.approx({1: 2 / 6, 4: 4 / 6, 0: 1}[count])
    assert figures(strategy)["clusters"] == len(expected)


@pytest.mark.parametrize("groups", [{}, {"a": "east", "b": "east", "c": "north"}])
def test_without_every_group_there_is_no_rand_index(groups: dict[str, str]) -> None:
    strategy = server("abcd", groups=groups)
    play(strategy, 1, APART)
    assert figures(strategy)["rand_index"] is None
    assert np.isnan(strategy.findings()["clusters"]["rand_index"]).all()


@pytest.mark.parametrize("method", ["fed-react", "ifca", "flsc"])
def test_more_clusters_than_clients_are_refused_where_nobody_can_join(method: str) -> None:
    changes = {"method": method, "fed-react.clusters": 5}
    with pytest.raises(FederationError, match=r"fed-react\.clusters = 5: more than the 4 clients"):
        server("ab", "cd", simulated=True, **changes)
    server("ab", "cde", simulated=True, **changes)


@pytest.mark.parametrize("method", ["fed-react", "ifca", "flsc"])
def test_a_deployment_may_begin_with_fewer_clients_than_clusters(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    server("abcde", method=method, **{"fed-react.clusters": 5})
    assert caplog.text == ""
    server("abcd", method=method, **{"fed-react.clusters": 5})
    assert "fed-react.clusters = 5: more than the 4 clients there are so far" in caplog.text


def test_clients_are_a_cluster_each_until_there_are_more() -> None:
    strategy = server("a", "b", **{"fed-react.clusters": 3})
    heads = {**APART, "d": at(92)[0]}
    assert play(strategy, 1, heads).sent == {}
    assert together(strategy) == {"a", "b"}
    admit(strategy.federation, "cd")
    assert set(play(strategy, 2, heads).sent) == {"a", "b"}
    assert together(strategy) == {"a", "b", "cd"}
    assert set(play(strategy, 3, heads).sent) == set("abcd")


def test_evaluations_that_are_rare_get_the_newest_head() -> None:
    strategy = server("abcd", **{"evaluate-every": 4})
    for server_round in (1, 2, 3):
        assert play(strategy, server_round, APART).evaluate == {}
    newest = {name: (2 * x, 2 * y) for name, (x, y) in APART.items()}
    assert play(strategy, 4, newest).sent["a"] == mean_head(newest, "ab")


# --- clients that are away, leave, return or come late -------------------------------------------


def test_a_client_that_is_away_stays_in_its_cluster_with_its_latest_head() -> None:
    strategy = server("ab", "cd")
    play(strategy, 1, APART)
    moved = {"a": at(20)[0], "b": at(30)[0]}
    heads_sent = play(strategy, 2, {**moved, "c": at(110)[0]}).sent
    assert together(strategy) == {"ab", "cd"}
    state = strategy.state()
    np.testing.assert_allclose(state["heads"][3, 0], APART["d"], atol=1e-6)
    assert heads_sent["c"] == mean_head({"c": at(110)[0]}, "c")  # of those who answered alone
    assert heads_sent["d"] == heads_sent["c"]  # and for all who belong to it


def test_clients_of_a_node_that_left_are_clustered_no_more_until_they_return() -> None:
    """Without a and b there is room to tell e from c and d."""
    strategy = server("ab", "cd", groups=PAIRS, **{"fed-react.smoothing": "mean"})
    play(strategy, 1, APART)
    play(strategy, 2, APART)
    first = strategy.state()
    leave(strategy, 1)
    admit(strategy.federation, "e", groups={"e": "south"})
    heads = {**APART, "e": at(150)[0]}
    assert set(play(strategy, 3, heads).sent) == {"c", "d"}  # with the clients of before
    assert clusters(strategy) == {"a": -1, "b": -1, "c": 1, "d": 1, "e": 0}
    assert figures(strategy)["clusters"] == 2.0
    assert figures(strategy)["rand_index"] == 1.0  # of the three
    away = strategy.state()
    np.testing.assert_array_equal(away["heads"][:2], first["heads"][:2])
    np.testing.assert_array_equal(away["similarity"][:2, :4], first["similarity"][:2])
    assert np.isnan(away["similarity"][:2, 4]).all()  # never there together

    come_back(strategy, 1)
    assert play(strategy, 4, heads).sent == {}  # both clusters have changed
    assert clusters(strategy) == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1}
    assert np.isfinite(strategy.state()["similarity"]).all()
    longer = {name: (3 * x, 3 * y) for name, (x, y) in heads.items()}
    heads_sent = play(strategy, 5, longer).sent
    assert set(heads_sent) == set("abcde")
    # Cluster 0 was another's meanwhile, so its mean does not hold round 2.
    assert heads_sent["a"] == mean_head(longer, "ab")

    artefact = strategy.findings()["clusters"]
    assert (artefact["labels"] == -1).tolist() == [
        [False] * 4 + [True],
        [False] * 4 + [True],
        [True] * 2 + [False] * 3,
        [False] * 5,
        [False] * 5,
    ]
    third = artefact["similarity"][2]
    assert np.isnan(third[:2]).all()
    np.testing.assert_array_equal(third[2:, 2:], away["similarity"][2:, 2:])


def test_a_leaver_does_not_weigh_in_alpha() -> None:
    """The outdated head of the absent client e does not affect the connected clients."""
    with_e, without = (server(*nodes) for nodes in (("abcd", "e"), ("abcd",)))
    start = {**APART, "e": at(45)[0]}
    play(with_e, 1, start)
    leave(with_e, 2)
    play(without, 1, APART)
    moved = heads_at("abcd", 3, 15, 80, 104)
    for strategy in (with_e, without):
        play(strategy, 2, moved)
        play(strategy, 3, moved)
    assert figures(with_e)["forgetting_factor"] == figures(without)["forgetting_factor"] > 0
    ours = with_e.state()["similarity"][:4, :4]
    np.testing.assert_array_equal(ours, without.state()["similarity"])


def test_a_cluster_of_which_nobody_answers_gets_nothing() -> None:
    strategy = server("ab", "cd", **{"fed-react.smoothing": "mean"})
    play(strategy, 1, APART)
    play(strategy, 2, APART)
    heads = {"a": (1.0, 0.0), "b": (1.0, 0.0)}
    assert set(play(strategy, 3, heads).sent) == {"a", "b"}
    assert together(strategy) == {"ab", "cd"}
    head_sent = play(strategy, 4, APART).sent["c"]  # its mean is over two rounds, not three
    assert head_sent == mean_head(APART, "cd")


def test_a_round_without_any_answer_changes_nothing() -> None:
    strategy = server("abcd")
    play(strategy, 1, APART)
    before = strategy.state()
    assert play(strategy, 2, {}).sent == {}
    after = strategy.state()
    assert set(before) == set(after)
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])
    assert figures(strategy) == {}


def test_a_newcomer_in_round_3_joins_the_cluster_that_it_is_like() -> None:
    strategy = server("ab", "cd", groups=PAIRS)
    play(strategy, 1, APART)
    play(strategy, 2, APART)
    admit(strategy.federation, "e")
    heads = {**APART, "e": at(95)[0]}
    played = play(strategy, 3, heads)
    assert together(strategy) == {"ab", "cde"}
    assert set(played.sent) == {"a", "b"}  # the cluster of c and d has changed
    similarity = strategy.state()["similarity"]
    assert np.isfinite(similarity).all()
    # For a pair without a past, ψ̂ is W, and for other pairs it contains some of the past.
    np.testing.assert_allclose(similarity[4], np.cos(np.deg2rad([95, 85, 5, 5, 0])), atol=1e-6)
    assert figures(strategy)["rand_index"] is None  # nobody knows where e belongs
    assert set(play(strategy, 4, heads).sent) == set("abcde")


def test_a_newcomer_of_an_earlier_name_is_not_mistaken_for_another() -> None:
    """Rows are in the order of the clients' first report, not of their names."""
    strategy = server("bc", "de")
    heads = heads_at("bcde", 0, 10, 90, 100)
    play(strategy, 1, heads)
    admit(strategy.federation, "a")
    play(strategy, 2, {**heads, "a": at(93)[0]})
    assert strategy.state()["names"].tolist() == list("bcdea")
    assert together(strategy) == {"bc", "ade"}
    artefact = strategy.findings()["clusters"]
    assert artefact["labels"].tolist() == [[0, 0, 1, 1, -1], [0, 0, 1, 1, 1]]
    assert np.isnan(artefact["similarity"][0, 4]).all()


# --- the probe ------------------------------------------------------------------------------------


def task_of(seed: int) -> SequenceTask:
    changes = {"blocks": 2, "channels": 3, "reduced-dim": 4, "output-dim": 5}
    task = make_task(
        settings_from(
            {
                "task": "sequence-regression",
                "method": "fed-react",
                "seed": seed,
                **{f"encoder.{key}": value for key, value in changes.items()},
            }
        ),
        DataShape((2,)),
    )
    assert isinstance(task, SequenceTask)
    return task


def test_the_probe_is_the_seeds_and_the_encoders() -> None:
    task = task_of(0)
    encoder = {name: value.numpy() for name, value in task.initial_encoder().items()}
    vector = probe_vector(encoder, task)
    assert vector.shape == (5,)
    assert np.array_equal(vector, probe_vector(encoder, task))
    assert not np.allclose(vector, probe_vector(encoder, task_of(1)))
    shifted = {**encoder, "encoder.linear.bias": encoder["encoder.linear.bias"] + 1}
    np.testing.assert_allclose(probe_vector(shifted, task), vector + 1, rtol=1e-5)


def test_an_encoder_that_makes_no_numbers() -> None:
    task = task_of(0)
    encoder = {name: value.numpy() for name, value in task.initial_encoder().items()}
    encoder["encoder.linear.bias"] = np.full(5, np.inf, np.float32)
    with pytest.raises(FederationError, match=r"fed-react\.similarity = 'predictions'"):
        probe_vector(encoder, task)
