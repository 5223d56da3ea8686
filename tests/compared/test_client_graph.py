"""The graph over clients at the server: profiles asked for once, places and weights of a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.core.sends import Expected
from fedproto_app.server.federation import Federation
from fedproto_app.settings import settings_from
from fedproto_app.tasks.forecasting.task import mean_day
from fedproto_compared.common.adjacency import weights_of_profiles
from fedproto_compared.common.client_graph import PROFILE, ClientGraph, profile
from tests.helpers.tiny_cohort import tiny_cohort, tiny_learner
from tests.strategies.server_half import NAMES, one_node

PERIOD = 4
DAYS = np.random.default_rng(0).normal(size=(4, PERIOD)).astype(np.float32)


def nobody_is_asked(*_: object, **__: object) -> list[ClientReply]:
    """For a graph that needs no profiles."""
    raise AssertionError("this graph asks nothing")


def asking(days: np.ndarray[Any, Any], names: list[str]) -> Any:
    """Clients that answer the question for their profile, once in a run."""

    def ask(keys: Any, guide: Any, expected: Expected, *, once_per_run: bool) -> list[ClientReply]:
        keys = list(keys)
        assert once_per_run
        assert expected.per_client == {PROFILE: (PERIOD,)}
        assert guide(keys).options == {PROFILE: 1.0}
        names.extend(key.client for key in keys)
        row_of = {name: row for row, name in enumerate([*NAMES, "late"])}
        return [ClientReply(key, 4, {PROFILE: days[row_of[key.client]]}) for key in keys]

    return ask


def graph_of_profiles(ask: Any = nobody_is_asked) -> tuple[ClientGraph, list[ClientKey]]:
    federation = one_node(settings_from({"data.period": PERIOD, "graph.neighbours": 3}))
    federation.asking = lambda server_round: ask  # type: ignore[method-assign]
    return ClientGraph(federation.settings, federation), federation.members.clients()


def test_every_client_is_asked_for_its_profile_once() -> None:
    names: list[str] = []
    graph, keys = graph_of_profiles(asking(DAYS, names))
    assert not graph.adjacency(keys).any()
    for number in (1, 2):
        graph.complete(Round(number))
        assert names == [*NAMES, "late"]
    np.testing.assert_array_equal(graph.places(keys), DAYS)
    expected = weights_of_profiles(DAYS.astype(np.float64), 3)
    np.testing.assert_array_equal(graph.adjacency(keys), expected)
    assert graph.adjacency([keys[3], keys[0]])[0, 1] == expected[3, 0]
    resumed, _ = graph_of_profiles()
    resumed.restore({"other": np.zeros(1), **graph.state()})
    np.testing.assert_array_equal(resumed.adjacency(keys), expected)


def test_a_profile_is_the_mean_day_with_noise_of_the_set_size() -> None:
    profiles = []
    for noise in (0.0, 0.5):
        learner = tiny_learner("cnfgnn", **{"graph.noise": noise})
        cohort = tiny_cohort(learner)
        profiles.append(profile(cohort, learner.task).arrays[PROFILE])
    np.testing.assert_array_equal(profiles[0], mean_day(cohort.samples).numpy())
    assert (profiles[1] - profiles[0]).std() == pytest.approx(0.5, rel=0.5)


def test_a_profile_that_cannot_be_true_is_refused_once() -> None:
    lies = DAYS.copy()
    lies[1] = 500
    graph, keys = graph_of_profiles(asking(lies, []))
    refused = {}
    for number in (1, 2):
        round_ = Round(number)
        graph.complete(round_)
        refused[number] = round_.refused
    assert refused == {1: {keys[1]: "its profile holds ±500, more than 100"}, 2: {}}
    assert not graph.adjacency(keys)[1].any()


def with_places(tmp_path: Path) -> Federation:
    path = tmp_path / "places.csv"
    path.write_text("name,x,y\na,0,0\nb,1,0\nc,4,0\nlate,4,1\n")
    return one_node(settings_from({"graph.source": "positions", "graph.path": str(path)}))


def test_places_and_files_ask_nobody(tmp_path: Path) -> None:
    """NAMES are a, b, c and "late". Who comes later and is unknown has no edges."""
    federation = with_places(tmp_path)
    graph = ClientGraph(federation.settings, federation)
    keys = federation.members.clients()
    assert graph.adjacency(keys)[0, 1] > 0 == graph.adjacency(keys)[0, 2]
    assert graph.places(keys).tolist() == [[0, 0], [1, 0], [4, 0], [4, 1]]
    edges = tmp_path / "edges.csv"
    edges.write_text("late,c,b,a\n0,1,2,3\n1,0,4,5\n2,4,0,6\n3,5,6,0\n")
    settings = settings_from({"graph.source": "file", "graph.path": str(edges)})
    graph = ClientGraph(settings, federation)
    assert graph.adjacency(keys)[0].tolist() == [0, 6, 5, 3]
    assert graph.places(keys).shape == (4, 0)
    stranger = keys[0]._replace(client="stranger")
    assert graph.adjacency([keys[0], stranger]).tolist() == [[0, 0], [0, 0]]
    graph.complete(Round())
    assert graph.state() == {}


def test_who_takes_the_name_of_anothers_client_gets_no_place_in_the_graph(tmp_path: Path) -> None:
    federation = with_places(tmp_path)
    true = federation.members.clients()
    thief = replace(
        federation.members.roster.members[true[0].node].clients, label="a-thief"
    )  # sorts first
    federation.members.roster.connected.add(2)
    federation.members.roster.admit(2, thief)
    graph = ClientGraph(federation.settings, federation)
    keys = federation.members.clients()
    assert [key.node for key in keys[:2]] == ["a-thief", true[0].node]
    weights = graph.adjacency(keys)
    for row, key in enumerate(keys):
        assert weights[row].any() == weights[:, row].any() == (key in true)
        assert np.isnan(graph.places(keys)[row]).all() == (key not in true)
    refusals = {(refusal.client, refusal.reason) for refusal in federation.history.log.refused}
    assert len(federation.history.log.refused) == len(refusals) == 4  # each once
    assert (
        "a",
        f"its place in the graph is taken: node {true[0].node} declared its name first",
    ) in refusals

    resumed = one_node(federation.settings)
    resumed.members.roster.facts.clear()
    resumed.recall(federation.memory())
    graph = ClientGraph(federation.settings, resumed)
    np.testing.assert_array_equal(graph.adjacency(keys), weights)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"graph.source": "file"}, SettingsError, "graph.path is empty"),
        ({"graph.path": "x"}, SettingsError, "graph.path = 'x': graph.source = 'profiles'"),
        ({"graph.source": "positions", "graph.names": "x"}, SettingsError, "graph.names = 'x'"),
        ({"graph.source": "positions"}, DataError, "client 'a' is not named as a cell"),
        ({"graph.source": "file", "graph.path": "FILE"}, DataError, "has no entry of client 'c'"),
    ],
)
def test_what_is_missing_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("late,b,a\n0,1,2\n1,0,4\n2,4,0\n")
    changes_with_path = {
        key: str(edges) if value == "FILE" else value for key, value in changes.items()
    }

    def make() -> ClientGraph:
        federation = one_node(settings_from(changes_with_path))
        if simulated:
            monkeypatch.setattr(federation.members.roster, "partitions", lambda: 1)
        return ClientGraph(federation.settings, federation)

    simulated = True
    with pytest.raises(error, match=message):
        make()
    simulated = False  # at sites, where one stranger must not end everybody's run
    if error is DataError:
        make()
