"""A sweep: it follows a plan, from the table ``[sweep]``, and keeps its runs in a folder.

The file ``plan.json`` in the folder holds the plan and the settings of all trials so far, so a
sweep that was stopped goes on with the same trials. Its only other state is its finished runs. The
trials that Optuna suggests depend only on earlier batches, however many runs are made at a time and
however often the sweep is interrupted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console

from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.core.run_lock import LOCK, RunLock
from fedproto_app.core.whole_file import write_whole
from fedproto_app.experiments.run_settings import unclaimed_settings
from fedproto_app.experiments.simulation import (
    check_data,
    check_pretraining,
    most_workers,
    require_modules,
)
from fedproto_app.experiments.sweep_plan import Params, Plan, Trial, trials_of
from fedproto_app.experiments.sweep_results import Result, choices, result_of
from fedproto_app.experiments.sweep_runs import Job, SweepProgress, make_runs
from fedproto_app.settings import Settings
from fedproto_app.settings.reading import flat

FOLDER, PLAN = "sweeps", "plan.json"
_DATA = ("task", "method", "data", "graph", "encoder", "privacy")  # the data depend on these tables


class Sweep:
    """A sweep and its folder.

    params: the parameters of each trial so far. failed: why runs failed, by their names.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.params: list[Params] = []
        self.failed: dict[str, str] = {}
        self._settings_of: dict[str, Settings] = {}  # keys: the trials' changes
        self._best: dict[object, Result] = {}  # keys: the results' questions

    @property
    def run_count(self) -> int:
        count = self.plan.trials if self.plan.search == "optuna" else len(self.params)
        return (count or 0) * len(self.plan.seeds)

    def finished_runs(self) -> int:
        return len(list(self.folder.glob("*/summary.json")))

    def require_runs(self) -> None:
        """If runs failed, raise a `FederationError` with the reason for one of them."""
        if self.failed:
            name, reason = next(iter(self.failed.items()))
            raise FederationError(
                f"{len(self.failed)} of {self.run_count} runs failed, {name}: {reason}; repeating "
                "the sweep tries them again"
            )

    def prepare(self, extend: bool) -> None:
        """Check the sweep, then write its plan into its folder or continue the folder's sweep.

        The caller holds the folder's lock. extend: the plan may be larger than the folder's plan.
        If the sweep cannot run, raises `SettingsError` or `DataError` and removes a new folder.
        """
        before, tried = _stored(self.folder)
        other_files = sorted({path.name for path in self.folder.iterdir()} - {LOCK, f"{PLAN}.new"})
        if before is None and other_files:
            raise SettingsError(
                f"{self.folder}: holds no sweep, but {other_files[0]!r}; choose another --output"
            )
        if before and before != self.plan:
            _require_growth(self.folder, before, self.plan, extend)
        known = {frozenset(params.items()) for params in tried}
        new = [p for p in self.plan.listed() if frozenset(p.items()) not in known]
        self.params = [*tried, *new]
        try:
            self._check(trials_of(self.params) or self.plan.corners())
        except BaseException:
            if before is None:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise
        if before != self.plan:
            self._store()

    def run(self, parallel: int | None, console: Console) -> tuple[list[Result], list[Result]]:
        """Make all runs. Return every trial's result, and the best trial for each question.

        parallel: the number of runs at a time, by default one per core.
        """
        first = self._settings(
            (trials_of(self.params) or self.plan.corners())[0], self.plan.seeds[0]
        )
        at_once = parallel or max(1, min(self.run_count, most_workers(first) // first.threads))
        results: list[Result] = []
        with SweepProgress(console, self.run_count) as progress:
            while trials := self._trials_after(results):
                results += self._make(trials, at_once, progress)
        return results, choices(results)

    def _store(self) -> None:
        stored = {"plan": self.plan.model_dump(mode="json", by_alias=True), "trials": self.params}
        write_whole(self.folder / PLAN, json.dumps(stored).encode())

    def _check(self, trials: Sequence[Trial]) -> None:
        """Check the settings of the trials, then check each different data set once."""
        different: dict[str, Settings] = {}
        for trial in trials:
            try:
                settings = self._settings(trial, self.plan.seeds[0])
            except SettingsError as error:  # the message may not name all settings at fault
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
            check_data(settings)

    def _trials_after(self, results: Sequence[Result]) -> list[Trial]:
        """Return the trials that have no result yet. A batch of Optuna's is always drawn whole."""
        if self.plan.search == "optuna":
            first = len(results) - len(results) % self.plan.batch
            errors = [r.mean.mean if r.complete and r.mean else None for r in results[:first]]
            numbers = range(len(self.params), min(first + self.plan.batch, self.plan.trials or 0))
            earlier = list(zip(self.params, errors, strict=False))
            if drawn := self.plan.drawn(numbers, earlier):
                self.params += drawn
                self._store()
        return trials_of(self.params)[len(results) :]

    def _make(
        self, trials: Sequence[Trial], parallel: int, progress: SweepProgress
    ) -> list[Result]:
        """Make the runs of these trials that are not finished, and return the trials' results."""
        jobs = {
            trial.number: [Job(trial, s, self._settings(trial, s)) for s in self.plan.seeds]
            for trial in trials
        }
        all_jobs = [job for of_trial in jobs.values() for job in of_trial]
        progress.add(all_jobs)
        results = {number: self._finish(of_trial) for number, of_trial in jobs.items()}
        # An error here ends the other runs at once, because the generator is closed.
        with closing(make_runs(all_jobs, self.plan.nodes, parallel, progress)) as ended:
            for job, reason in ended:
                progress.ended(job, reason)
                if reason:
                    self.failed[job.name] = reason
                results[job.trial.number] = self._finish(jobs[job.trial.number])
        return list(results.values())

    def _settings(self, trial: Trial, seed: int) -> Settings:
        key = repr(trial.changes)
        if key not in self._settings_of:
            changes = {**self.plan.base, **trial.changes, "output.dir": str(self.folder)}
            changes |= {"output.resume": False, "output.pictures": False}
            self._settings_of[key] = unclaimed_settings(changes, self.plan.nodes)
        settings = self._settings_of[key]
        output = settings.output.model_copy(update={"name": trial.run_name(seed)})
        return settings.model_copy(update={"seed": seed, "output": output})

    def _finish(self, jobs: Sequence[Job]) -> Result:
        """Return a trial's result. If no run failed, remove its models or the previous best's.

        Only the best trial keeps its models, because the models of many runs would take gigabytes.
        """
        done = {job.seed: job.folder for job in jobs if job.finished}
        failed = {job.seed: self.failed.get(job.name, "not made") for job in jobs}
        failed = {seed: reason for seed, reason in failed.items() if seed not in done}
        result = result_of(jobs[0].trial, jobs[0].settings.task, done, failed)
        if failed:
            return result
        best = self._best.get(result.question)
        loser: Result | None = result
        if result.complete and (best is None or result.place < best.place):
            self._best[result.question], loser = result, best
        for folder in loser.folders.values() if loser else ():
            for part in ("checkpoint", "state", "model"):
                shutil.rmtree(folder / part, ignore_errors=True)
        return result


def _stored(folder: Path) -> tuple[Plan | None, list[Params]]:
    """Return the plan of the folder's sweep and its trials so far, or (None, []) if it has none."""
    file = folder / PLAN
    if not file.exists():
        return None, []
    try:
        stored = json.loads(file.read_bytes())
        return Plan.read(stored["plan"]), [dict(params) for params in stored["trials"]]
    except (ValueError, TypeError, KeyError, SettingsError):
        raise SettingsError(f"{file}: cannot be read: holds no plan of a sweep") from None


def read_plan(folder: Path) -> Plan:
    """Return the plan of the sweep in this folder, or raise `SettingsError` if it has none."""
    plan, _ = _stored(folder)
    if plan is None:
        raise SettingsError(f"{folder}: holds no sweep, as it has no {PLAN}")
    return plan


@contextmanager
def open_sweep(folder: Path, plan: Plan, *, extend: bool) -> Iterator[Sweep]:
    """Open the plan's sweep in a folder, for a ``with`` block that locks the folder.

    The folder is made if needed. extend: the plan may be larger than the folder's plan. Raises
    `SettingsError` or `DataError` if the folder cannot be used or the sweep cannot run.
    """
    folder = folder.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = RunLock(folder)
    except OSError as error:
        raise SettingsError(f"{folder}: {error.strerror}") from None
    with lock:
        sweep = Sweep(folder, plan)
        sweep.prepare(extend)
        yield sweep


def _require_growth(folder: Path, before: Plan, after: Plan, extend: bool) -> None:
    """Raise `SettingsError` unless the plan only adds to the folder's plan and `extend` is set."""
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
