"""The peers of `fedproto run` get the same batches, and the table has the measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import stock_flower
from benchmarks.peers import batched_loop, pfl_home, plain_loop
from benchmarks.peers.forecaster import Forecaster, batch_loss, read_clients, train_epoch
from benchmarks.stock_flower import (
    NUMBA,
    OURS,
    Timing,
    loss_spread,
    ratios,
    verdicts,
    write_clients,
)
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import make_windows
from fedproto_app.settings import settings_from


def test_peers_read_the_batches_that_this_app_trains_on(tmp_path: Path) -> None:
    write_clients(tmp_path / "clients.npz", clients=5, days=9)
    clients = read_clients(tmp_path / "clients.npz")
    settings = settings_from({"data.synthetic.clients": 5, "data.synthetic.days": 9})
    windows = [make_windows(series, settings.data) for series in load_series(settings.data)]
    assert [len(client) for client in clients] == [
        len(client_windows.batches) for client_windows in windows
    ]
    inputs, targets, present = clients[2][1]
    rows = windows[2].batches[1]
    assert np.array_equal(inputs.numpy(), windows[2].inputs[rows])
    assert np.array_equal(targets.numpy(), windows[2].targets[rows])
    assert np.array_equal(present.numpy(), windows[2].present[rows])


def test_the_loss_is_the_mean_over_targets_that_are_there() -> None:
    """Predictions 1 and 2 of targets 3 and 9, the second missing: (1 − 3)² / 1."""
    present = torch.tensor([[True], [False]])
    batch = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [9.0]]), present
    assert batch_loss(torch.nn.Identity(), batch).item() == 4


def test_an_epoch_learns(tmp_path: Path) -> None:
    write_clients(tmp_path / "clients.npz", clients=2, days=9)
    batches = read_clients(tmp_path / "clients.npz")[0][:1]
    torch.manual_seed(0)
    model = Forecaster()
    losses = [train_epoch(model, batches) for _ in range(3)]
    assert losses[-1] < losses[0]


def test_the_batched_loop_trains_as_the_plain_loop(tmp_path: Path) -> None:
    write_clients(tmp_path / "clients.npz", clients=3, days=9)
    clients = [batches[:1] for batches in read_clients(tmp_path / "clients.npz")]
    torch.manual_seed(0)
    shared = torch.nn.utils.parameters_to_vector(Forecaster().parameters()).detach()
    plain = plain_loop.train_share(shared, clients)
    batched = batched_loop.train_share(shared, clients)
    assert plain.tolist() == pytest.approx(batched.tolist(), abs=1e-5)


RUNS = {  # seconds, loss, processor seconds
    OURS: [Timing([1.0, 1.0, 9.0], 0.50, 2), Timing([2.0], 0.52, 4)],
    NUMBA: [Timing([1.0], 0.50, 1), Timing([1.0], 0.52, 1)],
    "stock Flower": [Timing([7.0], 0.51, 14), Timing([10.0], 0.51, 20)],
    "plain loop": [Timing([1.5], 0.50, 3), Timing([3.0], 0.51, 5)],
}


def test_ratios_are_of_the_same_repetition_and_their_median_is_judged() -> None:
    assert ratios(RUNS, "stock Flower") == [7, 5]
    assert ratios(RUNS, "plain loop") == [1.5, 1.25]
    stock, stock_numba, plain, plain_numba, losses = verdicts(RUNS)
    assert stock == "stock Flower / fedproto run = 6.00 in CPU-s, aim ≥ 5: reached"
    assert stock_numba == "stock Flower / fedproto run, numba = 17.00 in CPU-s, aim ≥ 7.5: reached"
    assert plain == "plain loop / fedproto run = 1.38 in CPU-s, aim ≥ 1.8: missed"
    assert plain_numba == "plain loop / fedproto run, numba = 4.00 in CPU-s, aim ≥ 2.6: reached"
    assert losses.endswith("at most 10% allowed: the same")


def test_a_contestant_that_misses_the_loss_did_not_do_the_work() -> None:
    lazy = RUNS | {"lazy": [Timing([0.1], 0.9, 1)]}
    assert loss_spread(RUNS) < stock_flower.SAME_LOSS < loss_spread(lazy)
    assert "NOT the same" in list(verdicts(lazy))[-1]


def test_pfl_that_cannot_be_had_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pip(command: list[str], seconds: float) -> str | None:
        return "ERROR: No matching distribution found" if "pip" in command else None

    monkeypatch.setattr(pfl_home, "_runs", no_pip)
    assert pfl_home.pfl_python(tmp_path) == (None, "ERROR: No matching distribution found")
