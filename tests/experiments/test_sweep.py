"""A sweep's plan: what a killed sweep goes on with, how it grows, what it keeps.

The runs are made up: they end at once, with a validation error that follows from their settings.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedproto_app.core.errors import SettingsError
from fedproto_app.experiments import sweep as sweep_module
from fedproto_app.experiments.sweep import Sweep, read_plan
from fedproto_app.experiments.sweep_plan import Plan
from fedproto_app.experiments.sweep_results import Result
from fedproto_app.experiments.sweep_runs import Job, SweepProgress
from tests.report.made_runs import make_run

GRID = {"nodes": 2, "base": {"rounds": 3}, "grid": {"fuels.beta": [10, 30]}, "seeds": [0, 1]}
OPTUNA = {
    "nodes": 2,
    "base": {},
    "search": "optuna",
    "trials": 14,  # more than Optuna draws without regard to results
    "batch": 3,
    "grid": {"local-epochs": [1, 2]},
    "range": {"optimizer.learning-rate": "1e-4..1e-1:log", "fuels.beta": "1..100"},
}
Run = Callable[..., list[Result]]


class Killed(BaseException):
    pass


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Make a sweep in a folder and return the results.

    killed: raise `Killed` instead of that run, counted from 0. failing: names of runs that fail.
    """

    def make_sweep(
        folder: Path,
        table: dict[str, Any],
        *,
        killed: int = -1,
        failing: Sequence[str] = (),
        extend: bool = False,
    ) -> list[Result]:
        count = itertools.count()

        def make_runs(
            jobs: Sequence[Job], nodes: int, parallel: int, progress: SweepProgress
        ) -> Iterator[tuple[Job, str]]:
            for job in jobs:
                if job.finished:
                    continue
                if next(count) == killed:
                    raise Killed
                progress.starts(job)
                if job.name in failing:
                    yield job, "it broke"
                    continue
                section = job.settings.method_settings
                error = abs(section.beta - 40) + job.seed  # type: ignore[attr-defined]
                make_run(job.folder, validation=[error] * 2, by_round=[error])
                (job.folder / "state").mkdir()
                yield job, ""
            progress.look()

        monkeypatch.setattr(sweep_module, "make_runs", make_runs)
        folder.mkdir(exist_ok=True)
        sweep = Sweep(folder, Plan.read(table))
        sweep.prepare(extend)
        return sweep.run(1, Console(quiet=True))[0]

    return make_sweep


def tried(results: Sequence[Result]) -> list[Any]:
    return [(result.trial.number, dict(result.trial.changes)) for result in results]


@pytest.mark.parametrize(
    "killed", [2, 12, *(pytest.param(number, marks=pytest.mark.exhaustive) for number in (0, 11))]
)
def test_a_killed_search_goes_on_to_the_same_trials(tmp_path: Path, run: Run, killed: int) -> None:
    uninterrupted = tried(run(tmp_path / "whole", OPTUNA))
    assert [number for number, _ in uninterrupted] == list(range(1, 15))
    assert all(isinstance(changes["fuels.beta"], int) for _, changes in uninterrupted)
    with pytest.raises(Killed):
        run(tmp_path / "killed", OPTUNA, killed=killed)
    for _ in range(2):  # when all is done, the results once more
        assert tried(run(tmp_path / "killed", OPTUNA)) == uninterrupted


def test_a_search_grows_to_what_a_larger_one_would_have_tried(tmp_path: Path, run: Run) -> None:
    uninterrupted = tried(run(tmp_path / "whole", OPTUNA))
    run(tmp_path / "grown", {**OPTUNA, "trials": 5})
    assert tried(run(tmp_path / "grown", OPTUNA, extend=True)) == uninterrupted


def test_failed_runs_are_tried_again_and_their_trial_is_not_chosen(
    tmp_path: Path, run: Run
) -> None:
    first, second = run(tmp_path, GRID, failing=["002-s1"])
    assert first.complete
    assert second.failed == {1: "it broke"}
    assert all(result.complete for result in run(tmp_path, GRID))


