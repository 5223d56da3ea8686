"""Run a sweep in its folder, from its plan to its results.

An Optuna study in the folder holds the plan and the settings of every trial. A trial is *running*
until all its runs have a result, so the study shows what remains after a crash or a failed run. The
next trials depend only on earlier batches, not on parallel runs or interruptions.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError
from optuna.storages import RDBStorage
from optuna.trial import TrialState, create_trial
from pydantic import ValidationError
from rich.console import Console
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.run_lock import LOCK, RunLock
from fedproto_app.engine.pool import cores
from fedproto_app.experiments.run_settings import unclaimed_settings
from fedproto_app.experiments.simulation import (
    check_data,
    check_pretraining,
    folder_of_users_code,
    most_workers,
)
from fedproto_app.experiments.sweep.plan import Plan, Trial, trials_of
from fedproto_app.experiments.sweep.results import Result, choices, result_of
from fedproto_app.experiments.sweep.runs import Job, Runner, SweepProgress
from fedproto_app.report.runs import flat
from fedproto_app.settings import Settings

STUDY = "optuna.db"


@dataclass
class Sweep:
    """A sweep and its folder. failed: why runs failed, by the run's name."""

    folder: Path
    plan: Plan
    failed: dict[str, str] = field(default_factory=dict)
    _best: dict[object, Result] = field(default_factory=dict)

    @cached_property
    def study(self) -> optuna.Study:
        return _study(self.folder / STUDY)

    @property
    def trials(self) -> list[Trial]:
        """The trials in the study; ``search = "optuna"`` draws them batch by batch."""
        return trials_of([trial.params for trial in self.study.get_trials(deepcopy=False)])

    @property
    def run_count(self) -> int:
        count = self.plan.trials if self.plan.search == "optuna" else len(self.trials)
        return (count or 0) * len(self.plan.seeds)

    def finished_runs(self) -> int:
        return len(list(self.folder.glob("*/summary.json")))

    def run(self, parallel: int | None, console: Console) -> tuple[list[Result], list[Result]]:
        """Make all runs; returns every trial's result, and the choice for each question.

        parallel: runs at a time; None: one for each core.
        """
        first = self._settings((self.trials or self.plan.corners())[0], self.plan.seeds[0])
        at_once = parallel or max(1, min(self.run_count, most_workers(first) // first.threads))
        results: list[Result] = []
        with (
            SweepProgress(console, self.run_count) as progress,
            Runner(at_once, max(1, cores() // at_once), self.plan.nodes) as runner,
        ):
            while trials := self._trials_behind(len(results)):
                results += self._make(trials, runner, progress)
        return results, choices(results)

    def check(self, trials: Sequence[Trial]) -> None:
        """Check the settings of the trials, then the data, once for each different data set."""
        different: dict[str, Settings] = {}
        for trial in trials:
            try:
                settings = self._settings(trial, self.plan.seeds[0])
            except SettingsError as error:  # a fault of several settings may not name all
                complete = len(trial.changes) == 1 or all(
                    key in str(error) for key in trial.changes
                )
                text = str(error) if complete else f"{error} (with {trial.text()})"
                raise SettingsError(text) from None
            tables = ("task", "method", "data", "graph", "encoder", "privacy")
            of_data = {k: v for k, v in trial.changes.items() if k.partition(".")[0] in tables}
            different.setdefault(repr(of_data), settings)
        for settings in different.values():
            check_pretraining(settings)
            check_data(settings, folder_of_users_code(settings))

    def _trials_behind(self, count: int) -> list[Trial]:
        """Return the trials after the first `count`; batches are drawn in full."""
        if self.plan.search == "optuna":
            trials, batch = self.study.get_trials(deepcopy=False), self.plan.batch
            end = min((count // batch + 1) * batch, self.plan.trials or 0)
            for params in self.plan.drawn(range(len(trials), end), trials[:count]):
                _add(self.study, self.plan, params)
        return self.trials[count:]

    def _make(
        self, trials: Sequence[Trial], runner: Runner, progress: SweepProgress
    ) -> list[Result]:
        """Make the runs of these trials, and report their validation errors to the study."""
        jobs = {
            trial.number: [Job(trial, s, self._settings(trial, s)) for s in self.plan.seeds]
            for trial in trials
        }
        all_jobs = [job for of_trial in jobs.values() for job in of_trial]
        progress.add(all_jobs)
        for of_trial in jobs.values():
            self._make_room(of_trial)

        def ended(job: Job, reason: str) -> None:
            progress.ended(job, reason)
            if reason:
                self.failed[job.name] = reason
            self._make_room(jobs[job.trial.number])

        runner.make(all_jobs, ended, progress.look)
        results = [self._result(of_trial) for of_trial in jobs.values()]
        in_study = self.study.get_trials(deepcopy=False)
        for result in results:
            number = result.trial.number - 1
            if result.complete and result.mean and not in_study[number].state.is_finished():
                self.study.tell(number, result.mean.mean)
        return results

    def _settings(self, trial: Trial, seed: int) -> Settings:
        output = {"dir": str(self.folder), "name": trial.run_name(seed), "resume": False}
        changes = {**self.plan.base, **trial.changes, "seed": seed, "output.pictures": False}
        changes |= {f"output.{key}": value for key, value in output.items()}
        return unclaimed_settings(changes, self.plan.nodes)

    def _result(self, jobs: Sequence[Job]) -> Result:
        done = {job.seed: job.folder for job in jobs if job.finished}
        failed = {job.seed: self.failed.get(job.name, "not made") for job in jobs}
        failed = {seed: reason for seed, reason in failed.items() if seed not in done}
        return result_of(jobs[0].trial, jobs[0].settings.task, done, failed)

    def _make_room(self, jobs: Sequence[Job]) -> None:
        """Once a trial's runs are done, keep only the models of the best trial so far.

        Models of many runs would take gigabytes.
        """
        if not all(job.finished for job in jobs):
            return
        result = self._result(jobs)
        best = self._best.get(result.question)
        loser: Result | None = result
        if result.complete and (best is None or result.place < best.place):
            self._best[result.question], loser = result, best
        for folder in loser.folders.values() if loser else ():
            for part in ("checkpoint", "state", "model"):
                shutil.rmtree(folder / part, ignore_errors=True)


def prepare(sweep: Sweep, extend: bool) -> None:
    """Check the sweep, and write it into its folder or continue the sweep in the folder.

    The caller holds the folder's lock. extend: the plan may be larger than the folder's plan.
    Raises `SettingsError` or `DataError` if it cannot run, and then removes a new folder.
    """
    folder, plan = sweep.folder, sweep.plan
    file, beside = folder / STUDY, folder / f"{STUDY}.new"
    before = read_plan(folder) if file.exists() else None
    other_files = sorted({path.name for path in folder.iterdir()} - {LOCK, beside.name})
    if before is None and other_files:
        old = "plan.json" in other_files
        content = "a sweep of version 0.1" if old else f"no sweep, but {other_files[0]!r}"
        raise SettingsError(f"{folder}: holds {content}; choose another --output")
    tried = _study(file).get_trials() if before else []
    listed = {frozenset(params.items()): params for params in plan.listed()}
    tried_settings = {frozenset(trial.params.items()) for trial in tried}
    new = [params for key, params in listed.items() if key not in tried_settings]
    if before:
        _require_growth(
            folder, before, plan, bool(listed) and not tried_settings <= listed.keys(), extend
        )
    try:
        sweep.check(trials_of([*(trial.params for trial in tried), *new]) or plan.corners())
    except BaseException:
        if before is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if before == plan:
        return
    beside.unlink(missing_ok=True)
    study = _study(beside)  # renamed when it is complete
    study.set_user_attr("plan", plan.model_dump_json())
    for trial in tried:
        _add(study, plan, trial.params, trial.state, trial.value)
    for params in new:
        _add(study, plan, params)
    os.replace(beside, file)


def read_plan(folder: Path) -> Plan:
    """Return the plan of the sweep in this folder; raises `SettingsError` if it has none."""
    file = folder / STUDY
    if not file.exists():
        raise SettingsError(f"{folder}: holds no sweep: there is no {STUDY} in it")
    try:
        return Plan.model_validate_json(_study(file).user_attrs["plan"])
    except (KeyError, ValidationError):
        raise SettingsError(f"{file}: cannot be read: holds no plan of a sweep") from None


def lock(folder: Path) -> RunLock:
    """Make the folder and lock it; raises `SettingsError` if it cannot be made or is locked."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return RunLock(folder)
    except OSError as error:
        raise SettingsError(f"{folder}: {error.strerror}") from None


def _require_growth(folder: Path, before: Plan, after: Plan, lost: bool, extend: bool) -> None:
    """Raise `SettingsError` unless the plan equals the folder's, or is larger and `extend` is set.

    lost: whether the folder has trials that the plan lacks.
    """
    grows = {"output", "seeds", "trials"} | ({"grid"} if after.search == "grid" else set())
    old, new = (flat(plan.model_dump(by_alias=True, exclude=grows)) for plan in (before, after))
    if differing := [
        f"{key.removeprefix('base.')} = {new.get(key, 'not set')}, was {old.get(key, 'not set')}"
        for key in sorted(old.keys() | new.keys())
        if str(old.get(key)) != str(new.get(key))
    ]:
        raise SettingsError(
            f"{folder} holds another sweep: {'; '.join(differing)}; choose another --output"
        )
    sizes = [
        (set(plan.seeds), plan.trials or 0, sum(map(len, plan.grid.values())))
        for plan in (before, after)
    ]
    if lost or not sizes[0][0] <= sizes[1][0] or sizes[0][1] > sizes[1][1]:
        raise SettingsError(
            f"{folder} holds trials or seeds that this sweep has not; a sweep can only grow"
        )
    if sizes[0] != sizes[1] and not extend:
        raise SettingsError(f"{folder} holds a smaller sweep; say --extend to let it grow")


def _study(file: Path) -> optuna.Study:
    """Read the study, or make it if there is none; raises `SettingsError`."""
    with storage_errors(file):
        url = URL.create("sqlite", database=str(file)).render_as_string()
        storage = RDBStorage(url, engine_kwargs={"poolclass": NullPool})
        try:
            return optuna.create_study(storage=storage, study_name="sweep", load_if_exists=True)
        except RuntimeError as error:
            raise OptunaError(str(error)) from None


@contextmanager
def storage_errors(file: Path) -> Iterator[None]:
    """Raise `SettingsError` in place of errors of the study's database, such as one in use."""
    try:
        yield
    except (OptunaError, SQLAlchemyError) as error:
        line = str(error.__cause__ or error).splitlines()[0]
        raise SettingsError(f"{file}: cannot be read or written: {line}") from None


def _add(
    study: optuna.Study,
    plan: Plan,
    params: Mapping[str, Any],
    state: TrialState = TrialState.RUNNING,
    value: float | None = None,
) -> None:
    study.add_trial(
        create_trial(state=state, value=value, params=dict(params), distributions=dict(plan.space))
    )
