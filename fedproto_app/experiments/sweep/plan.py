"""What a sweep is to try, as its folder keeps it in ``plan.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.whole_file import write_whole
from fedproto_app.experiments.sweep.axes import Axis, Range, Values, range_axis, values_axis

PLAN = "plan.json"
SEARCHES = ("grid", "random", "optuna")
MOST_RUNS = 10_000
_FORMAT = 1


@dataclass(frozen=True)
class Trial:
    """One choice of the swept settings, by its number in the sweep, from 1 on."""

    number: int
    changes: Mapping[str, Any]

    def run_name(self, seed: int) -> str:
        """The folder of its run with this seed."""
        return f"{self.number:03}-s{seed}"

    def text(self) -> str:
        return "  ".join(f"{key}={value}" for key, value in self.changes.items())


@dataclass(frozen=True)
class Plan:
    """A sweep.

    base: the settings under those that are swept, as far as they were told, with dotted keys.
    search: one of `SEARCHES`. trials: how many are drawn, 0 for a grid. seeds: of each trial's
    runs. nodes: simulated ones of a run. search_seed: of what is drawn. batch: how many trials
    Optuna is asked for before it hears of the first of them.
    """

    base: Mapping[str, Any]
    axes: tuple[Axis, ...]
    search: str
    trials: int
    seeds: tuple[int, ...]
    nodes: int
    search_seed: int
    batch: int

    @property
    def keys(self) -> list[str]:
        return [axis.key for axis in self.axes]

    @property
    def size(self) -> int:
        """How many trials there are at most."""
        if self.search == "grid":
            return math.prod(len(axis.samples) for axis in self.axes)
        return self.trials

    def listed(self) -> list[Trial]:
        """The trials of a grid or of a random search; of equal ones the first."""
        if self.search == "grid":
            made = [
                dict(zip(self.keys, values, strict=True))
                for values in product(*(axis.samples for axis in self.axes))
            ]
        else:
            made = [self._drawn(number) for number in range(1, self.trials + 1)]
        apart = {_content(changes): changes for changes in reversed(made)}
        return [
            Trial(number, changes) for number, changes in enumerate(reversed(apart.values()), 1)
        ]

    def _drawn(self, number: int) -> dict[str, Any]:
        """A stream for each: more trials leave the first ones as they are."""
        return {
            axis.key: axis.draw(numpy_stream(self.search_seed, "sweep", axis.key, number))
            for axis in self.axes
        }

    def corners(self) -> list[Trial]:
        """Trials whose settings are checked before Optuna draws others: each axis's values, with
        the others' first ones."""
        first = {axis.key: axis.samples[0] for axis in self.axes}
        made = [first | {axis.key: value} for axis in self.axes for value in axis.samples]
        return [Trial(number, changes) for number, changes in enumerate(made, 1)]

    def digest(self) -> str:
        """Of all that it says."""
        return sha256(_content(self.table()).encode()).hexdigest()[:8]

    def table(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "format": _FORMAT,
            "search": self.search,
            "trials": self.trials,
            "seeds": list(self.seeds),
            "grid": {axis.key: axis.values for axis in self.axes if isinstance(axis, Values)},
            "range": {axis.key: axis.text for axis in self.axes if isinstance(axis, Range)},
            "search-seed": self.search_seed,
            "batch": self.batch,
            "nodes": self.nodes,
            "base": dict(self.base),
        }


def require_plan(plan: Plan) -> None:
    """`SettingsError` for a plan that makes no sense, whatever the settings are."""
    swept = plan.keys
    if not swept:
        raise SettingsError("nothing to sweep; try --grid fuels.beta=10,30,100")
    for key in swept:
        if swept.count(key) > 1:
            raise SettingsError(f"{key}: is swept twice")
        if key == "seed":
            raise SettingsError("seed: give seeds with --seeds 0,1,2; they are no choice")
        if key == "output" or key.startswith("output."):
            raise SettingsError(f"{key}: a sweep has one --output, with a folder for each run")
    if len(set(plan.seeds)) < len(plan.seeds) or not plan.seeds or min(plan.seeds) < 0:
        raise SettingsError(
            f"seeds = {list(plan.seeds)}: must be different whole numbers from 0 on"
        )
    ranges = [axis.key for axis in plan.axes if isinstance(axis, Range)]
    if plan.search == "grid" and ranges:
        raise SettingsError(
            f"--range {ranges[0]}: a grid has no ranges; draw from them with --search random "
            "--trials 20"
        )
    if plan.search == "grid" and plan.trials:
        raise SettingsError("--trials: a grid tries all; draw some with --search random")
    if plan.search != "grid" and plan.trials < 1:
        raise SettingsError(f"--search {plan.search}: say how many with --trials 20")
    if plan.size * len(plan.seeds) > MOST_RUNS:
        counts = " × ".join(str(len(axis.samples)) for axis in plan.axes)
        told = f"{counts} = {plan.size:,}" if plan.search == "grid" else f"{plan.size:,}"
        raise SettingsError(
            f"{told} trials with {len(plan.seeds)} seeds are more than {MOST_RUNS:,} runs; draw "
            "fewer with --search random --trials 100"
        )


