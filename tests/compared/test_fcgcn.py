"""FCGCN's network of a community, and the samples that a community's clients share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.errors import DataError, FedProtoError
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.shape import DataShape
from fedproto_app.data.windows import make_windows
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.node.store import ClientStore
from fedproto_app.serving import NodeState, forecast
from fedproto_app.settings import Settings, settings_from
from fedproto_compared.common.adjacency import normalised
from fedproto_compared.fcgcn import CommunityGcn, communities_of, with_communities

WINDOWS = WindowLayout(close=3, distances=3, horizon=1, period=24, times=0)
PATH = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])


def test_it_has_the_paper_settings_513_values() -> None:
    model = CommunityGcn(64, WINDOWS)
    parameters = model.initial_parameters(torch.Generator().manual_seed(0))
    assert sum(value.numel() for value in parameters.values()) == 6 * 64 + 64 + 64 + 1 == 513


@pytest.mark.parametrize("times", [0, 1])
def test_a_members_sample_gives_its_row_of_the_output(times: int) -> None:
    """Three clients, each with a model of its own here, against products of whole matrices."""
    layout = WindowLayout(close=2, distances=1, horizon=2, period=3, times=times)
    model = CommunityGcn(5, layout)
    draw = torch.Generator().manual_seed(0)
    initial = model.initial_parameters(draw)
    parameters = {n: torch.randn(3, *v.shape, generator=draw) for n, v in initial.items()}
    near = torch.from_numpy(normalised(PATH.numpy()))
    windows = torch.randn(7, 3, 4, generator=draw)  # of 7 times, 3 members, v = 2 + 1·2
    phases = torch.arange(7) % 3
    calendar = torch.eye(3)[phases][:, None].expand(-1, 3, -1)[..., : 3 * times]

    mixed = near @ windows
    samples = torch.cat(
        [
            torch.cat([mixed, torch.zeros(7, 1, 4)], dim=1).flatten(1).expand(3, -1, -1),
            torch.cat([near, torch.zeros(3, 1)], dim=1)[:, None].expand(-1, 7, -1),
            phases[:, None].float().expand(3, -1, -1)[..., :times],
        ],
        dim=2,
    )
    prediction = model.predict(parameters, model.encode(parameters, samples))
    for client in range(3):
        client_parameters = {name: value[client] for name, value in parameters.items()}
        first = (
            torch.cat([mixed, calendar], dim=2) @ client_parameters["encoder.weight"]
            + client_parameters["encoder.bias"]
        )
        outputs = (
            near @ first.relu() @ client_parameters["decoder.weight"]
            + client_parameters["decoder.bias"]
        )
        torch.testing.assert_close(prediction[client], outputs[:, client])


PERIOD, VALUES = 4, 3  # c + q


def settings_of(**changes: Any) -> Settings:
    config = {
        "method": "fcgcn",
        "data.period": PERIOD,
        "data.close-window": 2,
        "data.periodic-window": 1,
        "data.lags": "",
        "data.calendar": "phase",
        **changes,
    }
    return settings_from(config)


@pytest.fixture
def edges(tmp_path: Path) -> dict[str, str]:
    """Edges a – b – c, and d has none."""
    path = tmp_path / "edges.csv"
    path.write_text("a,b,c,d\n0,1,0,0\n1,0,1,0\n0,1,0,0\n0,0,0,0\n")
    return {"graph.source": "file", "graph.path": str(path)}


def series() -> list[ClientSeries]:
    """b begins two steps after the others, and c ends one step before them."""
    draws = np.random.default_rng(0)
    values = {name: draws.normal(size=48) for name in "abcd"}
    return [
        ClientSeries("a", values["a"]),
        ClientSeries("b", values["b"][2:], start=2),
        ClientSeries("c", values["c"][:-1]),
        ClientSeries("d", values["d"]),
    ]


def test_samples_hold_the_communitys_windows_of_the_same_time(edges: dict[str, str]) -> None:
    settings, all_series = settings_of(**edges), series()
    shard = with_communities(settings, all_series[:1] + all_series[3:], all_series)
    assert list(shard.clients) == ["a", "d"]
    alone = {
        client_series.name: make_windows(client_series, settings.data)
        for client_series in all_series
    }
    inputs = shard.clients["a"].inputs  # type: ignore[attr-defined]
    assert inputs.shape == (44, 3 * VALUES + 3 + 1)
    near = np.array(
        [[1 / 2, 1 / 6**0.5, 0], [1 / 6**0.5, 1 / 3, 1 / 6**0.5], [0, 1 / 6**0.5, 1 / 2]]
    )
    of_b = np.concatenate([np.zeros((2, VALUES)), alone["b"].inputs[:, :VALUES]])
    of_c = np.concatenate([alone["c"].inputs[:, :VALUES], np.zeros((1, VALUES))])
    rows = np.stack([alone["a"].inputs[:, :VALUES], of_b, of_c], axis=1)
    expected = np.einsum("lm,nmv->nlv", near, rows).reshape(44, -1)
    np.testing.assert_allclose(inputs[:, : 3 * VALUES], expected, atol=1e-6)
    np.testing.assert_allclose(inputs[:, 3 * VALUES : -1], np.tile(near[0], (44, 1)), atol=1e-6)
    np.testing.assert_array_equal(inputs[:, -1], alone["a"].inputs[:, -1])  # the phase

    lone = shard.clients["d"].inputs  # type: ignore[attr-defined]
    np.testing.assert_array_equal(lone[:, :VALUES], alone["d"].inputs[:, :VALUES])
    assert not lone[:, VALUES : 3 * VALUES].any()
    np.testing.assert_array_equal(lone[:, 3 * VALUES : -1], np.tile([1, 0, 0], (44, 1)))


def test_a_refused_client_has_no_neighbours(edges: dict[str, str]) -> None:
    settings, all_series = settings_of(**edges), series()
    all_series[1] = ClientSeries("b", np.full(48, np.nan))
    shard = with_communities(settings, all_series, all_series)
    assert list(shard.clients) == ["a", "c", "d"]
    assert shard.refused == {"b": "no value is present"}
    assert shard.clients["a"].inputs.shape[1] == VALUES + 1 + 1  # type: ignore[attr-defined]
    clients, *_ = with_communities(settings, [], all_series).clients, None
    assert not clients


def test_profiles_join_days_that_are_alike() -> None:
    """Two kinds of days, with different noise."""
    settings = settings_of(**{"graph.neighbours": 2})
    draws, steps = np.random.default_rng(1), np.arange(60)
    all_series = [
        ClientSeries(name, np.sin(np.pi * (steps + shift) / 2) + draws.normal(scale=0.1, size=60))
        for name, shift in {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0, "f": 1}.items()
    ]
    windows = {
        client_series.name: make_windows(client_series, settings.data)
        for client_series in all_series
    }
    community_of = communities_of(windows, settings)
    assert [member.name for member in community_of["a"].members] == ["a", "c", "e"]
    assert [member.name for member in community_of["f"].members] == ["b", "d", "f"]


def test_clients_missing_in_the_graph_are_named(edges: dict[str, str]) -> None:
    all_series = [*series(), ClientSeries("stranger", series()[0].values)]
    with pytest.raises(DataError, match=r"edges\.csv: has no entry of client 'stranger'"):
        with_communities(settings_of(**edges), all_series, all_series)


def test_a_kept_model_does_not_forecast_by_itself(tmp_path: Path) -> None:
    state = NodeState(tmp_path, settings_of(), ClientStore(tmp_path), DataShape())
    with pytest.raises(FedProtoError, match="'fcgcn': a kept model predicts nothing: it needs"):
        forecast(state, series(), 1)
