"""The stage in whole runs, and the guards of its server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.data.shape import DataShape
from fedproto_app.data.windows import make_windows
from fedproto_app.experiments.invariants import SmallRuns, apart, invariants_of, results
from fedproto_app.report.runs import read_clients, read_rounds
from fedproto_app.settings import settings_from
from fedproto_app.settings.data import ResponseSettings
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.strategies.response.moments import Moments, moments_of, unit_fault
from fedproto_app.strategies.response.stage import (
    BIN_COUNTS,
    COUNTS,
    GRAM,
    MOMENT,
    MOMENTS,
    MomentsStrategy,
    SumsStrategy,
    _sums_sent,
    history_of,
)
from fedproto_app.tasks.table import make_task
from fedproto_app.trust.averaging import Averaging
from tests.helpers.local_grid import run_small
from tests.helpers.weather import CHANGES, COLUMNS, weather_series

NAIVE: dict[str, Any] = {**CHANGES, "method": "naive"}


def test_it_is_two_small_rounds_before_the_method(tmp_path: Path) -> None:
    folder, _ = run_small(tmp_path, **NAIVE)
    without, _ = run_small(tmp_path / "without", **{**NAIVE, "data.known": ""})
    assert len(read_rounds(folder.path)) == len(read_rounds(without.path)) + 2
    errors, plain = (read_clients(run.path)["mse"] for run in (folder, without))
    assert (errors < plain).all()


def test_each_for_itself_sends_nothing(tmp_path: Path) -> None:
    folder, _ = run_small(tmp_path, **NAIVE, **{"response.sharing": "none"})
    assert [line["parameters_up"] for line in read_rounds(folder.path)] == [0] * len(
        read_rounds(folder.path)
    )


@pytest.mark.parametrize("method", ["kindred", "fedavg"])
def test_the_invariants_hold(tmp_path: Path, method: str) -> None:
    runs = SmallRuns("forecasting", method, tmp_path, **CHANGES, rounds=2)
    for words, invariant in invariants_of(runs).items():
        if "report" not in words:
            deviation = invariant(runs)
            assert deviation.held, (words, deviation)


def test_masked_totals_give_the_same_errors(tmp_path: Path) -> None:
    changes = {**CHANGES, "method": "kindred", "kindred.sharing": "groups"}
    plain, _ = run_small(tmp_path / "plain", nodes=4, **changes)
    masked, _ = run_small(tmp_path / "masked", nodes=4, **changes, **{"aggregation.secure": True})
    deviation = apart(results(masked.path), results(plain.path), 1e-4)
    assert deviation.held, deviation


def test_a_limit_of_samples_scales_no_means() -> None:
    """`aggregation.weight-limit` lets long clients count less in sums of samples."""
    data = settings_from({**CHANGES, "method": "naive"})
    learner = make_learner(data, make_task(data, DataShape(columns=COLUMNS)), 1)
    cohort = SimpleNamespace(shares=[0.5])
    learner.begin(cohort)  # type: ignore[arg-type]
    assert not cohort.shares


def test_errors_are_those_of_the_original_series() -> None:
    data = settings_from(CHANGES).data
    client = weather_series(data)[0]

    class Answer:
        def values(self, known: Any, start: int, period: int) -> Any:
            return 0.1 * known[:, 0]

        def numbers(self) -> dict[str, list[Any]]:
            return {}

    plain, without = make_windows(client, data), make_windows(client, data, Answer())
    assert without.explained is not None
    np.testing.assert_allclose(without.targets + without.explained, plain.targets, atol=1e-5)
    assert without.scale == plain.scale


# --- guards ---------------------------------------------------------------------------------------


def moments(size: float = 10.0) -> Moments:
    mean = np.full((3, 1), size)
    return Moments(mean, mean**2, mean, np.ones(1), np.ones(1), np.zeros(1))


def test_another_unit_is_refused_by_its_name() -> None:
    assert unit_fault(moments(), moments(20), ["wind"]) is None
    fault = unit_fault(moments(10_000), moments(10), ["wind"])
    assert fault == (
        "its column 'wind' is about 954 times as large as other clients': is it in another unit?"
    )
    total = Moments(*(a + b for a, b in zip(moments(1e4), moments(), strict=True)))
    assert unit_fault(moments(1e4), total, ["wind"]) == fault
    assert unit_fault(moments(), total, ["wind"]) is None


def test_a_client_without_a_train_part_has_no_moments() -> None:
    series = weather_series(settings_from(CHANGES).data)[0]
    assert not any(part.any() for part in moments_of(series, slice(0, 0), 24))


def strategy(kind: type[Any]) -> Any:
    settings = settings_from({**CHANGES, "data.known": "wind"})
    shape, averaging = DataShape(columns=("wind",)), Averaging(settings.aggregation)
    return kind(settings, SimpleNamespace(shape=shape, averaging=averaging), {})


def reply(**arrays: Any) -> ClientReply:
    values = {name: np.asarray(value, np.float32) for name, value in arrays.items()}
    return ClientReply(ClientKey("node", "a"), 10, values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": [2.0]}, "count more than one client"),
        ({"numeric": [0.5]}, "count more than one client"),
        ({"variance": np.full((3, 1), -1.0)}, "a negative square"),
        ({"square": np.full((3, 1), 7.0)}, "contradict each other"),
    ],
)
def test_impossible_moments_are_refused(change: dict[str, Any], message: str) -> None:
    changed = {name: np.asarray(value) for name, value in change.items()}
    arrays = dict(zip(MOMENTS, moments()._replace(**changed), strict=True))
    assert message in strategy(MomentsStrategy).fault(reply(**arrays), Round())


def sums(**changes: Any) -> dict[str, Any]:
    upper = np.triu_indices(16)
    return {
        GRAM: np.eye(16)[upper],
        MOMENT: np.full(16, 0.1),
        BIN_COUNTS: np.zeros((3, 1, 24)),
        COUNTS: [1, 30, 4],
        **changes,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({COUNTS: [2, 30, 4]}, "count as 2 clients"),
        ({COUNTS: [1, 0, 4]}, "with 0 days"),
        ({COUNTS: [1, 1e9, 4]}, "with 1e+09 days"),
        ({COUNTS: [0, 0, 0]}, "says that it sends none"),
        ({BIN_COUNTS: np.full((3, 1, 24), -1.0)}, "fewer than 0 values"),
        ({COUNTS: [1, 30, 0.01]}, "cannot be those of its values"),
        ({MOMENT: np.full(16, 100.0)}, "cannot be those of its values"),
        ({GRAM: 1e4 * np.eye(16)[np.triu_indices(16)]}, "cannot be those of its values"),
    ],
)
def test_impossible_sums_are_refused(change: dict[str, Any], message: str) -> None:
    server = strategy(SumsStrategy)
    assert server.fault(reply(**sums()), Round()) is None
    assert message in server.fault(reply(**sums(**change)), Round())


def sent_by(days: int) -> dict[str, Any]:
    """Return what the first site sends with so many days of training."""
    data = settings_from({**CHANGES, "data.test-start": "1970-01-20 00:00"}).data
    series = weather_series(data)[0]
    end = 19 * 24
    client = make_windows(series.part(end - days * 24), data)
    columns = moments_of(series, slice(0, end), 24).columns(COLUMNS)
    return dict(_sums_sent(history_of(client, data, columns), columns, ResponseSettings()))


def test_a_client_with_too_few_values_sends_nothing() -> None:
    """The temperature and the promotion have 17 features, which need 51 values."""
    assert not any(array.any() for array in sent_by(2).values())
    enough = sent_by(4)
    assert enough[COUNTS][0] == 1
    assert np.count_nonzero(enough[MOMENT]) == 17
