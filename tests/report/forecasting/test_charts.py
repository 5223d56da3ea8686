"""Charts of forecasts: the right clients and their personal models, nothing without these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.charts import Dots, Lines
from fedproto_app.core.errors import FedProtoError
from fedproto_app.data import sources
from fedproto_app.data.scale import Scale
from fedproto_app.data.shared_read import forget
from fedproto_app.data.sources import load_series
from fedproto_app.node.store import ClientStore
from fedproto_app.report.charts import draw, pictures_of
from fedproto_app.report.forecasting import charts, responses
from fedproto_app.report.forecasting.charts import (
    alike_together,
    read_divergence,
)
from fedproto_app.report.forecasting.examples import (
    Example,
    Forecast,
    find_examples,
    kept_forecasts,
)
from fedproto_app.report.forecasting.responses import response_charts, response_sections
from fedproto_app.report.runs import read_clients
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.response.features import Columns, Response
from fedproto_app.tasks.forecasting.metrics import LEVELS
from tests.helpers import weather
from tests.helpers.local_grid import run_locally, small_settings
from tests.report.made_runs import add_divergence

CHARTS = ["clients.png", "rounds.png", "divergence.png", "filter.png", "forecast.png"]


def simulated(tmp_path: Path, **changes: Any) -> tuple[Settings, Path]:
    """Simulate a run of two nodes, with the state in the usual place."""
    settings = small_settings(tmp_path, **changes)
    nodes = [
        {
            "node-name": str(index),
            "partition-id": index,
            "num-partitions": 2,
            "data-source": settings.data.source,
            "data-path": settings.data.path,
            "data-known": settings.data.known,
            "state-dir": str(tmp_path / f"node-{index}"),
        }
        for index in (0, 1)
    ]
    folder, _ = run_locally(settings, nodes)
    for index in (0, 1):
        [state] = (tmp_path / f"node-{index}").glob(f"*/{index}")  # <run>-<token>/<node>
        (folder.path / "state").mkdir(exist_ok=True)
        state.rename(folder.path / "state" / str(index))
    return settings, folder.path


def names(files: list[Path]) -> list[str]:
    return [file.name for file in files]


def test_a_simulation_of_fuels_gets_five_pictures(tmp_path: Path) -> None:
    _, run = simulated(tmp_path)
    state = sorted((run / "state").rglob("*"))
    assert names(draw(run)) == CHARTS
    assert sorted((run / "state").rglob("*")) == state  # looking at it leaves it as it was


def test_all_pictures_of_a_run_read_the_data_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = simulated(tmp_path, **weather.CHANGES, method="naive")
    forget()
    reads, read = [], sources._read
    monkeypatch.setattr(sources, "_read", lambda settings: reads.append(settings) or read(settings))
    assert {"forecast.png", "response.png"} <= {*names(draw(run))}
    assert len(reads) == 1


@pytest.mark.parametrize(("period", "clients"), [(48, 2), (60, 3)])
def test_few_clients_and_long_periods_can_be_drawn(
    tmp_path: Path, period: int, clients: int
) -> None:
    """The filter is drawn only if it has changed. One round at the usual rate is too short."""
    moves = period == 60
    changes = {"data.period": period, "data.synthetic.clients": clients, "rounds": 1}
    _, run = simulated(tmp_path, **changes, **({"fuels.filter-rate": 50.0} if moves else {}))
    assert names(draw(run)) == [name for name in CHARTS if moves or name != "filter.png"]


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedavg"},
        {"method": "fedrep", "participation": 0.3},  # some heads have never been trained
        {"method": "solo"},
        {"fuels.learn-filter": False},
        {"method": "apfl"},  # the forecast is of a mixture
        {"method": "ditto"},  # of a personal model, not of the client's copy of the global one
    ],
)
def test_without_a_filter_there_is_only_the_forecast(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    _, run = simulated(tmp_path, **changes)
    pictures = list(pictures_of(run))
    assert pictures[-1] == "forecast.png"
    assert "filter.png" not in pictures


def test_best_median_and_worst_are_shown_with_their_own_models(tmp_path: Path) -> None:
    settings, run = simulated(tmp_path, **{"optimizer.learning-rate": 0.05})
    table, shown = read_clients(run), find_examples(run, settings)
    rows = np.argsort(table["mse"])[[0, 3, 7]]
    assert [example.client for example in shown] == [table.clients[row] for row in rows]
    assert shown[0].title == f"best client {table.clients[rows[0]]} ({table.groups[rows[0]]})"
    for example, row in zip(shown, rows, strict=True):
        record = ClientStore(run / "state" / table.nodes[row]).read_kept(example.client)
        assert record is not None
        assert np.array_equal(example.parameters["filter"], record["parameters/filter"])


def test_forecasts_have_the_errors_of_the_run_in_the_datas_units(tmp_path: Path) -> None:
    settings, run = simulated(tmp_path)
    table = read_clients(run)
    series = {client.name: client for client in load_series(settings.data)}
    examples = find_examples(run, settings)
    for example, forecast in zip(examples, kept_forecasts(examples, settings), strict=True):
        client = series[example.client]
        row = {name: table.by_client(name)[example.client] for name in table.numbers}
        tail = client.values[-len(forecast.truth) :]
        np.testing.assert_allclose(forecast.truth, tail, rtol=1e-4, atol=1e-3)
        positions = client.start + len(client.values) - len(tail) + np.arange(len(tail))
        assert np.array_equal(forecast.positions, positions)
        assert forecast.mse == pytest.approx(row["mse"], rel=1e-4)
        rmse = np.sqrt(np.nanmean((forecast.forecast - forecast.truth) ** 2))
        assert rmse == pytest.approx(row["rmse_units"], rel=1e-4)
        off = abs(forecast.forecast - forecast.truth)[None]
        covered = (off <= forecast.half_widths).sum(axis=1) / np.isfinite(forecast.truth).sum()
        coverages = [row[f"coverage_{level}"] for level in LEVELS]
        np.testing.assert_allclose(covered, coverages, atol=1.5 / len(tail))
        widths = (
            2
            * forecast.half_widths[:, np.isfinite(forecast.truth)].mean(axis=1)
            / forecast.scale.std
        )
        np.testing.assert_allclose(widths, [row[f"width_{level}"] for level in LEVELS], 0.01)


@pytest.mark.parametrize(("count", "ranks"), [(1, ["best"]), (2, ["best", "worst"])])
def test_of_few_clients_none_is_shown_twice(tmp_path: Path, count: int, ranks: list[str]) -> None:
    settings, run = simulated(tmp_path, rounds=1)
    keep_rows(run, count)
    assert [example.title.split()[0] for example in find_examples(run, settings)] == ranks


def keep_rows(run: Path, count: int) -> None:
    """Shorten clients.csv to its first clients."""
    file = run / "clients.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[: count + 1]))


def test_charts_without_data_are_left_out(tmp_path: Path) -> None:
    data = tmp_path / "sites.csv"
    hours = np.arange(24 * 14)
    values = [5 + np.sin(hours * np.pi / 12 + shift) for shift in range(3)]
    np.savetxt(data, np.column_stack(values), delimiter=",", header="a,b,c", comments="")
    changes = {"data.source": "wide-csv", "data.path": str(data)}
    _, run = simulated(tmp_path, **changes)
    assert list(pictures_of(run)) == CHARTS

    hours = pd.date_range("2024-03-04", periods=24 * 14, freq="h", name="time")
    pd.read_csv(data).set_index(hours).to_csv(data)  # the same values, now with their times
    assert list(pictures_of(run)) == CHARTS

    data.rename(tmp_path / "moved.csv")
    assert list(pictures_of(run)) == CHARTS[:4]  # no data: no forecast
    for file in (run / "state").rglob("state.sqlite"):
        file.write_bytes(file.read_bytes()[:20000])
    keep_rows(run, 1)
    assert list(pictures_of(run)) == CHARTS[:3]  # a damaged model
    (run / "state").rename(run / "elsewhere")
    assert list(pictures_of(run)) == CHARTS[:3]  # deployed nodes keep their state


def test_other_data_under_the_same_names_are_noticed(tmp_path: Path) -> None:
    settings, run = simulated(tmp_path)
    examples = find_examples(run, settings)
    other_data = settings_from({"data.synthetic": {"clients": 8, "days": 14, "seed": 1}})
    with pytest.raises(FedProtoError, match="but was"):
        kept_forecasts(examples, settings.model_copy(update={"data": other_data.data}))
    stranger = Example("best client nobody", "nobody", 1.0, examples[0].parameters)
    with pytest.raises(FedProtoError, match="'nobody' is not in the data"):
        kept_forecasts([stranger], settings)


def test_alike_clients_meet_in_the_order() -> None:
    near, far = 0.1, 0.6
    cluster = np.array([0, 1, 0, 1, 0])
    divergence = np.where(cluster[:, None] == cluster, near, far)
    np.fill_diagonal(divergence, 0)
    order = alike_together(divergence, np.array([""] * 5))
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert np.count_nonzero(np.diff(cluster[order])) == 1  # one border between the two


def test_true_groups_come_before_clustering() -> None:
    groups = np.array(["b", "a", "b", "a"])
    order = alike_together(np.ones((4, 4)) - np.eye(4), groups)
    assert list(groups[order]) == ["a", "a", "b", "b"]


def test_a_file_with_the_matrix_of_some_names_these(tmp_path: Path) -> None:
    add_divergence(tmp_path, ["a", "b", "a", "b"], np.zeros((4, 4)))
    with np.load(tmp_path / "divergence.npz") as file:
        arrays = dict(file)
    matrix = np.array([[0, 0.5], [0.5, 0]], np.float32)
    subset = arrays | {"divergence": matrix, "divergence_of": np.array([1, 2])}
    np.savez(tmp_path / "divergence.npz", allow_pickle=False, **subset)
    names, groups, cells, total = read_divergence(tmp_path)
    assert names.tolist() == ["c2", "c1"]
    assert groups.tolist() == ["a", "b"]
    assert np.array_equal(cells, matrix)
    assert total == 4


def test_only_the_clients_shown_are_clustered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "_MOST_CLIENTS", 10)
    add_divergence(tmp_path, [""] * 35, 1 - np.eye(35))
    [chart] = charts.pictures(tmp_path)["divergence.png"]
    assert chart.title == "prototypes: 10 of 35 clients"
    assert chart.cells.shape == (10, 10)


# --- columns known in advance ---------------------------------------------------------------------


@pytest.mark.parametrize("sharing", ["all", "none"])
def test_a_picture_shows_what_the_columns_change(
    tmp_path: Path, sharing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to temperature is max(x − 10, 0) times 2, to a promotion 6."""
    changes = {**weather.CHANGES, "method": "naive", "response.sharing": sharing}
    settings, run = simulated(tmp_path, **changes)
    assert "response.png" in pictures_of(run)
    temperature, promotion = response_charts(run)
    assert isinstance(temperature, Lines)
    assert temperature.title == "temperature"
    median, *clients, data = temperature.lines
    assert len(clients) == 3
    rising = np.interp([2.0, 8.0, 15.0, 25.0], median.x, median.y)
    low, flat, middle, high = rising
    (scales := [s.values.std() for s in weather.weather_series(settings.data)]).sort()
    assert abs(flat - low) < 0.2
    assert high - middle == pytest.approx(20 / scales[4], rel=0.3)
    assert np.ptp(data.bands["training data"]) > 0
    assert isinstance(promotion, Dots)
    [row] = promotion.rows
    assert row.middle == pytest.approx(6 / scales[4], rel=0.3)
    assert len(row.values) == 8
    _, section = response_sections(run)
    assert len(section.choices) == len(section.charts) == 8
    together, personal, shared = section.charts[0].lines[:3]  # type: ignore[union-attr]
    np.testing.assert_allclose(together.y, personal.y + shared.y)
    assert shared.y.any() == (sharing == "all")
    flags = np.ones(3, dtype=bool)
    of_three = Response(Columns(np.ones((3, 3)), np.ones((3, 3)), flags, flags), ())
    monkeypatch.setattr(responses, "kept_responses", lambda *_: {"site-0": of_three})
    assert response_sections(run) == []  # the data have two columns now
    monkeypatch.undo()
    (run / "state").rename(run / "elsewhere")  # as in a deployment
    assert response_sections(run) == response_charts(run) == []


