"""What must hold for every method, seen on runs of seconds: same seed, same numbers.

A method passes that computes a client's numbers of nothing but the client's data and state, the
order, and randomness of `fedproto_app.core.randomness`. ``fedproto check-method`` prints all this.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, MessageType
from safetensors.numpy import load_file

from fedproto_app.core.methods import method_named
from fedproto_app.core.metrics import Metric
from fedproto_app.core.tasks import small_run, task_record
from fedproto_app.core.wire import QUESTION
from fedproto_app.engine.local import AT_ONCE, LocalGrid, nodes_sharing
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import flat, read_clients, read_rounds
from fedproto_app.server_app import conduct
from fedproto_app.serving.inference import kept_model, open_state
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.common.halves import make_learner
from fedproto_app.tasks.table import load_shard, make_task

# Cohorts and shards change the order of float32 sums; three rounds of training amplify that.
TOLERANCE = 2e-4
_NO_DIFFERENCE = 1e-12  # between numbers that may be zero

_HAIRS = re.compile(r": (coverage|width)_\d+$")
_PLACES = ("client", "node", "group")  # columns of clients.csv that are no results
_COSTS = ("seconds", "node_seconds", "bytes_down")  # a resumed run sends an encoder once more
_SOME: Mapping[str, Any] = {"participation": 0.6, "rounds": 4}
_ALONE: Mapping[str, Any] = {"cohort-size": 1}
_ERRORS = {"mse": "mse", "mae": "mae", "validation_mse": "validation-mse"}  # columns and metrics


@dataclass(frozen=True)
class Deviation:
    """How far what must be equal is apart.

    largest: the largest relative difference of two numbers, infinite where something is not in
    both. where: which number that is. allowed: by how much they may differ.
    """

    largest: float
    where: str
    allowed: float

    @property
    def held(self) -> bool:
        """Whether the invariant holds."""
        return self.largest <= self.allowed


class SmallRuns:
    """Runs of seconds of a method on a task, all in this process.

    changes: settings over the task's small ones. Raises `SettingsError` if they do not fit.
    """

    def __init__(self, task: str, method: str, folder: Path, **changes: Any) -> None:
        self.task, self.folder = task, folder
        needed = method_named(method).small
        self._table = {**small_run(task), **AT_ONCE, **needed, **changes, "method": method}
        self._settings("none")

    def state(self, label: str) -> Path:
        """Where the nodes of a run keep their state."""
        return self.folder / "state" / label

    def run(self, label: str, nodes: int, *, deaths: Sequence[int] = (), **changes: Any) -> Path:
        """The folder of a finished run, which is made when it is first asked for.

        deaths: its server is killed at so many answers of nodes, resumed, killed again, ….
        """
        path = self.folder / "runs" / label
        for dies_at in (*deaths, math.inf):
            if not (path / "summary.json").exists():
                resume = (path / "settings.toml").exists()
                settings = self._settings(label, **changes, **{"output.resume": resume})
                configs = nodes_sharing(settings.data, nodes, self.state(label))
                with suppress(_Killed), RunFolder(settings) as folder:
                    conduct(_MortalGrid(settings, configs, dies_at), settings, folder)
        return path

    def _settings(self, label: str, **changes: Any) -> Settings:
        output = {"output.dir": str(self.folder / "runs"), "output.name": label}
        return settings_from({**self._table, **output, **changes})


class _Killed(BaseException):
    """The server is killed here."""


class _MortalGrid(LocalGrid):
    """Its server does not live to see the answer to an order that has this number."""

    def __init__(
        self, settings: Settings, node_configs: Sequence[dict[str, Any]], dies_at: float
    ) -> None:
        super().__init__(settings, node_configs)
        self._left = dies_at

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if message.metadata.message_type in (MessageType.TRAIN, QUESTION, MessageType.EVALUATE):
            self._left -= 1
            if self._left == 0:
                raise _Killed
        return reply


# --- the invariants ---------------------------------------------------------------------------


def cohorts_equal_their_clients(runs: SmallRuns) -> Deviation:
    """Clients that train together, padded to the longest, and the same one by one."""
    together, alone = runs.run("one-node", 1), runs.run("alone", 1, **_ALONE)
    return apart(results(together), results(alone), TOLERANCE)


def one_node_equals_eight(runs: SmallRuns) -> Deviation:
    """A node with all clients, and a node for each."""
    return apart(results(runs.run("one-node", 1)), results(runs.run("eight", 8)), TOLERANCE)


def seeds_repeat(runs: SmallRuns) -> Deviation:
    """Two runs with one seed, bit for bit."""
    once, again = runs.run("once", 2, **_SOME), runs.run("again", 2, **_SOME)
    return apart(everything(again), everything(once), 0.0)


def kills_change_nothing(runs: SmallRuns) -> Deviation:
    """A run whose server is killed amid two rounds and resumed, and one left alone, bit for bit."""
    killed = runs.run("killed", 2, deaths=(6, 3), **_SOME)
    return apart(everything(killed), everything(runs.run("once", 2, **_SOME)), 0.0)


def kept_models_forecast(runs: SmallRuns) -> Deviation:
    """The errors that are reported, and those of the models that ``fedproto forecast`` uses."""
    reported = {row["client"]: row for row in read_clients(runs.run("one-node", 1))}
    state = open_state(runs.state("one-node"))
    shard = load_shard(state.settings, 0, 1)
    ours, theirs = {}, {}
    for name, client in shard.clients.items():
        settings = state.settings.of_client(name)
        task = make_task(settings, shard.shape)
        learner = make_learner(settings, task)
        kept = kept_model(state.store, name, learner)
        one = {parameter: value.unsqueeze(0) for parameter, value in kept.items()}
        errors = task.evaluate(one, task.gather([client], 1))
        for column, metric in _ERRORS.items():
            ours[f"{name}: {column}"] = errors[Metric(metric)][0]
            theirs[f"{name}: {column}"] = float(reported[name][column])
    return apart(ours, theirs, TOLERANCE)


Invariant = Callable[[SmallRuns], Deviation]

_OF_ALL: Mapping[str, Invariant] = {
    "a cohort equals its clients one by one": cohorts_equal_their_clients,
    "1 node with 8 clients equals 8 nodes with 1": one_node_equals_eight,
    "two runs with one seed are equal": seeds_repeat,
    "a run that is killed and resumed ends the same": kills_change_nothing,
}


def invariants_of(task: str, method: str = "") -> Mapping[str, Invariant]:
    """What must hold on the task, in words, and the check of each.

    method: the one to be checked; of models that do not forecast by themselves less holds.
    """
    if not task_record(task).forecasts or (method and method_named(method).cannot_forecast):
        return _OF_ALL
    return {**_OF_ALL, "what is reported is what forecasts": kept_models_forecast}


# --- comparing --------------------------------------------------------------------------------


def results(run: Path) -> dict[str, Any]:
    """The numbers of clients.csv, and the mean losses of the rounds.

    Without those of intervals: a hair decides whether a value lies in one, and how it goes on.
    """
    found = {name: value for name, value in _of_clients(run).items() if not _HAIRS.search(name)}
    for line in read_rounds(run):
        found |= {f"round {line['round']}: {name}": loss for name, loss in line["loss"].items()}
    return found


def everything(run: Path) -> dict[str, Any]:
    """What a run leaves behind, except for what it took."""
    found = _of_clients(run)
    for line in read_rounds(run):
        told = flat({name: value for name, value in line.items() if name not in _COSTS})
        found |= {f"round {line['round']}: {name}": value for name, value in told.items()}
    for file in sorted(run.glob("*.npz")):
        with np.load(file, allow_pickle=False) as arrays:
            found |= {f"{file.name}: {name}": arrays[name] for name in arrays.files}
    for file in sorted(run.glob("model/*.safetensors")):
        found |= {f"{file.name}: {name}": value for name, value in load_file(file).items()}
    return found


def _of_clients(run: Path) -> dict[str, Any]:
    return {
        f"{row['client']}: {column}": float(value)
        for row in read_clients(run)
        for column, value in row.items()
        if column not in _PLACES and value
    }


def apart(ours: Mapping[str, Any], theirs: Mapping[str, Any], allowed: float) -> Deviation:
    """How far named numbers, texts and arrays are apart."""
    if alone := sorted(ours.keys() ^ theirs.keys()):
        return Deviation(math.inf, alone[0], allowed)
    differences = {name: _difference(ours[name], theirs[name]) for name in ours}
    where = max(differences, key=differences.__getitem__)
    return Deviation(differences[where], where, allowed)


def _difference(one: Any, other: Any) -> float:
    """The largest relative difference; infinite if they are not equal and no numbers.

    What is not a number in both is equal.
    """
    ours, theirs = np.asarray(one), np.asarray(other)
    kinds = {ours.dtype.kind, theirs.dtype.kind}
    if ours.shape != theirs.shape or not kinds <= set("biuf"):
        return 0.0 if np.array_equal(ours, theirs) else math.inf
    both_none = np.isnan(ours) & np.isnan(theirs)
    gap = np.where(both_none, 0, np.abs(ours.astype(np.float64) - theirs))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(gap <= _NO_DIFFERENCE, gap, gap / np.abs(theirs))
    return float(np.nan_to_num(relative, nan=math.inf, posinf=math.inf).max(initial=0.0))
