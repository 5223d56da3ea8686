"""The figures of docs/results/history.md equal the runs', where runs exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.history_results import (
    ALONE,
    KINDRED,
    LAST_PERIOD,
    LAST_VALUE,
    METHODS,
    RIDGE,
    draw,
    lines_of,
    newcomers,
    on_scale,
    with_equal_history,
)
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import make_windows
from fedproto_app.report.runs import read_clients
from fedproto_app.settings import Settings
from fedproto_app.tasks.forecasting.task import window_layout
from tests.helpers.local_grid import run_locally, small_settings, synthetic_nodes

SMALL = {"data.calendar": "phase", "kindred.features": 5}


def settings_of(tmp_path: Path, name: str, **changes: object) -> Settings:
    more: dict[str, object] = {**SMALL, "output.name": name, **changes}
    return small_settings(tmp_path, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("days", [0, 3])
def test_with_equal_history_errors_equal_the_errors_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    changes = {**METHODS[KINDRED], "kindred.features": 5}
    monkeypatch.setattr("benchmarks.history_results.METHODS", {**METHODS, KINDRED: changes})
    settings = settings_of(tmp_path, "none")
    series = load_series(settings.data)
    errors_here, _ = with_equal_history(series, settings, days)
    scales = [make_windows(client_series, settings.data).scale.std for client_series in series]
    for method, row in (
        (RIDGE, METHODS[RIDGE]),
        (ALONE, {"method": "kindred", "kindred.sharing": "none"}),
        (KINDRED, METHODS[KINDRED]),
    ):
        name = "-".join(map(str, row.values()))
        changed = settings_of(tmp_path, name, **row, **{"data.history": days})
        folder, _ = run_locally(changed, synthetic_nodes(1, tmp_path / name))
        run_scales = [
            make_windows(client_series, changed.data).scale.std for client_series in series
        ]
        errors = read_clients(folder.path).by_client("mse")
        expected = [
            errors[client_series.name] * (scale / all_of_it) ** 2
            for client_series, scale, all_of_it in zip(series, run_scales, scales, strict=True)
        ]
        assert errors_here[method] == pytest.approx(expected, rel=1e-4), method


def test_a_newcomer_forecasts_without_a_day_of_data(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "none")
    series = load_series(settings.data)
    of_all, contributions = with_equal_history(series, settings, 0)
    errors = newcomers(series, settings, 0, contributions)
    assert list(errors) == [LAST_VALUE, LAST_PERIOD, KINDRED]
    assert np.mean(errors[KINDRED]) < min(np.mean(errors[LAST_VALUE]), np.mean(errors[LAST_PERIOD]))
    # The client's own samples do not count: others' priors alone, whatever the client sent.
    lied = [{name: array * 0 for name, array in contributions[0].items()}, *contributions[1:]]
    lied[0]["prototype"] = contributions[0]["prototype"]
    assert newcomers(series[:1], settings, 0, lied)[KINDRED] == [errors[KINDRED][0]]
    later = newcomers(series, settings, 2, contributions)
    assert list(later) == [LAST_VALUE, LAST_PERIOD, RIDGE, ALONE, KINDRED]
    np.testing.assert_allclose(later[LAST_VALUE], errors[LAST_VALUE], rtol=1e-4)  # one unit for all
    alone, _ = with_equal_history(series, settings, 2)
    assert later[RIDGE] == alone[RIDGE]
    assert of_all[KINDRED] != later[KINDRED]


def test_another_scale_is_of_the_same_values(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "none")
    windows = make_windows(load_series(settings.data)[0], settings.data)
    rescaled = on_scale(windows, np.array([1.0, 5.0]), window_layout(settings.data))
    assert (rescaled.scale.mean, rescaled.scale.std) == (3, 2)
    np.testing.assert_array_equal(rescaled.inputs[:, -1], windows.inputs[:, -1])
    for ours, before in (
        (rescaled.targets, windows.targets),
        (rescaled.inputs[:, :-1], windows.inputs[:, :-1]),
    ):
        expected = windows.scale.original(before)
        np.testing.assert_allclose(ours * 2 + 3, expected, rtol=1e-4, atol=1e-4)


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    errors = {
        "2": {RIDGE: [0.4, 0.2], ALONE: [0.3, 0.3], KINDRED: [0.2, 0.22]},
        "all": {RIDGE: [0.1, 0.1], ALONE: [0.2, 0.3], KINDRED: [0.05, 0.1]},
    }
    head, *rows = lines_of("one", errors)
    assert head[:4] == ["data", "days", f"{RIDGE}, mean", f"{RIDGE}, median"]
    assert rows == [
        ["one", "2", *["0.3000"] * 4, *["0.2100"] * 2, "30%", "50%"],
        ["one", "all", *["0.1000"] * 2, *["0.2500"] * 2, *["0.0750"] * 2, "25%", "50%"],
    ]
    picture = tmp_path / "history.svg"
    draw({"one": {"days": errors, "all": 9}, "two": {"days": errors, "all": 9}}, picture)
    assert 1000 < picture.stat().st_size < 60_000
