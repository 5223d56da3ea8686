"""The plan of a sweep: which settings it tries, listed or drawn, and whether they fit together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import Any, Literal, Self

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial
from pydantic import Field, ValidationError, field_validator, model_validator

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.randomness import stream_seed
from fedproto_app.core.section import Count, CountOrZero, Section
from fedproto_app.experiments.run_settings import NODES, unclaimed_settings
from fedproto_app.settings.faults import explain_all
from fedproto_app.settings.reading import flat, parsed, written

Params = dict[str, object]  # a trial's parameters; those from a grid are texts
Axis = CategoricalDistribution | FloatDistribution | IntDistribution

optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep reports its progress itself
MOST_RUNS = 10_000
_RANGE = re.compile(r"\s*(?P<low>.+?)\s*\.\.\s*(?P<high>.+?)\s*(?P<log>:log)?\s*")
_INTEGER = re.compile(r"[+-]?\d+")
_DIGITS = 4  # significant digits of a drawn number: few, so that people can read it


@dataclass(frozen=True)
class Trial:
    """One choice of the swept settings, numbered from 1."""

    number: int
    changes: Mapping[str, Any]

    def run_name(self, seed: int) -> str:
        """Return the folder name of the trial's run with this seed."""
        return f"{self.number:03}-s{seed}"

    def text(self) -> str:
        return "  ".join(f"{key}={value}" for key, value in self.changes.items())


class SweepTable(Section):
    """The table ``[sweep]`` of a configuration file. Its keys are explained in docs/sweep.md."""

    search: Literal["grid", "random", "optuna"] = "grid"
    trials: Count | None = None
    seeds: list[CountOrZero] = Field([0])
    nodes: Count = NODES
    search_seed: CountOrZero = 0
    batch: Count = 4
    output: str = ""
    grid: dict[str, list[object]] = Field({})
    range: dict[str, str] = Field({})

    @field_validator("grid", "range", mode="before")
    @classmethod
    def _dotted(cls, table: object) -> object:
        return flat(table) if isinstance(table, Mapping) else table

    @classmethod
    def read(cls, table: object) -> Self:
        """Read the table, or raise `SettingsError` with one line for all faults."""
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            raise SettingsError(explain_all(error.errors(), SweepTable, ["sweep"])) from None