def test_forecasts_have_the_response_in_them(tmp_path: Path) -> None:
    settings, run = simulated(tmp_path, **weather.CHANGES, method="naive")
    examples = find_examples(run, settings)
    for forecast in kept_forecasts(examples, settings):  # it refuses another error than the run's
        error = forecast.forecast - forecast.truth
        assert (error**2).mean() / forecast.scale.std**2 == pytest.approx(forecast.mse, rel=0.02)


def test_runs_without_such_columns_have_no_picture_of_them(tmp_path: Path) -> None:
    _, run = simulated(tmp_path, method="naive")
    assert response_charts(run) == []


def test_nothing_is_drawn_below_the_floor() -> None:
    """Forecasts of -1, 1 and 5, give or take 2, of values that are never negative."""
    shown = Forecast(
        truth=np.array([0.0, 1.0, 4.0]),
        forecast=np.array([-1.0, 1.0, 5.0]),
        half_widths=np.full((len(LEVELS), 3), 2.0),
        positions=np.arange(3),
        clock=None,
        mse=1.0,
        scale=Scale(0.0, 1.0, seasonal_difference=1.0, is_negative=False),
        floor=0.0,
    )
    _, line = charts._forecast("client a", {"run": shown}, 3, ["run"]).lines
    assert line.y.tolist() == [0, 1, 5]
    for band in line.bands.values():
        assert (line.y - band[0]).tolist() == [0, 0, 3]
        assert (line.y + band[1]).tolist() == [1, 3, 7]
