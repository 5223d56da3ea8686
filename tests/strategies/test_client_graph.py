"""The graph over clients at the server: asked for once, the same by every source's rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.round import Round
from fedproto_app.core.sends import Sends
from fedproto_app.engine.local import LocalGrid, nodes_sharing
from fedproto_app.maths.graph import weights_of_profiles
from fedproto_app.server.federation import Federation
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.client_graph import PROFILE, ClientGraph, profile
from fedproto_app.strategies.common.federation import Ask
from fedproto_app.strategies.solo import SoloLearner, SoloStrategy
from fedproto_app.tasks.forecasting.task import mean_day
from fedproto_app.tasks.table import load_shard, make_task
from tests.local_grid import small_settings
from tests.strategies.one_node import one_node


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solo's clients answer the question for a profile."""
    answer_by(monkeypatch, lambda self, cohort, order: profile(cohort, self.task))


def answer_by(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    declared = [Sends("profile", {PROFILE: (24,)}, when="question")]
    monkeypatch.setattr(SoloLearner, "sends", classmethod(lambda cls, section, sizes: declared))
    monkeypatch.setattr(SoloLearner, "answer", answer, raising=False)


def federation_of(tmp_path: Path, **changes: Any) -> tuple[Federation, LocalGrid, ClientGraph]:
    settings = small_settings(tmp_path, method="solo", **changes)
    grid = LocalGrid(settings, nodes_sharing(settings.data, 2, tmp_path / "state"))
    federation = Federation(settings, "run", "token")
    federation.members.await_nodes(grid)
    return federation, grid, ClientGraph(settings, federation)


class Completing(SoloStrategy):
    """Completes a graph before each round."""

    graph: ClientGraph

    def begin(self, round_: Round, ask: Ask) -> None:
        self.graph.complete(round_, ask)


def complete(graph: ClientGraph, federation: Federation, grid: LocalGrid, number: int = 1) -> None:
    settings = federation.settings
    strategy = Completing(settings, settings.method_settings, federation)
    strategy.graph = graph
    strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)


@pytest.mark.usefixtures("answering")
def test_every_client_sends_its_mean_day_once(tmp_path: Path) -> None:
    federation, grid, graph = federation_of(tmp_path, **{"graph.neighbours": 3})
    keys = federation.members.clients()
    assert not graph.adjacency(keys).any()
    complete(graph, federation, grid)
    assert federation.history.log.parameters_up == 8 * 24
    complete(graph, federation, grid)
    assert federation.history.log.parameters_up == 8 * 24

    settings = federation.settings
    shard = load_shard(settings, 0, 1)
    task = make_task(settings, shard.shape)
    clients = sorted(shard.clients.values(), key=lambda client: -task.steps(client, 1))
    days = mean_day(task.gather(clients, 1)).numpy()
    day_of = {client.name: day for client, day in zip(clients, days, strict=True)}
    stacked = np.stack([day_of[key.client] for key in keys])
    np.testing.assert_array_equal(graph.places(keys), stacked)
    expected = weights_of_profiles(stacked.astype(np.float64), 3)
    np.testing.assert_array_equal(graph.adjacency(keys), expected)
    two_keys = [keys[5], keys[0]]
    assert graph.adjacency(two_keys)[0, 1] == expected[5, 0]

    restored = ClientGraph(settings, federation)
    restored.restore({"other": np.zeros(1), **graph.state()})
    np.testing.assert_array_equal(restored.adjacency(keys), expected)


@pytest.mark.usefixtures("answering")
def test_noise_changes_what_is_sent_by_its_size(tmp_path: Path) -> None:
    plain, noisy = (
        federation_of(tmp_path / name, **{"graph.noise": noise, "rounds": 1})
        for name, noise in (("plain", 0.0), ("noisy", 0.5))
    )
    days = []
    for federation, grid, graph in (plain, noisy):
        complete(graph, federation, grid)
        days.append(graph.places(federation.members.clients()))
    assert (days[1] - days[0]).std() == pytest.approx(0.5, rel=0.15)


def test_a_profile_that_cannot_be_true_is_refused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(self: SoloLearner, cohort: Any, order: Any) -> Any:
        contribution = profile(cohort, self.task)
        contribution.arrays[PROFILE][0] = 500
        return contribution

    answer_by(monkeypatch, answer)
    federation, grid, graph = federation_of(tmp_path)
    complete(graph, federation, grid)
    assert [refusal.reason for refusal in federation.history.log.refused] == 2 * [
        "its profile holds ±500, more than 100"
    ]
    keys = federation.members.clients()
    liars = [row for row, key in enumerate(keys) if not graph.adjacency(keys)[row].any()]
    assert {keys[row].client for row in liars} >= {
        refusal.client for refusal in federation.history.log.refused
    }
    complete(graph, federation, grid, 2)
    assert len(federation.history.log.refused) == 2


def test_places_and_files_ask_nobody(tmp_path: Path) -> None:
    """NAMES are a, b, c and "late"; who comes later and is unknown has no edges."""
    path = tmp_path / "places.csv"
    path.write_text("name,x,y\na,0,0\nb,1,0\nc,4,0\nlate,4,1\n")
    places = {"graph.source": "positions", "graph.path": str(path)}
    federation = one_node(settings_from(places))
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
    graph.complete(None, 1)  # type: ignore[arg-type] # no message is sent
    assert graph.state() == {}


def test_who_takes_the_name_of_anothers_client_gets_no_place_in_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "places.csv"
    path.write_text("name,x,y\na,0,0\nb,1,0\nc,4,0\nlate,4,1\n")
    federation = one_node(settings_from({"graph.source": "positions", "graph.path": str(path)}))
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
