"""Where a sweep's next trials come from: its list, or Optuna, which hears how the last ones did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedproto_app.core.errors import optional
from fedproto_app.core.randomness import stream_seed
from fedproto_app.experiments.sweep.axes import Axis, Values
from fedproto_app.experiments.sweep.plan import Plan, Trial

STORAGE = "optuna.db"
_STUDY = "sweep"


class Search(Protocol):
    def next(self) -> list[Trial]:
        """The trials to run now; none when all were told."""

    def tell(self, errors: Mapping[int, float | None]) -> None:
        """The mean validation errors of the last ones, by number; None of one that failed."""


class Listed:
    """A grid, or what was drawn at random: all at once."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left = list(trials)

    def next(self) -> list[Trial]:
        trials, self._left = self._left, []
        return trials

    def tell(self, errors: Mapping[int, float | None]) -> None: ...


def require_optuna() -> Any:
    """The library, or `SettingsError` with the extra's name."""
    return optional("optuna", "sweep", "--search optuna")


class OptunaSearch:
    """Optuna's tree-structured Parzen estimator, in batches, on a study in the sweep's folder.

    What is drawn depends on the plan and on earlier batches alone: each trial has a sampler of its
    own, seeded by its number, and a batch is asked for when the one before is told as a whole. So
    a sweep that was killed goes on to the same trials.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._optuna = require_optuna()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._plan = plan
        self._study = self._optuna.create_study(
            storage=f"sqlite:///{folder / STORAGE}",
            study_name=_STUDY,
            direction="minimize",
            load_if_exists=True,
        )
        self._asked: dict[int, Any] = {}

    def next(self) -> list[Trial]:
        """The rest of a batch that was begun, or the next one."""
        trials = self._study.get_trials(deepcopy=False)
        self._asked = {one.number + 1: one for one in trials if not one.state.is_finished()}
        started = len(trials)
        told = started - len(self._asked)
        end = (told // self._plan.batch + 1) * self._plan.batch
        for number in range(started + 1, min(end, self._plan.trials) + 1):
            seed = stream_seed(self._plan.search_seed, "optuna", number) % 2**32
            self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
            asked = self._study.ask(self._distributions())
            self._asked[asked.number + 1] = asked
        return [
            Trial(
                number, {axis.key: _value(axis, asked.params[axis.key]) for axis in self._plan.axes}
            )
            for number, asked in sorted(self._asked.items())
        ]

    def tell(self, errors: Mapping[int, float | None]) -> None:
        """In the order of their numbers, which the next batch depends on."""
        failed = self._optuna.trial.TrialState.FAIL
        for number, error in sorted(errors.items()):
            if error is None:
                self._study.tell(number - 1, state=failed)
            else:
                self._study.tell(number - 1, error)

    def _distributions(self) -> dict[str, Any]:
        return {axis.key: self._distribution(axis) for axis in self._plan.axes}

    def _distribution(self, axis: Axis) -> Any:
        of = self._optuna.distributions
        if isinstance(axis, Values):  # by place: Optuna takes no lists
            return of.CategoricalDistribution(range(len(axis.values)))
        if axis.whole:
            return of.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
        return of.FloatDistribution(float(axis.low), float(axis.high), log=axis.log)


def _value(axis: Axis, drawn: Any) -> Any:
    if isinstance(axis, Values):
        return axis.values[drawn]
    return drawn if axis.whole else axis.rounded(drawn)


def search_for(folder: Path, plan: Plan, trials: Sequence[Trial]) -> Search:
    """trials: those that are known before any run."""
    return OptunaSearch(folder, plan) if plan.search == "optuna" else Listed(trials)
