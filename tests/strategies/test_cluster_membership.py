"""Clients that are away, leave, return or come late, in the clusters of Fed-REACT, Algorithm 2."""

from __future__ import annotations

import numpy as np

from tests.strategies.clusters_by_hand import APART, PAIRS, clusters, figures, together
from tests.strategies.heads_by_hand import admit, at, come_back, leave, play, server


def test_a_client_that_is_away_stays_in_its_cluster_with_its_latest_head() -> None:
    strategy = server("ab", "cd")
    play(strategy, 1, APART)
    moved = {"a": at(20)[0], "b": at(30)[0]}
    heads_sent = play(strategy, 2, {**moved, "c": at(110)[0]}).sent
    assert together(strategy) == {"ab", "cd"}
    state = strategy.state()
    np.testing.assert_allclose(state["heads"][3, 0], APART["d"], atol=1e-6)
    np.testing.assert_allclose(
        heads_sent["c"], at(110)[0], atol=1e-6
    )  # of those who answered alone
    assert heads_sent["d"] == heads_sent["c"]  # and for all who belong to it


def test_clients_of_a_node_that_left_are_clustered_no_more_until_they_return() -> None:
    """Without a and b there is room to tell e from c and d."""
    strategy = server("ab", "cd", groups=PAIRS, **{"fed-react.smoothing": "mean"})
    play(strategy, 1, APART)
    play(strategy, 2, APART)
    first = strategy.state()
    leave(strategy, 1)
    admit(strategy.federation, "e", {"e": "south"})
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
    np.testing.assert_allclose(
        heads_sent["a"], np.mean([longer["a"], longer["b"]], axis=0), atol=1e-6
    )

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
    moved = dict(zip("abcd", at(3, 15, 80, 104), strict=True))
    for strategy in (with_e, without):
        play(strategy, 2, moved)
        play(strategy, 3, moved)
    assert figures(with_e)["forgetting_factor"] == figures(without)["forgetting_factor"] > 0
    ours = with_e.state()["similarity"][:4, :4]
    np.testing.assert_array_equal(ours, without.state()["similarity"])


def test_a_connected_client_that_was_not_asked_stays_in_with_its_latest_head() -> None:
    strategy = server("a", "b", "c", "d", participation=0.25)
    play(strategy, 1, APART)  # newcomers are all asked
    played = play(strategy, 2, APART)
    assert len(played.train) == 1
    assert together(strategy) == {"ab", "cd"}
    assert len(played.sent) == 2  # the cluster of the one who answered


def test_a_cluster_of_which_nobody_answers_gets_nothing() -> None:
    strategy = server("ab", "cd", **{"fed-react.smoothing": "mean"})
    play(strategy, 1, APART)
    play(strategy, 2, APART)
    heads = {"a": (1.0, 0.0), "b": (1.0, 0.0)}
    assert set(play(strategy, 3, heads).sent) == {"a", "b"}
    assert together(strategy) == {"ab", "cd"}
    head_sent = play(strategy, 4, APART).sent["c"]  # its mean is over two rounds, not three
    np.testing.assert_allclose(head_sent, np.mean([APART["c"], APART["d"]], axis=0), atol=1e-6)


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
    # For a pair without a past, ψ̂ is W; for other pairs it contains some of the past.
    np.testing.assert_allclose(similarity[4], np.cos(np.deg2rad([95, 85, 5, 5, 0])), atol=1e-6)
    assert figures(strategy)["rand_index"] is None  # nobody knows where e belongs
    assert set(play(strategy, 4, heads).sent) == set("abcde")


def test_a_newcomer_of_an_earlier_name_is_not_mistaken_for_another() -> None:
    """Rows are in the order of the clients' first report, not of their names."""
    strategy = server("bc", "de")
    heads = dict(zip("bcde", at(0, 10, 90, 100), strict=True))
    play(strategy, 1, heads)
    admit(strategy.federation, "a")
    play(strategy, 2, {**heads, "a": at(93)[0]})
    assert strategy.state()["names"].tolist() == list("bcdea")
    assert together(strategy) == {"bc", "ade"}
    artefact = strategy.findings()["clusters"]
    assert artefact["labels"].tolist() == [[0, 0, 1, 1, -1], [0, 0, 1, 1, 1]]
    assert np.isnan(artefact["similarity"][0, 4]).all()
