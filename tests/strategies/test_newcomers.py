"""A newcomer with 0, 1, 3 or 7 days of its own takes part in every method of series."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import MessageType

from fedproto_app.core.methods import methods_of
from fedproto_app.core.wire import ReplyFields, read_order, read_record, write_order
from fedproto_app.engine.local import nodes_sharing
from fedproto_app.experiments.invariants import SmallRuns, invariants_of
from fedproto_app.report.runs import read_clients, read_rounds
from tests.helpers.local_grid import run_locally, small_settings

DAYS = {"none": 0, "one": 1, "three": 3, "seven": 7}
OLD, HISTORY, TESTED = 4, 12, 3  # clients, and days


def traffic(folder: Path, newcomers: dict[str, int]) -> Path:
    """Write hours of four old clients and of newcomers with so many days before the test part."""
    hours = np.arange(24 * (HISTORY + TESTED))
    times = pd.Timestamp("2024-01-01") + pd.to_timedelta(hours, unit="h")
    table = {}
    for number, name in enumerate([*(f"old-{n}" for n in range(OLD)), *newcomers]):
        draws = np.random.default_rng(number)
        day = np.sin(2 * np.pi * hours / 24) + np.sin(4 * np.pi * hours / 24 + number)
        values = 50 + 10 * number + (5 + number) * (day + 0.2 * draws.normal(size=len(hours)))
        values[: 24 * (HISTORY - newcomers.get(name, HISTORY))] = np.nan
        table[name] = values
    path = folder / "traffic.csv"
    pd.DataFrame(table, index=pd.Index(times, name="time")).to_csv(path)
    return path


def runs_of(method: str, folder: Path, **changes: object) -> SmallRuns:
    return SmallRuns("forecasting", method, folder, **{**data_of(folder), **changes})


def data_of(folder: Path) -> dict[str, object]:
    path = str(folder / "traffic.csv")
    return {"data.source": "wide-csv", "data.path": path, "data.test-start": "2024-01-13"}


def _horizons() -> Iterator[Any]:
    """Yield each method with a horizon, and its other one for the exhaustive run."""
    for number, method in enumerate(methods_of("forecasting")):
        for horizon in (1, 24):
            is_first = (horizon == 1) == (number % 2 == 0)
            yield pytest.param(method, horizon, marks=[] if is_first else [pytest.mark.exhaustive])


@pytest.mark.parametrize(("method", "horizon"), list(_horizons()))
def test_every_method_gives_each_newcomer_a_finite_error(
    tmp_path: Path, method: str, horizon: int
) -> None:
    traffic(tmp_path, DAYS)
    changes = {"data.horizon": horizon, "rounds": 2}
    changes |= {"fedda.week": 4} if method == "fedda" else {}  # for so short a history
    run = runs_of(method, tmp_path, **changes).run("all", 2)
    clients = read_clients(run)
    assert len(clients.clients) == OLD + len(DAYS)
    assert np.isfinite(clients["mse"].tolist()).all()
    # FedDA names the clients that are too short for its clusters. CNFGNN and FedGRU ask everybody
    # questions, which a client that must not send anything refuses.
    names = method in ("cnfgnn", "fedda", "fedgru")
    assert names or not any(line["refused"] for line in read_rounds(run))
    samples = clients.by_client("samples")
    assert samples["none"] == 0
    assert (samples["one"] > 0) == (horizon == 1)
    assert samples["three"] > 0


@pytest.mark.parametrize("method", ["fuels", "fedavg", "kindred", "analytic"])
def test_the_invariants_hold_with_newcomers(tmp_path: Path, method: str) -> None:
    traffic(tmp_path, DAYS)
    runs = runs_of(method, tmp_path, rounds=2)
    for words, invariant in invariants_of(runs).items():
        deviation = invariant(runs)
        assert deviation.held, (words, deviation)


@pytest.mark.parametrize("method", ["fedavg", "analytic", "kindred"])
def test_masked_sums_leave_newcomers_out(tmp_path: Path, method: str) -> None:
    """Only clients that send are summed, so masks change no number."""
    traffic(tmp_path, DAYS)
    totals = {"kindred.sharing": "common"} if method == "kindred" else {}
    runs = runs_of(method, tmp_path, rounds=1, **totals)
    errors = [
        read_clients(runs.run(label, 4, **changes)).by_client("mse")
        for label, changes in (("open", {}), ("masked", {"aggregation.secure": True}))
    ]
    assert errors[1] == pytest.approx(errors[0], rel=1e-4)


@pytest.mark.parametrize("method", ["fedavg", "kindred", "analytic"])
def test_a_client_that_only_receives_changes_nothing_for_others(
    tmp_path: Path, method: str
) -> None:
    errors = []
    for number, newcomers in enumerate([{}, {"none": 0}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        traffic(folder, newcomers)
        errors.append(read_clients(runs_of(method, folder).run("run", 2)).by_client("mse"))
    without, with_newcomer = errors
    del with_newcomer["none"]
    assert with_newcomer == pytest.approx(without, rel=1e-5)


def test_a_server_that_asks_a_silent_client_gets_nothing(tmp_path: Path) -> None:
    traffic(tmp_path, {"none": 0})
    settings = small_settings(tmp_path, method="analytic", **dict(data_of(tmp_path)))
    _, grid = run_locally(settings, nodes_sharing(settings.data, 1, tmp_path / "state"))
    message = next(m for m in grid.sent if m.metadata.message_type == MessageType.TRAIN)
    order = read_order(message)
    assert "none" not in order.clients
    forged = replace(order, clients=[*order.clients, "none"])
    reply = grid.answer(write_order(forged, message.metadata.dst_node_id, MessageType.TRAIN))
    assert reply is not None
    fields = read_record(reply.content, ReplyFields)
    assert set(fields.names) == set(order.clients)
    assert "so it only receives" in fields.failed["none"]
