from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_histories, load_series, trimmed
from fedproto_app.settings import DataSettings
from tests.data.handed_over import FACTORY, load_given

MODULE = __name__  # this module serves as a user's own: "package.module:factory"


def own_data(settings: DataSettings) -> Iterator[ClientSeries]:
    """What a user writes: one series per client, here with missing ends."""
    for number in range(3):
        values = np.array([np.nan, 1.0, np.nan, number, np.nan])
        yield ClientSeries(f"site-{number}", values, start=10 * number, group="all")


def load(source: str, **settings: Any) -> list[ClientSeries]:
    return load_series(DataSettings(source=source, **settings))


def test_a_users_factory_is_trimmed_as_every_source() -> None:
    clients = load(f"{MODULE}:own_data")
    parts = [(series.name, series.start, series.group) for series in clients]
    assert parts == [("site-0", 1, "all"), ("site-1", 11, "all"), ("site-2", 21, "all")]
    np.testing.assert_array_equal(clients[2].values, [1, np.nan, 2])


def test_the_first_clients_and_the_first_steps_of_the_clock() -> None:
    clients = load(f"{MODULE}:own_data", max_clients=2, max_steps=12)
    assert [s.name for s in clients] == ["site-0", "site-1"]
    assert [s.values.tolist()[0] for s in clients] == [1, 1]
    assert [len(s.values) for s in clients] == [3, 1]  # positions 1 ... 12
    assert [len(s.values) for s in load(f"{MODULE}:own_data", max_steps=1)] == [1, 0, 0]


def test_a_long_table_ends_with_its_newest_value(tmp_path: Path) -> None:
    """Rows after it announce times that are to be forecast, perhaps with a covariate."""
    rows = [
        f"{name},{day},{value}"
        for name, values in (("a", ("1", "", "", "")), ("b", ("1", "2", "", "")))
        for day, value in enumerate(values)
    ]
    path = tmp_path / "sales.csv"
    path.write_text("\n".join(["unique_id,ds,y", *rows]))
    clients = load_histories(DataSettings(source="long-csv", path=str(path), time_unit="step"))
    np.testing.assert_array_equal([client.values for client in clients], [[1, np.nan], [1, 2]])


def test_integers_become_floats_and_the_users_array_is_left_alone() -> None:
    mine = np.array([1, 2, 3])
    (series,) = load_given(load_series, [ClientSeries("a", mine, start=np.int64(4))])
    assert series.values.dtype == np.float64
    assert type(series.start) is int
    series.values[0] = 9
    assert mine[0] == 1


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (None, "returned NoneType, expected an iterable of ClientSeries"),
        ([], "no client in it"),
        ([np.zeros(3)], "gave a ndarray, expected a ClientSeries"),
        ([ClientSeries("", np.zeros(3))], "client name ''"),
        ([ClientSeries(7, np.zeros(3))], "client name 7"),
        ([ClientSeries("a", np.zeros(3)), ClientSeries("a", np.ones(3))], "two clients .* 'a'"),
        ([ClientSeries("a", np.zeros((3, 2)))], r"client 'a': values are float64 \(3, 2\)"),
        ([ClientSeries("a", np.array(["1"]))], "client 'a': values are <U1"),
        ([ClientSeries("a", np.zeros(3), start=0.5)], "client 'a': start 0.5"),
        ([ClientSeries("a", np.zeros(3), group=None)], "client 'a': group None"),
        ([ClientSeries("a", np.array([0, -np.inf]))], "client 'a': value number 2 is infinite"),
        (
            [ClientSeries("a", np.zeros(3), known=np.zeros((3, 2)), columns=("wind",))],
            r"client 'a': known is float64 \(3, 2\), expected numbers \[T', 1\], a column",
        ),
        (
            [ClientSeries("a", np.zeros(3), known=np.zeros((2, 1)), columns=("wind",))],
            "client 'a': 2 rows of known columns for 3 values",
        ),
        (
            [ClientSeries("a", np.zeros(1), known=np.array([[np.inf]]), columns=("wind",))],
            "client 'a': a known value is infinite",
        ),
    ],
)
def test_invalid_results_of_a_factory_are_refused(clients: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^{FACTORY}: {message}"):
        load_given(load_series, clients)


def test_what_is_known_ahead_stays_known_wherever_the_values_end() -> None:
    """Six values from position 3 on, and the wind of these times and of two further ones."""
    values, wind = np.array([np.nan, 1, 2, 3, 4, np.nan]), np.arange(8.0)[:, None]
    series = ClientSeries("a", values, start=3, known=wind, columns=("wind",))
    part = series.part(2, 4)
    assert (part.start, part.end, part.values.tolist()) == (5, 7, [2, 3])
    assert part.known.ravel().tolist() == [2, 3, 4, 5, 6, 7]
    assert part.future.ravel().tolist() == [4, 5, 6, 7]
    assert len(series.part(1).values) == len(series.part(1, 99).values) == 5
    assert len(series.part(0, -1).values) == 0
    cut = trimmed(series)
    assert (cut.start, cut.values.tolist()) == (4, [1, 2, 3, 4])
    assert cut.future.ravel().tolist() == [5, 6, 7]
    replaced = series.with_future(np.array([[70.0]]))
    assert replaced.known.ravel().tolist() == [0, 1, 2, 3, 4, 5, 70]


def test_zeros_for_what_is_missing_reach_further_than_what_is_known() -> None:
    wind = np.arange(10.0)[:, None]
    clients = [
        ClientSeries("a", np.ones(8), known=wind[:8], columns=("wind",)),
        ClientSeries("b", np.ones(10), known=wind, columns=("wind",)),
    ]
    first, _ = load_given(load_series, clients, missing="zero")
    assert first.values.tolist() == [1] * 8 + [0, 0]
    np.testing.assert_array_equal(first.known.ravel(), [*range(8), np.nan, np.nan])
