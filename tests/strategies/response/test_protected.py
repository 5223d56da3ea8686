"""The rows that noise can protect, and what the server makes of their total."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.round import ClientReply, Round, Total
from fedproto_app.data.shape import DataShape
from fedproto_app.report.runs import read_rounds
from fedproto_app.settings import settings_from
from fedproto_app.strategies.response.fit import Sums, supported_range
from fedproto_app.strategies.response.protected import (
    private_row,
    private_size,
    private_sums,
    public_row,
    public_sums,
    usual_bin_counts,
)
from fedproto_app.strategies.response.stage import (
    GRAM,
    MOMENT,
    ROW,
    SumsStrategy,
    moments_in,
    sums_in,
)
from fedproto_app.trust.averaging import Averaging
from fedproto_app.trust.privacy_loss import privacy_plan
from tests.helpers.local_grid import run_small
from tests.helpers.weather import CHANGES, COLUMNS

USED = np.array([True, False, True])
GRAM_OF_USED = np.diag([1.0, 0.0, 2.0])
CLIENT = Sums(GRAM_OF_USED, np.array([0.5, 0.0, -1.0]), 4.0, 60.0)
SCALES = {"response.scales": "temperature 10 8"}


def test_the_solution_survives_clipping_and_the_scale_comes_back() -> None:
    """(A, b, q) of two clients are alike but for a factor of 3 that clipping made: the mean of the
    diagonal, 1.5, becomes 0.75."""
    row = private_row(CLIENT, USED)
    assert len(row) == private_size(2) == 7
    assert row.tolist() == [1, 0, 2, 0.5, -1, 4, 1.5 * 60 / 40]
    means = private_sums(row + row / 3, USED, 0.0)
    np.testing.assert_allclose(means.gram, GRAM_OF_USED / 2)
    np.testing.assert_allclose(means.moment, CLIENT.moment / 2)
    assert means.square == pytest.approx(2.0)
    assert means.days == pytest.approx(60)


def test_eigenvalues_that_noise_alone_could_have_are_raised() -> None:
    """Twice the deviation times the root of the width: 2 · 0.6 · √2 = 1.7 of the total."""
    row = private_row(CLIENT, USED)
    raised = private_sums(row, USED, 0.6).gram[np.ix_(USED, USED)] * 2
    np.testing.assert_allclose(np.diag(raised), [1.2 * np.sqrt(2), 2.0])
    assert private_sums(row, USED, 0.6).days < 60  # by one deviation of the noise
    public = public_sums(public_row(CLIENT), GRAM_OF_USED, USED, 0.1)
    assert public.gram[0, 0] == 1.0
    assert public.gram[1, 1] == 0.0


def test_public_columns_leave_b_and_q_in_the_row() -> None:
    total = public_sums(3 * public_row(CLIENT), 3 * GRAM_OF_USED, USED, 0.0)
    np.testing.assert_allclose(total.moment, 3 * CLIENT.moment)
    assert total.square == pytest.approx(12)
    assert np.linalg.norm(public_row(CLIENT)) == pytest.approx(
        4.153 / (2.5 * np.sqrt(3 / 16)), rel=1e-3
    )


def test_without_the_counts_of_values_two_deviations_count_as_seen() -> None:
    lowest, highest = supported_range(usual_bin_counts(2))
    assert (lowest == -2).all()
    assert (highest == 2).all()
    assert lowest.shape == (3, 2)


def strategy(columns: tuple[str, ...] = COLUMNS, **changes: Any) -> SumsStrategy:
    settings = settings_from({**CHANGES, "method": "naive", **changes})
    averaging = Averaging(settings.aggregation, privacy_plan(settings))
    federation: Any = SimpleNamespace(shape=DataShape(columns=columns), averaging=averaging)
    return SumsStrategy(settings, federation, {})


def test_stated_scales_take_the_place_of_the_first_round() -> None:
    server = strategy(**SCALES)
    assert server.first_round == 1
    columns = moments_in(server.totals).columns(COLUMNS)
    assert columns.mean[0].tolist() == [10, 0]
    assert columns.deviation[0].tolist() == [8, 1]
    assert columns.is_plain.tolist() == [False, True]  # the promotion
    with pytest.raises(SettingsError, match=r"response\.scales = 'rain 1 1': 'rain' is no column"):
        strategy(**{"response.scales": "rain 1 1"})


def test_the_server_gives_nodes_the_same_arrays_as_without_noise() -> None:
    server = strategy(
        **SCALES,
        **{"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0},
    )
    width = 17
    sums = Sums(np.eye(32), np.full(32, 0.1), 4.0, 30.0)
    row = 100 * private_row(sums, moments_in(server.totals).columns(COLUMNS).features)
    server.received.take_total(Total({ROW: row}, 100))
    server.update(Round())
    means = sums_in(server.totals)
    assert means is not None
    assert np.count_nonzero(means.moment) == width
    assert np.diag(means.gram).max() == pytest.approx(0.75)
    assert server.totals[GRAM].shape == (32 * 33 // 2,)
    assert server.totals[MOMENT].shape == (32,)


def test_a_row_longer_than_clip_and_noise_is_refused() -> None:
    noise = {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0, "privacy.clip": 2.0}
    server, size = strategy(**SCALES, **noise), private_size(17)
    row = np.zeros(size, np.float32)
    for length, fault in ((20 * size**0.5, None), (27 * size**0.5, "longer than clip and noise")):
        row[0] = length
        reason = server.fault(ClientReply(ClientKey("node", "a"), 10, {ROW: row}), Round())
        assert reason is None if fault is None else fault in str(reason)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({"scales": "temperature 10"}, "expected a name, a mean and a deviation"),
        ({"scales": "temperature 10 0"}, "a deviation above 0"),
        ({"scales": "10 8"}, "expected a name"),
        ({"sharing": "none", "columns": "public"}, "and response.columns have no effect"),
    ],
)
def test_impossible_settings(response: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings_from({**CHANGES, **{f"response.{key}": text for key, text in response.items()}})


@pytest.mark.parametrize("response", [SCALES, {"response.columns": "public"}])
def test_noise_goes_with_masks_in_a_whole_run(tmp_path: Path, response: dict[str, str]) -> None:
    noise = {"privacy.mechanism": "gaussian", "privacy.epsilon": 8.0, "aggregation.secure": True}
    changes = {**CHANGES, "method": "naive", "rounds": 1, **response, **noise}
    folder, _ = run_small(tmp_path, nodes=3, **changes)
    lines = read_rounds(folder.path)
    assert len(lines) == (2 if "response.scales" in response else 3)
    assert [line["refused"] for line in lines] == [[]] * len(lines)
    assert lines[-1]["privacy"]["epsilon"] == pytest.approx(8, rel=1e-6)
    assert lines[-1]["privacy"]["releases"] == 1
