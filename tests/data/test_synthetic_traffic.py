from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.data.formats.synthetic_traffic import SITE_TYPES
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import why_refused
from fedproto_app.settings import DataSettings, SyntheticSettings


def sites(period: int = 24, **synthetic: int) -> list[ClientSeries]:
    return load_series(DataSettings(period=period, synthetic=SyntheticSettings(**synthetic)))


def on_common_clock(clients: list[ClientSeries], steps: int) -> np.ndarray:
    """Return the values [N, steps], NaN if missing."""
    grid = np.full((len(clients), steps), np.nan)
    for row, series in zip(grid, clients, strict=True):
        row[series.start : series.start + len(series.values)] = series.values
    return grid


def test_a_seed_is_a_data_set() -> None:
    for first, second in zip(sites(seed=1), sites(seed=2), strict=True):
        assert not np.array_equal(first.values, second.values, equal_nan=True)


def test_a_site_is_the_same_again_and_among_more_sites() -> None:
    for site, same_site in zip(sites(clients=5), sites(clients=30)[:5], strict=True):
        for field, value in vars(site).items():
            np.testing.assert_array_equal(getattr(same_site, field), value)


def test_sites_take_turns_in_their_types() -> None:
    clients = sites(clients=9)
    assert [series.group for series in clients[:4]] == [kind.name for kind in SITE_TYPES]
    assert [clients[k].name for k in (0, 4, 8)] == ["office-00", "office-01", "office-02"]


def test_no_value_is_negative_and_gaps_and_late_starts_occur() -> None:
    clients = sites(clients=60)
    assert all(np.nanmin(series.values) >= 0 for series in clients)
    gappy = [series for series in clients if np.isnan(series.values).any()]
    late = [series for series in clients if series.start > 0]
    assert 5 <= len(gappy) <= 25
    assert 5 <= len(late) <= 25
    assert max(series.start for series in late) <= 36


def test_sites_of_a_type_resemble_each_other_and_types_differ() -> None:
    clients = sites(clients=24, days=42)
    grid = on_common_clock(clients, 42 * 24)
    present = np.isfinite(grid).all(axis=0)
    correlation = np.corrcoef(grid[:, present])
    groups = np.array([series.group for series in clients])
    same_group = groups[:, None] == groups
    assert correlation[same_group].min() > 0.7
    assert correlation[~same_group].max() < 0.6


def test_the_last_hour_is_no_good_forecast_nor_is_yesterday() -> None:
    """Learnable, not trivial: the rhythm predicts better than repeating the last value."""
    for series in sites(clients=8):
        values = (series.values - np.nanmean(series.values)) / np.nanstd(series.values)
        for lag in (1, 24):
            assert np.nanmean((values[lag:] - values[:-lag]) ** 2) > 0.05


@pytest.mark.parametrize("period", [2, 24, 144, 288])
def test_days_have_the_periods_samples(period: int) -> None:
    clients = sites(period, clients=4, days=14)
    assert max(series.start + len(series.values) for series in clients) == 14 * period
    office = on_common_clock(clients[:1], 14 * period)[0].reshape(14, period)
    at_noon, at_midnight = office[:5, period // 2], office[:5, 0]
    assert np.nanmean(at_noon) > 2 * np.nanmean(at_midnight)


@pytest.mark.parametrize("period", [24, 288])
def test_the_shortest_data_set_refuses_nobody(period: int) -> None:
    settings = DataSettings(period=period, synthetic=SyntheticSettings(clients=40, days=8))
    assert [why_refused(series, settings) for series in load_series(settings)] == [None] * 40
