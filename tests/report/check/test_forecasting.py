from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.report.check.forecasting import check, facts_of, period_votes
from fedproto_app.settings import DataSettings, settings_from
from tests.helpers.real_data import real_data
from tests.helpers.waves import wave


def test_metr_la_votes_for_a_day_of_5_minutes() -> None:
    path = real_data("metr_la_week_5min.csv.gz")
    settings = DataSettings(source="wide-csv", path=str(path), period=288)
    clients = [facts_of(series, settings) for series in load_series(settings)]
    assert period_votes(clients)[0][0] == 288
    assert {client.refused for client in clients} == {None}


def test_every_kind_of_client_gets_its_verdict() -> None:
    good, gappy = wave(24, 480), wave(24, 480)
    gappy[10:130] = np.nan
    series = [
        ClientSeries("good", good, start=5),
        ClientSeries("gappy", gappy),
        ClientSeries("constant", np.full(480, -2.0)),
        ClientSeries("young", good[:72]),
        ClientSeries("short", np.ones(3)),
        ClientSeries("empty", np.empty(0)),
    ]
    clients = {
        client_series.name: facts_of(client_series, DataSettings()) for client_series in series
    }
    verdicts = {name: facts.verdict.plain for name, facts in clients.items()}
    assert verdicts == {
        "good": "ok",
        "gappy": "ok",
        "constant": "constant",
        "young": "newcomer",
        "short": "refused",
        "empty": "refused",
    }
    assert (clients["good"].length, clients["good"].start, clients["good"].period) == (480, "5", 24)
    assert clients["gappy"].missing_share == 0.25
    assert clients["constant"].largest == 2
    assert clients["young"].young == (
        "72 steps: trains on 49 values, validates on 7 and is tested on 15"
    )
    assert "data.scale" in (clients["short"].refused or "")
    assert (clients["empty"].missing_share, clients["empty"].largest) == (1, 0)
    assert period_votes(list(clients.values())) == [(24, 3)]


def test_the_shorter_period_comes_first_on_a_tie() -> None:
    series = [ClientSeries("a", wave(30, 480)), ClientSeries("b", wave(24, 480))]
    votes = period_votes([facts_of(client_series, DataSettings()) for client_series in series])
    assert votes == [(24, 1), (30, 1)]


def test_known_columns_are_counted_until_the_first_of_them_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hours = pd.date_range("2024-03-04", periods=240, freq="h")
    frames = [
        pd.DataFrame(
            {
                "client": name,
                "ds": hours,
                "y": [*wave(24, 230), *[np.nan] * 10],
                "heat": [*range(end), *[np.nan] * (240 - end)],
            }
        )
        for name, end in (("a", 240), ("b", 234))
    ]
    pd.concat(frames).to_csv(tmp_path / "a.csv", index=False)
    table = {"data.source": "long-csv", "data.path": str(tmp_path / "a.csv")}
    for further, line in (
        (
            {"data.known": "heat"},
            "1 column, for 4 steps, until 2024-03-13 17:00:00",
        ),
        ({"data.calendar": "year"}, "4 columns, at any time"),
        ({}, None),
    ):
        check(settings_from({**table, **further}), all_rows=True)
        lines = [row for row in capsys.readouterr().out.splitlines() if "known ahead" in row]
        assert [row.split("known ahead")[1].strip() for row in lines] == [line] * bool(line)
