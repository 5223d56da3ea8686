"""A sweep from its plan to its results, in a folder that goes on where it broke off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.run_lock import LOCK, RunLock
from fedproto_app.engine.pool import cores
from fedproto_app.experiments.run_settings import unclaimed_settings
from fedproto_app.experiments.simulation import check_data, check_pretraining, folder_of_users_code
from fedproto_app.experiments.sweep.plan import (
    PLAN,
    Plan,
    Trial,
    continued,
    require_plan,
    write_plan,
)
from fedproto_app.experiments.sweep.progress import SweepProgress
from fedproto_app.experiments.sweep.results import Question, Result, choices, result_of
from fedproto_app.experiments.sweep.runner import Job, Runner
from fedproto_app.experiments.sweep.search import STORAGE, require_optuna, search_for
from fedproto_app.settings import Settings, flat_settings

_OWN = (LOCK, PLAN, STORAGE)  # files of a sweep that may be there before its first run


@dataclass
class Sweep:
    """A checked sweep. trials: those that are known before any run; of Optuna none."""

    folder: Path
    plan: Plan
    trials: Sequence[Trial]
    failed: dict[str, str] = field(default_factory=dict)
    _best: dict[Question, Result] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many it has in all."""
        count = self.plan.trials if self.plan.search == "optuna" else len(self.trials)
        return count * len(self.plan.seeds)

    def finished_runs(self) -> int:
        return len(list(self.folder.glob("*/summary.json")))

    def settings(self, trial: Trial, seed: int) -> Settings:
        """Of a trial's run."""
        place = {"dir": str(self.folder), "name": trial.run_name(seed), "resume": False}
        given = {
            **self.plan.base,
            **trial.changes,
            "seed": seed,
            "output.pictures": False,
            **{f"output.{key}": value for key, value in place.items()},
        }
        return unclaimed_settings(given, self.plan.nodes)

    def jobs(self, trials: Sequence[Trial]) -> list[Job]:
        return [
            Job(trial, seed, self.settings(trial, seed))
            for trial in trials
            for seed in self.plan.seeds
        ]

    def run(self, parallel: int | None, console: Console) -> tuple[list[Result], list[Result]]:
        """Make all runs; returns what came of each trial, and the choice for each question.

        parallel: runs at a time; None: one for each core.
        """
        results: list[Result] = []
        search = search_for(self.folder, self.plan, self.trials)
        first = self.settings((self.trials or self.plan.corners())[0], self.plan.seeds[0])
        at_once = parallel or min(self.runs, runs_at_once(first))
        workers = max(1, cores() // at_once)
        with ExitStack() as stack:
            progress = stack.enter_context(SweepProgress(console, self.runs))
            runner = stack.enter_context(Runner(at_once, workers, self.plan.nodes))
            while trials := search.next():
                jobs = self.jobs(trials)
                its = {
                    trial.number: [one for one in jobs if one.trial == trial] for trial in trials
                }
                progress.add(jobs)
                for of_trial in its.values():
                    self._make_room(of_trial)

                def ended(job: Job, reason: str, its: Mapping[int, Sequence[Job]] = its) -> None:
                    progress.ended(job, reason)
                    if reason:
                        self.failed[job.settings.output.name] = reason
                    self._make_room(its[job.trial.number])

                runner.make(jobs, ended, progress.look)
                new = [self._result(of_trial) for of_trial in its.values()]
                search.tell({one.trial.number: _error(one) for one in new})
                results += new
        return results, choices(results)

    def _make_room(self, jobs: Sequence[Job]) -> None:
        """When a trial's runs are all done: the models of the best so far stay, all others, which
        are gigabytes over many runs, go."""
        if not all(job.finished for job in jobs):
            return
        result = self._result(jobs)
        rival = self._best.get(result.question)
        if not result.complete:
            loser: Result | None = result
        elif rival is None or result.place < rival.place:
            self._best[result.question], loser = result, rival
        else:
            loser = result
        for folder in loser.folders.values() if loser else ():
            for part in ("checkpoint", "state", "model"):
                shutil.rmtree(folder / part, ignore_errors=True)

    def _result(self, jobs: Sequence[Job]) -> Result:
        """Of a trial, by all its jobs."""
        folders = {job.seed: job.folder for job in jobs if job.finished}
        failed = {
            job.seed: self.failed.get(job.settings.output.name, "not made")
            for job in jobs
            if not job.finished
        }
        return result_of(jobs[0].trial, jobs[0].settings.task, folders, failed)


def prepared(folder: Path, plan: Plan, extend: bool) -> Sweep:
    """Check a plan as a whole, and put it into the folder, or find it there.

    The caller holds the folder's lock. Raises `SettingsError` or `DataError` for what cannot run.
    """
    require_plan(plan)
    if plan.search == "optuna":
        require_optuna()
    trials = [] if plan.search == "optuna" else plan.listed()
    if (folder / PLAN).exists():
        trials = continued(folder, plan, trials, extend)
    elif strangers := sorted(one.name for one in folder.iterdir() if one.name not in _OWN):
        raise SettingsError(
            f"{folder}: holds no sweep, but {strangers[0]!r}; choose another --output"
        )
    sweep = Sweep(folder, plan, trials)
    _check(sweep)
    write_plan(folder, plan, trials)
    return sweep


def lock(folder: Path) -> RunLock:
    """One sweep a folder, which is made. Raises `SettingsError` if it cannot be, or is taken."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return RunLock(folder)
    except OSError as error:
        raise SettingsError(f"{folder}: {error.strerror}") from None


def _check(sweep: Sweep) -> None:
    """All settings, then the data of those that differ in what data they have."""
    known: dict[str, Settings] = {}
    for trial in sweep.trials or sweep.plan.corners():
        try:
            settings = sweep.settings(trial, sweep.plan.seeds[0])
        except SettingsError as error:
            raise SettingsError(_with_trial(str(error), trial)) from None
        table = flat_settings(settings)
        of_data = {
            key: value
            for key, value in table.items()
            if key in ("task", "method") or key.startswith(("data.", "graph.", "encoder.path"))
        }
        known.setdefault(json.dumps(of_data, sort_keys=True, default=str), settings)
    for settings in known.values():
        check_pretraining(settings)
        check_data(settings, folder_of_users_code(settings))


def _with_trial(error: str, trial: Trial) -> str:
    """An error of settings that only stand together in a trial does not name it."""
    told = all(key in error for key in trial.changes)
    return error if told or len(trial.changes) == 1 else f"{error} (with {trial.text()})"


def runs_at_once(settings: Settings) -> int:
    """One for each core and thread; where nodes compute on GPUs, one for each of these."""
    if settings.device != "cpu":
        from fedproto_app.node.device import gpus

        if found := gpus(settings.device):
            return found
    return max(1, cores() // settings.threads)


def _error(result: Result) -> float | None:
    return result.mean.mean if result.complete and result.mean else None