def write_plan(folder: Path, plan: Plan, trials: Sequence[Trial]) -> None:
    """``plan.json``: the plan, and the trials that are known before any run, in their order."""
    tried = [dict(trial.changes) for trial in trials]
    text = json.dumps(plan.table() | {"tried": tried}, indent=2)
    write_whole(folder / PLAN, (text + "\n").encode())


def read_plan(folder: Path) -> tuple[Plan, list[Trial]]:
    """What `write_plan` wrote; raises `SettingsError` if there is none that can be used."""
    file = folder / PLAN
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        if table["format"] != _FORMAT:
            raise ValueError(f"format {table['format']} is not {_FORMAT}")
        plan = Plan(
            base=table["base"],
            axes=(
                *(values_axis(key, values, str(file)) for key, values in table["grid"].items()),
                *(range_axis(key, text, str(file)) for key, text in table["range"].items()),
            ),
            search=table["search"],
            trials=table["trials"],
            seeds=tuple(table["seeds"]),
            nodes=table["nodes"],
            search_seed=table["search-seed"],
            batch=table["batch"],
        )
        require_plan(plan)
        return plan, [Trial(number, tried) for number, tried in enumerate(table["tried"], 1)]
    except OSError as error:
        raise SettingsError(f"{file}: holds no sweep: {error.strerror}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"{file}: cannot be read: {error}") from None


def continued(folder: Path, plan: Plan, trials: Sequence[Trial], extend: bool) -> list[Trial]:
    """The trials of the plan, numbered as the folder's sweep has them, and its new ones behind.

    Raises `SettingsError` if the folder holds another sweep, or one that is smaller and `extend` is
    not said.
    """
    before, tried = read_plan(folder)
    differing = _differences(before, plan)
    if differing:
        raise SettingsError(
            f"{folder} holds another sweep: {'; '.join(differing)}; choose another --output"
        )
    known = {_content(trial.changes) for trial in tried}
    wanted = {_content(trial.changes): trial for trial in trials}
    fewer = (
        not known <= wanted.keys()
        or not set(before.seeds) <= set(plan.seeds)
        or plan.trials < before.trials
    )
    if fewer:
        raise SettingsError(
            f"{folder} holds a sweep with more trials or seeds than this ({before.size} trials, "
            f"seeds {_listed(before.seeds)}); a sweep can only grow"
        )
    new = [trial.changes for content, trial in wanted.items() if content not in known]
    grown = new or set(plan.seeds) != set(before.seeds) or plan.trials > before.trials
    if grown and not extend:
        raise SettingsError(
            f"{folder} holds a smaller sweep ({before.size} trials, seeds "
            f"{_listed(before.seeds)}); say --extend to let it grow"
        )
    added = [Trial(number, changes) for number, changes in enumerate(new, len(tried) + 1)]
    return [*tried, *added]


def _differences(before: Plan, now: Plan) -> list[str]:
    """What no sweep may change under way; a grid's values may become more."""
    found = []
    for name in ("search", "nodes", "search_seed", "batch"):
        if getattr(before, name) != getattr(now, name):
            word = name.replace("_", "-")
            found.append(f"{word} = {getattr(now, name)}, was {getattr(before, name)}")
    grows = now.search == "grid"
    old, new = (_axes(plan, values_too=not grows) for plan in (before, now))
    missing = "not swept"
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            found.append(f"{key}: {new.get(key, missing)}, was {old.get(key, missing)}")
    for key in sorted(before.base.keys() | now.base.keys()):
        if before.base.get(key) != now.base.get(key):
            told = (
                repr(base[key]) if key in base else "not set" for base in (now.base, before.base)
            )
            found.append(f"{key} = {next(told)}, was {next(told)}")
    return found


def _axes(plan: Plan, values_too: bool) -> dict[str, str]:
    texts = {}
    for axis in plan.axes:
        if isinstance(axis, Range):
            texts[axis.key] = axis.text
        else:
            texts[axis.key] = _listed(axis.values) if values_too else "a list"
    return texts


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _content(table: Mapping[str, Any]) -> str:
    """Equal for equal tables, whatever the order of their keys; 1 and 1.0 differ."""
    return json.dumps(table, sort_keys=True, default=str)
