"""A sweep: its plan, the table ``[sweep]``, and its runs in a folder.

An Optuna study in the folder holds the plan, and the settings of every trial that was started. A
trial is *running* until all its runs have a result, so the study shows what remains after a crash
or a failed run. Trials of a grid or of random draws follow from the plan, and are entered into the
study when their first run starts, because the study takes long for thousands. The trials that
Optuna suggests depend only on earlier batches, not on parallel runs or interruptions.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import optuna
from optuna.exceptions import OptunaError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic import ValidationError
from rich.console import Console
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.core.run_lock import LOCK, RunLock
from fedproto_app.experiments.run_settings import unclaimed_settings
from fedproto_app.experiments.simulation import (
    check_data,
    check_pretraining,
    folder_of_users_code,
    most_workers,
    require_modules,
)
from fedproto_app.experiments.sweep_plan import Plan, Trial, trials_of
from fedproto_app.experiments.sweep_results import Result, choices, result_of
from fedproto_app.experiments.sweep_runs import Job, SweepProgress, make_runs
from fedproto_app.settings import Settings
from fedproto_app.settings.reading import flat, written

FOLDER, STUDY = "sweeps", "optuna.db"
optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep reports its progress itself
_DATA = ("task", "method", "data", "graph", "encoder", "privacy")  # tables that data depend on


class Sweep:
    """A sweep and its folder. failed: why runs failed, by the run's name."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.failed: dict[str, str] = {}
        self._settings_of: dict[str, Settings] = {}  # by a trial's changes
        self._results: dict[int, Result] = {}  # of complete trials, by number
        self._best: dict[object, Result] = {}  # by question

    @cached_property
    def study(self) -> optuna.Study:
        return _study(self.folder / STUDY)

    @cached_property
    def trials(self) -> list[Trial]:
        """All trials so far. Optuna suggests further ones batch by batch."""
        return trials_of(_with_listed(self.study.get_trials(deepcopy=False), self.plan))

    @property
    def run_count(self) -> int:
        count = self.plan.trials if self.plan.search == "optuna" else len(self.trials)
        return (count or 0) * len(self.plan.seeds)

    def finished_runs(self) -> int:
        return len(list(self.folder.glob("*/summary.json")))

    def require_runs(self) -> None:
        """Raise `FederationError` if runs failed, with the reason of one of them."""
        if self.failed:
            name, reason = next(iter(self.failed.items()))
            raise FederationError(
                f"{len(self.failed)} of {self.run_count} runs failed, {name}: {reason}; repeating "
                "the sweep tries them again"
            )

    def prepare(self, extend: bool) -> None:
        """Check the sweep, and write its plan into its folder or continue the folder's sweep.

        The caller holds the folder's lock. extend: the plan may be larger than the folder's plan.
        Raises `SettingsError` or `DataError` if it cannot run, and then removes a new folder.
        """
        folder, file, beside = self.folder, self.folder / STUDY, self.folder / f"{STUDY}.new"
        before = read_plan(folder) if file.exists() else None
        other_files = sorted({path.name for path in folder.iterdir()} - {LOCK, beside.name})
        if before is None and other_files:
            raise SettingsError(
                f"{folder}: holds no sweep, but {other_files[0]!r}; choose another --output"
            )
        if before and before != self.plan:
            _require_growth(folder, before, self.plan, extend)
        tried = _study(file).get_trials(deepcopy=False) if before else []
        try:
            self._check(trials_of(_with_listed(tried, self.plan)) or self.plan.corners())
        except BaseException:
            if before is None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        if before == self.plan:
            return
        beside.unlink(missing_ok=True)
        study = _study(beside)  # renamed when it is complete
        study.set_user_attr("plan", self.plan.model_dump_json())
        for trial in tried:
            _add(study, self.plan, trial.params, trial.state, trial.value)
        os.replace(beside, file)

    def run(self, parallel: int | None, console: Console) -> tuple[list[Result], list[Result]]:
        """Make all runs. Returns every trial's result, and the choice for each question.

        parallel: runs at a time, by default one for each core.
        """
        first = self._settings((self.trials or self.plan.corners())[0], self.plan.seeds[0])
        at_once = parallel or max(1, min(self.run_count, most_workers(first) // first.threads))
        results: list[Result] = []
        with SweepProgress(console, self.run_count) as progress:
            while trials := self._trials_behind(len(results)):
                results += self._make(trials, at_once, progress)
        return results, choices(results)

    def _check(self, trials: Sequence[Trial]) -> None:
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
            if settings.privacy.reported != "exact":
                raise SettingsError(
                    f"privacy.metrics = {settings.privacy.metrics!r}: a sweep chooses by each "
                    "client's exact validation error; set privacy.metrics = 'exact'"
                )
            of_data = {k: v for k, v in trial.changes.items() if k.partition(".")[0] in _DATA}
            different.setdefault(repr(of_data), settings)
        for settings in different.values():
            require_modules(settings)
            check_pretraining(settings)
            check_data(settings, folder_of_users_code(settings))

    def _trials_behind(self, count: int) -> list[Trial]:
        """Return the trials after the first `count`. Optuna's batches are drawn in full."""
        if self.plan.search == "optuna":
            first = count - count % self.plan.batch  # of the batch, which its trials do not know
            earlier = self.study.get_trials(deepcopy=False)[:first]
            so_far, end = len(self.trials), min(first + self.plan.batch, self.plan.trials or 0)
            self.trials.extend(trials_of(self.plan.drawn(range(so_far, end), earlier), so_far + 1))
            self._enter(len(self.trials))
        return self.trials[count:]

    def _make(
        self, trials: Sequence[Trial], parallel: int, progress: SweepProgress
    ) -> list[Result]:
        """Make the runs of these trials, and report their validation errors to the study."""
        jobs = {
            trial.number: [Job(trial, s, self._settings(trial, s)) for s in self.plan.seeds]
            for trial in trials
        }
        all_jobs = [job for of_trial in jobs.values() for job in of_trial]
        progress.add(all_jobs)
        entered = self.study.get_trials(deepcopy=False)
        with_value = {trial.number + 1 for trial in entered if trial.state.is_finished()}
        for number, of_trial in jobs.items():
            self._finish(of_trial, has_value=number in with_value)

        def starts(job: Job) -> None:
            self._enter(job.trial.number)
            progress.starts(job)

        def ended(job: Job, reason: str) -> None:
            progress.ended(job, reason)
            if reason:
                self.failed[job.name] = reason
            self._finish(jobs[job.trial.number], has_value=job.trial.number in with_value)

        make_runs(all_jobs, self.plan.nodes, parallel, starts, ended, progress.look)
        return [self._results.get(n) or self._result(of_trial) for n, of_trial in jobs.items()]

    def _settings(self, trial: Trial, seed: int) -> Settings:
        key = repr(trial.changes)
        if key not in self._settings_of:
            changes = {**self.plan.base, **trial.changes, "output.dir": str(self.folder)}
            changes |= {"output.resume": False, "output.pictures": False}
            self._settings_of[key] = unclaimed_settings(changes, self.plan.nodes)
        settings = self._settings_of[key]
        output = settings.output.model_copy(update={"name": trial.run_name(seed)})
        return settings.model_copy(update={"seed": seed, "output": output})

    def _result(self, jobs: Sequence[Job]) -> Result:
        done = {job.seed: job.folder for job in jobs if job.finished}
        failed = {job.seed: self.failed.get(job.name, "not made") for job in jobs}
        failed = {seed: reason for seed, reason in failed.items() if seed not in done}
        return result_of(jobs[0].trial, jobs[0].settings.task, done, failed)

    def _enter(self, number: int) -> None:
        """Enter the trials up to this number into the study, in order."""
        for trial in self.trials[len(self.study.get_trials(deepcopy=False)) : number]:
            params = {
                key: written(value) if key in self.plan.grid else value
                for key, value in trial.changes.items()
            }
            _add(self.study, self.plan, params)

    def _finish(self, jobs: Sequence[Job], *, has_value: bool) -> None:
        """Once a trial's runs are done, report it, and keep only the models of the best so far.

        Models of many runs would take gigabytes. has_value: whether the study has the trial's
        error already.
        """
        if not all(job.finished for job in jobs):
            return
        result, number = self._result(jobs), jobs[0].trial.number
        self._results[number] = result
        if result.complete and result.mean and not has_value:
            self._enter(number)
            self.study.tell(number - 1, result.mean.mean)
        best = self._best.get(result.question)
        loser: Result | None = result
        if result.complete and (best is None or result.place < best.place):
            self._best[result.question], loser = result, best
        for folder in loser.folders.values() if loser else ():
            for part in ("checkpoint", "state", "model"):
                shutil.rmtree(folder / part, ignore_errors=True)


def _with_listed(tried: Sequence[FrozenTrial], plan: Plan) -> list[dict[str, object]]:
    """Return the parameters of a study's trials, then of the other trials that the plan lists."""
    keys = {frozenset(trial.params.items()) for trial in tried}
    return [
        *(trial.params for trial in tried),
        *(params for params in plan.listed() if frozenset(params.items()) not in keys),
    ]


def read_plan(folder: Path) -> Plan:
    """Return the plan of the sweep in this folder, or raise `SettingsError` if it has none."""
    file = folder / STUDY
    if not file.exists():
        raise SettingsError(f"{folder}: holds no sweep, as it has no {STUDY}")
    try:
        return Plan.model_validate_json(_study(file).user_attrs["plan"])
    except (KeyError, ValidationError):
        raise SettingsError(f"{file}: cannot be read: holds no plan of a sweep") from None


@contextmanager
def open_sweep(folder: Path, plan: Plan, *, extend: bool) -> Iterator[Sweep]:
    """Open the plan's sweep in a folder, which is made if needed and locked during the block.

    extend: the plan may be larger than the folder's plan. Raises `SettingsError` or `DataError` if
    the folder cannot be used or the sweep cannot run.
    """
    folder = folder.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = RunLock(folder)
    except OSError as error:
        raise SettingsError(f"{folder}: {error.strerror}") from None
    with lock, storage_errors(folder / STUDY):
        sweep = Sweep(folder, plan)
        sweep.prepare(extend)
        yield sweep


def _require_growth(folder: Path, before: Plan, after: Plan, extend: bool) -> None:
    """Raise `SettingsError` unless the plan is larger than the folder's, and `extend` is set."""
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
    listed = [{frozenset(params.items()) for params in plan.listed()} for plan in (before, after)]
    sizes = [
        (set(plan.seeds), plan.trials or 0, sum(map(len, plan.grid.values())))
        for plan in (before, after)
    ]
    if not listed[0] <= listed[1] or not sizes[0][0] <= sizes[1][0] or sizes[0][1] > sizes[1][1]:
        raise SettingsError(
            f"{folder} holds trials or seeds that this sweep lacks; a sweep can only grow"
        )
    if sizes[0] != sizes[1] and not extend:
        raise SettingsError(f"{folder} holds a smaller sweep; add --extend to let it grow")


def _study(file: Path) -> optuna.Study:
    """Read the study, or make it if there is none. Raise `SettingsError` if that fails."""
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
    params: Mapping[str, object],
    state: TrialState = TrialState.RUNNING,
    value: float | None = None,
) -> None:
    study.add_trial(
        create_trial(state=state, value=value, params=dict(params), distributions=dict(plan.space))
    )
