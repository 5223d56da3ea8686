"""The figures of forecasting runs from clients' metrics."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.report.forecasting import charts
from fedproto_app.report.forecasting.report import ForecastingReport
from fedproto_app.report.runs import read_clients, read_table
from fedproto_app.serving import open_state
from fedproto_app.settings import settings_from
from fedproto_app.tasks.forecasting.metrics import (
    BLOCK_METRICS,
    BLOCK_STEPS,
    FIRST_BLOCK,
    STEP_SECONDS,
    block_metric,
)
from tests.helpers.made_series import made_series, train_on
from tests.report.made_federation import MadeFederation


def metrics(mse: float, mae_units: float, difference: float, size: float) -> dict[Metric, float]:
    values = {
        "validation-mse": 0.5,
        "mse": mse,
        "mae": 0.25,
        "rmse-units": 1.0,
        "mae-units": mae_units,
        "seasonal-difference": difference,
        "mean-size": size,
    }
    return {
        Metric(name, model): v for name, v in values.items() for model in (Model.USED, Model.KEPT)
    }


def figures(federation: Any) -> dict[str, Any]:
    return ForecastingReport().summary_figures(federation, [])


def test_a_client_without_a_scale_has_no_mase_and_the_others_count() -> None:
    federation: Any = MadeFederation(
        {
            "a": metrics(1, 3, 2, 6),  # MASE 1.5, WAPE 0.5
            "b": metrics(2, 3, 0, 0),
            "c": metrics(9, 1, 4, 10),  # MASE 0.25, WAPE 0.1
            "d": metrics(4, 8, 2, 0),  # MASE 4
        }
    )
    head, *rows = ForecastingReport().tables(federation)["clients.csv"]
    place = list(head).index("mase")
    assert head[place + 1] == "wape"
    cells = [list(row)[place : place + 2] for row in rows]
    assert cells == [[1.5, 0.5], [None, None], [0.25, 0.1], [4, None]]
    summary = figures(federation)
    assert (summary["mse"], summary["mse_median"], summary["mse_worst_tenth"]) == (4, 3, 9)
    assert (summary["mase"], summary["mase_median"]) == (pytest.approx(5.75 / 3), 1.5)
    assert (summary["wape"], summary["wape_median"]) == (pytest.approx(0.3), pytest.approx(0.3))
    assert summary["mae_median"] == 0.25


def test_steps_ahead_have_their_errors_over_kept_models() -> None:
    steps = {"a": (1.0, 2.0), "b": (2.0, 3.0), "c": (6.0, 10.0)}
    metrics_of = {
        client: metrics(1, 1, 1, 1)
        | {Metric(f"mse/step-{n}", Model.KEPT): error for n, error in enumerate(errors, start=1)}
        | {Metric(f"mse/step-{n}"): 99.0 for n in (1, 2)}
        for client, errors in steps.items()
    }
    federation: Any = MadeFederation(metrics_of)
    tables = ForecastingReport().tables(federation)
    assert tables["steps.csv"] == [("step", "mse", "mse_median"), [1, 3, 2], [2, 5, 3]]


def test_a_step_without_targets_is_missing_and_counts_nowhere(tmp_path: Path) -> None:
    nan = float("nan")
    steps = {"a": (1.0, nan, 4.0), "b": (3.0, nan, nan)}
    metrics_of = {
        client: metrics(1, 1, 1, 1)
        | {Metric(f"mse/step-{n}", Model.KEPT): error for n, error in enumerate(errors, start=1)}
        for client, errors in steps.items()
    }
    federation: Any = MadeFederation(metrics_of)
    rows = ForecastingReport().tables(federation)["steps.csv"]
    assert rows[1:] == [[1, 2, 2], [2, None, None], [3, 4, 4]]
    with (tmp_path / "steps.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    [section] = charts.sections({"run": tmp_path}, "run")[:1]
    [line] = section.charts[0].lines  # type: ignore[union-attr]
    assert (line.x.tolist(), line.y.tolist()) == ([1, 3], [2, 4])
    assert section.charts[0].text.endswith("run: 2 at step 1, 4 at step 3.")


def test_a_run_goes_on_where_a_client_has_no_target_at_a_step(tmp_path: Path) -> None:
    """Client "steady" has only the last value of its test part, which is a second target."""
    frame = made_series()
    frame.iloc[-23:-1, 2] = np.nan
    frame.to_csv(tmp_path / "sites.csv")
    run, folder = train_on(tmp_path / "sites.csv", tmp_path, **{"data.horizon": 2})
    state = open_state(folder)
    errors = {name: state.store.record(name).metrics for name in state.store.kept_clients()}
    first = {name: error["mse/step-1"] for name, error in errors.items()}
    assert np.isnan(first.pop("steady"))
    by_client = read_clients(run.path).by_client("mse")
    assert by_client["steady"] == pytest.approx(errors["steady"]["mse/step-2"])
    steps = read_table(run.path / "steps.csv")
    assert steps["mse"][0] == pytest.approx(np.mean(list(first.values())))
    rounds = (run.path / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["refused"] for line in rounds] == [[], []]


def test_one_step_ahead_has_no_table_of_steps() -> None:
    federation: Any = MadeFederation({"a": metrics(1, 1, 1, 1)})
    assert list(ForecastingReport().tables(federation)) == ["clients.csv"]


def test_the_worst_tenth_of_25_clients_are_3() -> None:
    metrics_of = {f"c{n:02}": metrics(n, 1, 1, 1) for n in range(25)}
    assert figures(MadeFederation(metrics_of))["mse_worst_tenth"] == 23  # (22 + 23 + 24) / 3


def test_no_figure_without_errors() -> None:
    assert set(figures(MadeFederation({})).values()) == {None}


def test_blocks_have_a_row_per_client_where_single_errors_are_reported() -> None:
    """Two of 32 parts are above 0, so the file has two columns."""
    parts = dict.fromkeys(BLOCK_METRICS, 0.0) | {block_metric(0): 0.25, block_metric(1): 0.5}
    parts |= {STEP_SECONDS: 3600.0, BLOCK_STEPS: 24.0, FIRST_BLOCK: -3.0}
    clients = {name: metrics(1, 1, 1, 1) | parts for name in "ab"}
    head, *rows = ForecastingReport().tables(MadeFederation(clients))["blocks.csv"]  # type: ignore[arg-type]
    assert (
        ",".join(map(str, head)) == "client,node,step_seconds,block_steps,first_block,mae_1,mae_2"
    )
    assert [row[2:] for row in rows] == [["3600", 24, -3, "0.25", "0.5"]] * 2
    withheld: Any = MadeFederation(clients)
    withheld.settings = settings_from({"privacy.metrics": "none"})
    assert "blocks.csv" not in ForecastingReport().tables(withheld)
