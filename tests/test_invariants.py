"""Design rule 1: same seed, same numbers, whatever the engine. Each invariant needs whole runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.methods import METHODS, methods_of, part_of
from fedproto_app.experiments.invariants import (
    TOLERANCE,
    Invariant,
    SmallRuns,
    apart,
    cohorts_equal_their_clients,
    kept_models_predict,
    kills_change_nothing,
    one_node_equals_eight,
    results,
    seeds_repeat,
)
from fedproto_app.settings import TASK_NAMES
from tests.helpers.local_grid import run_locally, small_settings

# Every client half once; all pairs of methods and tasks only in the exhaustive run.
TASK_OF_LEARNER = {
    part_of(METHODS[method], "learner", task): task
    for task in reversed(TASK_NAMES)
    for method in methods_of(task)
}
SHORTER: dict[str, dict[str, int]] = {  # than the task's small runs
    "forecasting": {"rounds": 2},
    "classification": {"local-epochs": 1},
    "sequence-classification": {"encoder.rounds": 1},
    "sequence-regression": {"encoder.rounds": 1},
}
INVARIANTS = [
    one_node_equals_eight,
    cohorts_equal_their_clients,
    seeds_repeat,
    kills_change_nothing,
    kept_models_predict,
]
PAPERS = ("fuels", "gldp", "fed-react")
# State of FUELS in addition to models: clients guided before; random partners.
REMEMBERED = {"fuels.renew-optimizer": True, "fuels.comparison": "random"}


def _cases() -> Iterator[Any]:
    """Yield every method with the invariant that most bugs break, the papers' methods with all, and
    two whose server or whose nodes have more to remember with kills."""
    soon: dict[Invariant, Collection[str]] = {
        one_node_equals_eight: METHODS,
        kept_models_predict: METHODS,  # it shares the run with one node
        kills_change_nothing: (*PAPERS, "fedrep", "analytic"),
    }
    for task in TASK_NAMES:
        for method in methods_of(task):
            is_listed = TASK_OF_LEARNER[part_of(METHODS[method], "learner", task)] == task
            settings = small_settings(Path(), task, method=method)
            cannot_predict = METHODS[method].cannot_predict(settings)
            for invariant in INVARIANTS:
                if invariant is kept_models_predict and cannot_predict:
                    continue
                is_soon = is_listed and method in soon.get(invariant, PAPERS)
                marks = [] if is_soon else [pytest.mark.exhaustive]
                name = f"{task}-{method}-{invariant.__name__}"
                yield pytest.param(task, method, invariant, marks=marks, id=name)


@pytest.mark.parametrize(("task", "method", "invariant"), list(_cases()))
def test_it_holds_for_every_method(
    tmp_path_factory: pytest.TempPathFactory, task: str, method: str, invariant: Any
) -> None:
    remembered = REMEMBERED if method == "fuels" and invariant is kills_change_nothing else {}
    # Invariants of a method share runs if the same process checks them.
    name = f"{task}-{method}-remembered" if remembered else f"{task}-{method}"
    folder = tmp_path_factory.getbasetemp() / name
    deviation = invariant(SmallRuns(task, method, folder, **SHORTER[task], **remembered))
    assert deviation.held, deviation


def test_a_run_that_failed_half_way_is_made_anew(tmp_path: Path) -> None:
    runs = SmallRuns("forecasting", "seasonal-naive", tmp_path)
    for unfinished in (tmp_path / "runs" / "once", runs.state("once")):
        unfinished.mkdir(parents=True)
        (unfinished / "settings.toml").write_text("half a line")
    assert (runs.run("once", 1) / "summary.json").exists()


# A method that breaks every invariant, for the test of ``fedproto check-method``: unseeded noise in
# the loss, and evaluation with other models than the kept models.
LAWLESS = """
import torch

from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.core.method import Method


class LawlessLearner(SoloLearner):
    def loss(self, parameters, batch, context):
        terms = super().loss(parameters, batch, context)
        return {"prediction": torch.rand(()) * terms["prediction"]}

    def evaluate(self, cohort, order):
        halved = {name: value / 2 for name, value in cohort.parameters.items()}
        return self.task.evaluate(halved, cohort.samples)


METHOD = Method(
    name="lawless",
    strategy="fedproto_app.strategies.solo:SoloStrategy",
    learner="lawless_method:LawlessLearner",
)
"""


@pytest.mark.parametrize(
    ("first", "second", "largest", "where"),
    [
        ({"a": 1.0, "b": 2.2}, {"a": 1.0, "b": 2.0}, 0.1, "b"),
        ({"a": 1.0, "b": 1e-13}, {"a": 1.0, "b": 0.0}, 1e-13, "b"),
        ({"a": 0.1}, {"a": 0.0}, np.inf, "a"),
        ({"a": 0.1}, {"a": np.nan}, np.inf, "a"),
        ({"a": np.array([1.0, np.nan])}, {"a": np.array([1.0, np.nan])}, 0.0, "a"),
        ({"a": 0.1}, {"a": None}, np.inf, "a"),
        ({"a": "left"}, {"a": "right"}, np.inf, "a"),
        ({"a": "left"}, {"a": "left"}, 0.0, "a"),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}, np.inf, "b"),
        ({"a": np.array([1.0, 2.0])}, {"a": np.array([1.0, 4.0])}, 0.5, "a"),
        ({"a": np.array([1.0, 2.0])}, {"a": np.array([1.0])}, np.inf, "a"),
        ({"a": np.array([0, 1], bool)}, {"a": np.array([1, 1], bool)}, 1.0, "a"),
    ],
)
def test_how_far_runs_are_apart(first: Any, second: Any, largest: float, where: str) -> None:
    deviation = apart(first, second, 0.0)
    assert (deviation.largest, deviation.where) == (pytest.approx(largest), where)
    assert deviation.held == (largest == 0)


def test_another_seed_gives_other_numbers(tmp_path: Path) -> None:
    runs = SmallRuns("forecasting", "fuels", tmp_path)
    assert not apart(results(runs.run("0", 1)), results(runs.run("1", 1, seed=1)), TOLERANCE).held


def test_clients_of_unequal_length_train_as_they_would_alone(tmp_path: Path) -> None:
    """Padding changes nothing: a CSV whose columns end at different times."""
    data = tmp_path / "unequal.csv"
    hours = np.arange(24 * 20)
    columns = {f"c{i}": np.sin(hours * np.pi / 12 + i) + i for i in range(4)}
    for i, values in enumerate(columns.values()):
        values[len(values) - 30 * i :] = np.nan
    rows = [
        ",".join("" if np.isnan(v) else f"{v:.6f}" for v in row)
        for row in zip(*columns.values(), strict=True)
    ]
    data.write_text("\n".join([",".join(columns), *rows]) + "\n")

    def train(label: str, cohort_size: int) -> dict[str, Any]:
        changes = {"output.name": label, "cohort-size": cohort_size}
        node = {
            "data-source": "wide-csv",
            "least-periods": 0,
            "data-path": str(data),
            "state-dir": str(tmp_path / "state"),
        }
        return results(run_locally(small_settings(tmp_path, **changes), [node])[0].path)

    together, alone = train("together", 4), train("alone", 1)
    assert len({value for name, value in together.items() if name.endswith(": samples")}) > 1
    deviation = apart(together, alone, TOLERANCE)
    assert deviation.held, deviation
