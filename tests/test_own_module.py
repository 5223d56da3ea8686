"""Whole runs with a user's module: its use by every method, and the refusals."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.data.sources import load_histories
from fedproto_app.experiments.invariants import SmallRuns, cohorts_equal_their_clients
from fedproto_app.report.runs import read_clients, read_rounds, read_run
from fedproto_app.serving import forecast, open_state
from fedproto_app.settings import DataSettings
from tests.helpers.made_series import made_series, train_on

MODULES = {
    "forecasting": "perceptron",
    "classification": "small_convolution",
    "sequence-classification": "RecurrentModel",
    "sequence-regression": "RecurrentModel",
}
ROUNDS = {"rounds": 2, "encoder.rounds": 1}
PAIRS = [
    *((task, "fedavg") for task in MODULES),
    ("forecasting", "fuels"),
    ("classification", "gldp"),
    ("sequence-classification", "fed-react"),
]


def from_module(module: str) -> dict[str, str]:
    return {"model.module": f"tests.helpers.users_modules:{module}"}


@pytest.mark.parametrize(("task", "method"), PAIRS)
def test_a_cohort_equals_its_clients_one_by_one(tmp_path: Path, task: str, method: str) -> None:
    runs = SmallRuns(task, method, tmp_path, **ROUNDS, **from_module(MODULES[task]))
    deviation = cohorts_equal_their_clients(runs)
    assert deviation.held, deviation
    assert read_run(runs.run("one-node", 1)).summary["rounds"] == 2 + (method == "fed-react")


def test_the_module_learns(tmp_path: Path) -> None:
    changes = {"optimizer.learning-rate": 0.01, **from_module("perceptron")}
    folder = SmallRuns("forecasting", "fedavg", tmp_path, **changes).run("learning", 1)
    losses = [line["loss"]["total"] for line in read_rounds(folder)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("method", ["solo", "fedavg", "fedprox", "apfl", "ditto", "fedala"])
def test_methods_without_representations_take_any_module(tmp_path: Path, method: str) -> None:
    changes = {"rounds": 1, **from_module("whole_perceptron")}
    folder = SmallRuns("forecasting", method, tmp_path, **changes).run("any", 1)
    assert all(map(math.isfinite, read_clients(folder)["mse"]))


@pytest.mark.parametrize(
    ("task", "method", "module"),
    [
        ("forecasting", "fuels", "whole_perceptron"),
        ("forecasting", "fedproto", "whole_perceptron"),
        ("forecasting", "fedrep", "whole_perceptron"),
        ("classification", "gldp", "whole_convolution"),
        ("sequence-classification", "fed-react", "LastValue"),
        ("sequence-classification", "ifca", "LastValue"),
    ],
)
def test_methods_on_representations_need_both_children(
    tmp_path: Path, task: str, method: str, module: str
) -> None:
    reason = (
        f"^model.module = 'tests.helpers.users_modules:{module}': method = '{method}' works with "
        "the representation, so the module needs two children named encoder and head$"
    )
    with pytest.raises(SettingsError, match=reason):
        SmallRuns(task, method, tmp_path, **from_module(module)).run("refused", 1)
    assert not (tmp_path / "runs" / "refused" / "rounds.jsonl").exists()


def test_every_method_refuses_an_unfit_module_before_it_works(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"batch_norm': 1 is a BatchNorm1d"):
        SmallRuns("forecasting", "solo", tmp_path, **from_module("batch_norm")).run("refused", 1)
    assert not (tmp_path / "runs" / "refused" / "rounds.jsonl").exists()


@pytest.mark.parametrize("method", ["solo", "fedavg", "apfl"])
def test_a_kept_module_forecasts(tmp_path: Path, method: str) -> None:
    data = tmp_path / "sites.csv"
    made_series().to_csv(data)
    _, folder = train_on(data, tmp_path, method=method, **from_module("perceptron"))
    series = load_histories(DataSettings(source="wide-csv", path=str(data)))
    forecasts, left_out = forecast(open_state(folder), series, 3)
    assert [client.client for client in forecasts] == ["gappy", "late", "steady"]
    assert not left_out
    late = forecasts[1]
    assert 5e3 < late.values.mean() < 1.5e4  # of its own size, so its own model and scale