def test_models_of_the_best_trial_alone_are_kept(tmp_path: Path, run: Run) -> None:
    run(tmp_path, GRID)  # β = 30 is nearest to 40
    assert sorted(path.parent.name for path in tmp_path.glob("*/state")) == ["002-s0", "002-s1"]


def test_a_grid_grows_behind_what_it_has(tmp_path: Path, run: Run) -> None:
    before = tried(run(tmp_path, GRID))
    grown = {**GRID, "grid": {"fuels.beta": [5, 10, 30]}, "seeds": [0, 1, 2]}
    results = run(tmp_path, grown, extend=True)
    assert tried(results) == [*before, (3, {"fuels.beta": 5})]
    assert [list(result.validation) for result in results] == [[0, 1, 2]] * 3
    assert read_plan(tmp_path) == Plan.read(grown)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base": {"rounds": 4}}, "holds another sweep: rounds = 4, was 3"),
        ({"base": {}}, "rounds = not set, was 3"),
        ({"nodes": 1}, "nodes = 1, was 2"),
        ({"grid": {"fuels.beta": [10, 30], "method": ["fuels"]}}, "a sweep can only grow"),
        ({"grid": {"fuels.beta": [10]}}, "a sweep can only grow"),
        ({"seeds": [0]}, "a sweep can only grow"),
        ({"seeds": [0, 1, 2]}, "add --extend"),
        ({"grid": {"fuels.beta": [5, 10, 30]}}, "add --extend"),
        ({"search": "random", "trials": 2}, "search = random, was grid"),
    ],
)
def test_another_plan_is_refused(
    tmp_path: Path, run: Run, changed: dict[str, Any], message: str
) -> None:
    run(tmp_path, GRID)
    with pytest.raises(SettingsError, match=re.escape(message)):
        run(tmp_path, {**GRID, **changed})
    assert read_plan(tmp_path) == Plan.read(GRID)


def test_values_of_a_random_search_are_for_good(tmp_path: Path, run: Run) -> None:
    drawn = {**GRID, "search": "random", "trials": 2}
    run(tmp_path, drawn)
    with pytest.raises(SettingsError, match=re.escape("grid.fuels.beta = [10], was [10, 30]")):
        run(tmp_path, {**drawn, "grid": {"fuels.beta": [10]}})


def test_a_larger_sweep_that_fails_its_check_changes_nothing(tmp_path: Path, run: Run) -> None:
    run(tmp_path, GRID)
    with pytest.raises(SettingsError, match=r"fuels\.beta = -1"):
        run(tmp_path, {**GRID, "grid": {"fuels.beta": [-1, 10, 30]}}, extend=True)
    assert read_plan(tmp_path) == Plan.read(GRID)


def test_a_sweep_needs_the_clients_errors(tmp_path: Path, run: Run) -> None:
    noise = {"fuels.beta": [10], "privacy.mechanism": ["gaussian"], "privacy.epsilon": [8.0]}
    with pytest.raises(SettingsError, match=r"privacy\.metrics = .auto.: a sweep chooses by"):
        run(tmp_path, {**GRID, "grid": noise})


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("plan.json", b"{", r"plan\.json: cannot be read: holds no plan of a sweep"),
        (
            "plan.json",
            b'{"plan": {"grid": 3}, "trials": []}',
            r"plan\.json: cannot be read: holds no",
        ),
        ("letter.txt", b"dear", r"holds no sweep, but 'letter\.txt'"),
    ],
)
def test_a_folder_of_something_else_is_refused(
    tmp_path: Path, run: Run, file: str, content: bytes, message: str
) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(SettingsError, match=message) as error:
        run(tmp_path, GRID)
    assert "\n" not in str(error.value)
    assert (tmp_path / file).exists()


def test_a_folder_without_a_sweep_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"holds no sweep, as it has no plan\.json"):
        read_plan(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_any_folder_will_do(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "50% of #1? yes & no"
    assert tried(run(folder, GRID)) == tried(run(folder, GRID))
    assert (folder / "plan.json").exists()