class Plan(SweepTable):
    """The plan of a sweep, checked to be consistent. The runs' settings are checked elsewhere.

    base: the settings that all runs share, with dotted keys.
    """

    base: dict[str, object]

    @classmethod
    def of(cls, table: Mapping[str, object], settings: Mapping[str, object]) -> Self:
        """Return the plan from a table ``[sweep]`` and these settings. Paths become absolute.

        The settings of single runs, such as seed and folder, are left out.
        """
        base = dict(settings)
        complete = unclaimed_settings(base, SweepTable.read(table).nodes)
        paths = {
            "data.path": complete.data.path,
            "data.covariates": complete.data.covariates,
            "encoder.path": complete.encoder.path,
        }
        base |= {key: path for key, path in paths.items() if base.get(key)}
        for key in ("seed", "output.dir", "output.name", "output.resume", "output.pictures"):
            base.pop(key, None)
        return cls.read({**table, "base": base})

    @property
    def name(self) -> str:
        """The default name of the sweep's folder. The same plan always gives the same name."""
        names = "-".join(key.rpartition(".")[2] for key in self.space)
        plain = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in names)
        digest = sha256(self.model_dump_json().encode()).hexdigest()[:8]
        return f"{plain[:60]}-{digest}"

    @property
    def space(self) -> dict[str, Axis]:
        """Optuna's distribution of each swept setting.

        Listed values are categories. They are texts, because Optuna does not accept lists.
        """
        return {
            **{
                key: CategoricalDistribution([written(value) for value in values])
                for key, values in self.grid.items()
            },
            **{key: _range(key, text) for key, text in self.range.items()},
        }

    def listed(self) -> list[Params]:
        """Return the parameters of those trials that can be listed before any run, each once.

        A grid is listed in the order of its values. Optuna's own grid sampler would visit it at
        random, and start again when the grid grows.
        """
        if self.search == "grid":
            texts = [map(written, values) for values in self.grid.values()]
            return [dict(zip(self.grid, values, strict=True)) for values in product(*texts)]
        if self.search == "random":
            drawn = self.drawn(range(self.trials or 0), [])
            return list({repr(params): params for params in drawn}.values())
        return []

    def drawn(self, numbers: range, earlier: Sequence[tuple[Params, float | None]]) -> list[Params]:
        """Return the parameters that Optuna suggests for the trials with these numbers.

        Numbers start at 0. earlier: the trials on which the suggestions depend, each with its
        error, or None if a run failed. Each trial has its own seed, so that adding trials does not
        change the earlier ones.
        """
        study, space, drawn = optuna.create_study(), self.space, []
        for params, error in earlier:
            state = TrialState.RUNNING if error is None else TrialState.COMPLETE
            study.add_trial(
                create_trial(state=state, value=error, params=params, distributions=dict(space))
            )
        for number in numbers:
            seed = stream_seed(self.search_seed, self.search, number) % 2**32
            study.sampler = (RandomSampler if self.search == "random" else TPESampler)(seed=seed)
            params = study.ask(dict(space)).params
            drawn.append({key: _rounded(params[key], axis) for key, axis in space.items()})
        return drawn

    def corners(self) -> list[Trial]:
        """Return trials to be checked before any are drawn.

        Each value and each end of a range occurs in one of them, together with the first values of
        all other settings. If methods are swept, this is done for every method.
        """
        ends = {
            key: axis.choices
            if isinstance(axis, CategoricalDistribution)
            else (axis.low, axis.high)
            for key, axis in self.space.items()
        }
        first = {key: values[0] for key, values in ends.items()}
        return trials_of(
            [
                first | ({"method": method} if method else {}) | {key: value}
                for method in ends.get("method", [""])
                for key, values in ends.items()
                for value in values
            ]
        )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        swept = {**self.grid, **self.range}
        for key, values in self.grid.items():
            if not values or any(isinstance(value, Mapping) for value in values):
                raise SettingsError(f"grid of {key} = {values}: expected values: [10, 30, 100]")
            if len({repr(value) for value in values}) < len(values):
                raise SettingsError(f"grid of {key} = {values}: a value is listed twice")
        if not swept:
            raise SettingsError("nothing to sweep; try --grid fuels.beta=10,30,100")
        for key in swept:
            if key in self.grid and key in self.range:
                raise SettingsError(f"{key}: is swept twice")
            if key == "seed":
                raise SettingsError("seed: cannot be swept; give seeds with --seeds 0,1,2")
            if key.partition(".")[0] == "output":
                raise SettingsError(f"{key}: cannot be swept; --output has a folder for each run")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SettingsError(f"seeds = {self.seeds}: must be distinct whole numbers ≥ 0")
        if self.search == "grid" and (self.range or self.trials):
            option = f"--range {next(iter(self.range))}" if self.range else "--trials"
            raise SettingsError(
                f"{option}: a grid tries all values of --grid; draw with --search random "
                "--trials 20"
            )
        if self.search != "grid" and not self.trials:
            raise SettingsError(f"--search {self.search}: say how many with --trials 20")
        counts = [self.trials] if self.trials else [len(values) for values in self.grid.values()]
        if math.prod(counts) * len(self.seeds) > MOST_RUNS:
            raise SettingsError(
                f"{' × '.join(map(str, counts))} trials with {len(self.seeds)} seeds are more than "
                f"{MOST_RUNS:,} runs; draw fewer with --search random --trials 100"
            )
        _ = self.space  # refuses wrong ranges
        return self


def trials_of(parameters: Iterable[Mapping[str, object]]) -> list[Trial]:
    """Return trials with these parameters, numbered from 1."""
    return [
        Trial(number, {key: parsed(v) if isinstance(v, str) else v for key, v in params.items()})
        for number, params in enumerate(parameters, 1)
    ]


def _range(key: str, text: str) -> Axis:
    """Parse ``LOW..HIGH`` or ``LOW..HIGH:log``. Integer ends give integer draws."""
    match = _RANGE.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        low, high, log = match["low"], match["high"], bool(match["log"])
        if _INTEGER.fullmatch(low) and _INTEGER.fullmatch(high):
            return IntDistribution(int(low), int(high), log=log)
        if not math.isfinite(float(high) - float(low)):
            raise ValueError
        return FloatDistribution(float(low), float(high), log=log)
    except ValueError:
        raise SettingsError(
            f"range of {key} = {text!r}: expected LOW..HIGH, or LOW..HIGH:log above 0, with LOW "
            "below HIGH, such as 1e-4..1e-2:log"
        ) from None


def _rounded(value: object, axis: Axis) -> object:
    """Round a number to a few digits, within its range. Integers and texts stay as they are."""
    if not (isinstance(axis, FloatDistribution) and isinstance(value, float)):
        return value
    return min(max(float(f"{value:.{_DIGITS}g}"), axis.low), axis.high)
