"""The figures of docs/results/history.md: they are those of runs, where there are runs of them."""

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
    everyone,
    lines_of,
    newcomers,
    on_scale,
)
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import make_windows
from fedproto_app.report.runs import read_clients
from fedproto_app.settings import Settings
from tests.local_grid import run_locally, small_settings, synthetic_nodes

SMALL = {"data.calendar": "phase", "kindred.features": 5}


def settings_of(tmp_path: Path, name: str, **changes: object) -> Settings:
    more: dict[str, object] = {**SMALL, "output.name": name, **changes}
    return small_settings(tmp_path, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("days", [0, 3])
def test_with_everyone_alike_they_are_those_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    few = {**METHODS[KINDRED], "kindred.features": 5}
    monkeypatch.setattr("benchmarks.history_results.METHODS", {**METHODS, KINDRED: few})
    settings = settings_of(tmp_path, "none")
    series = load_series(settings.data)
    found, _ = everyone(series, settings, days)
    whole = [make_windows(one, settings.data).std for one in series]
    for method, row in (
        (RIDGE, METHODS[RIDGE]),
        (ALONE, {"method": "kindred", "kindred.sharing": "none"}),
        (KINDRED, METHODS[KINDRED]),
    ):
        name = "-".join(map(str, row.values()))
        changed = settings_of(tmp_path, name, **row, **{"data.history": days})
        folder, _ = run_locally(changed, synthetic_nodes(1, tmp_path / name))
        own = [make_windows(one, changed.data).std for one in series]
        errors = {line["client"]: float(line["mse"]) for line in read_clients(folder.path)}
        expected = [
            errors[one.name] * (its / all_of_it) ** 2
            for one, its, all_of_it in zip(series, own, whole, strict=True)
        ]
        assert found[method] == pytest.approx(expected, rel=1e-4), method


def test_a_newcomer_forecasts_without_a_day_of_its_own(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "none")
    series = load_series(settings.data)
    of_all, told = everyone(series, settings, 0)
    made = newcomers(series, settings, 0, told)
    assert list(made) == [LAST_VALUE, LAST_PERIOD, KINDRED]
    assert np.mean(made[KINDRED]) < min(np.mean(made[LAST_VALUE]), np.mean(made[LAST_PERIOD]))
    # Nothing of its own samples counts: with others' priors alone, whatever it told them.
    lied = [{name: array * 0 for name, array in told[0].items()}, *told[1:]]
    lied[0]["prototype"] = told[0]["prototype"]
    assert newcomers(series[:1], settings, 0, lied)[KINDRED] == [made[KINDRED][0]]
    some = newcomers(series, settings, 2, told)
    assert list(some) == [LAST_VALUE, LAST_PERIOD, RIDGE, ALONE, KINDRED]
    np.testing.assert_allclose(some[LAST_VALUE], made[LAST_VALUE], rtol=1e-4)  # one unit for all
    alone, _ = everyone(series, settings, 2)
    assert some[RIDGE] == alone[RIDGE]
    assert of_all[KINDRED] != some[KINDRED]


def test_another_scale_is_of_the_same_values(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "none")
    windows = make_windows(load_series(settings.data)[0], settings.data)
    made = on_scale(windows, np.array([1.0, 5.0]), times=1)
    assert (made.mean, made.std) == (3, 2)
    np.testing.assert_array_equal(made.inputs[:, -1], windows.inputs[:, -1])
    for ours, theirs in (
        (made.targets, windows.targets),
        (made.inputs[:, :-1], windows.inputs[:, :-1]),
    ):
        expected = theirs * windows.std + windows.mean
        np.testing.assert_allclose(ours * 2 + 3, expected, rtol=1e-4, atol=1e-4)


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    errors = {
        "2": {RIDGE: [0.4, 0.2], ALONE: [0.3, 0.3], KINDRED: [0.2, 0.22]},
        "all": {RIDGE: [0.1, 0.1], ALONE: [0.2, 0.3], KINDRED: [0.05, 0.1]},
    }
    head, _, *rows = lines_of(errors)
    assert head.startswith("| days | ridge, alone | Kindred, alone | Kindred |")
    assert rows == [
        "| 2 | 0.3000 / 0.3000 | 0.3000 / 0.3000 | 0.2100 / 0.2100 | 30% | 50% |",
        "| all | 0.1000 / 0.1000 | 0.2500 / 0.2500 | 0.0750 / 0.0750 | 25% | 50% |",
    ]
    picture = tmp_path / "history.svg"
    draw({"one": {"days": errors, "all": 9}, "two": {"days": errors, "all": 9}}, picture)
    assert 1000 < picture.stat().st_size < 60_000
