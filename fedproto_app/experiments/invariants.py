"""Check in runs of a few seconds that a method gives the same numbers for the same seed.

A method passes if it computes a client's numbers only from the client's data and state, the order,
and randomness of `fedproto_app.core.randomness`. ``fedproto check-method`` prints the results.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, UserConfig
from safetensors.numpy import load_file

from fedproto_app.core.methods import method_named
from fedproto_app.core.metrics import Model
from fedproto_app.core.wire import QUESTION
from fedproto_app.engine.local import AT_ONCE, LocalGrid, nodes_sharing
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_clients, read_rounds, read_task
from fedproto_app.report.task_report import report_for
from fedproto_app.server_app import conduct
from fedproto_app.serving import kept_model, read_state
from fedproto_app.settings import Settings, settings_from
from fedproto_app.settings.reading import flat
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.tasks.table import load_shard, make_task, small_run

# Cohorts and shards change the order of float32 sums. Three rounds of training amplify the effect.
TOLERANCE = 2e-4
_NO_DIFFERENCE = 1e-12  # a smaller difference counts as none, as both numbers may be zero

_COSTS = ("seconds", "node_seconds", "bytes_down")  # a resumed run repeats a download
_PARTIAL: Mapping[str, Any] = {"participation": 0.6, "rounds": 4}
_ALONE: Mapping[str, Any] = {"cohort-size": 1}


@dataclass(frozen=True)
class Deviation:
    """The deviation between two sets of values that must be equal.

    largest: the largest relative difference of two numbers, infinite if a value is missing in one
    of the sets. where: the name of the value that differs most. allowed: the largest
    difference at which the invariant holds.
    """

    largest: float
    where: str
    allowed: float

    @property
    def held(self) -> bool:
        """Whether the invariant holds."""
        return self.largest <= self.allowed


class SmallRuns:
    """Short runs of a method on a task, all in this process.

    changes: settings that override the task's small settings. Wrong ones raise `SettingsError`.
    cannot_predict: why kept models do not predict by themselves, in words, or "".
    """

    def __init__(self, task: str, method: str, folder: Path, **changes: object) -> None:
        self.task, self.folder = task, folder
        small_settings = method_named(method).small
        self._table = {**small_run(task), **AT_ONCE, **small_settings, **changes, "method": method}
        settings = self._settings("none")
        self.cannot_predict = method_named(method).cannot_predict(settings)

    def state(self, label: str) -> Path:
        """Return the folder where the nodes of a run keep their state."""
        return self.folder / "state" / label

    def run(self, label: str, nodes: int, *, deaths: Sequence[int] = (), **changes: object) -> Path:
        """Return the folder of a finished run. The first call with a label makes the run.

        deaths: the server is killed and resumed once per entry, after that many replies.
        """
        path = self.folder / "runs" / label
        if not (path / "summary.json").exists():  # an earlier call may have failed half-way
            for unfinished in (path, self.state(label)):
                shutil.rmtree(unfinished, ignore_errors=True)
        for dies_at in (*deaths, math.inf):
            if not (path / "summary.json").exists():
                resume = (path / "settings.toml").exists()
                settings = self._settings(label, **changes, **{"output.resume": resume})
                configs = nodes_sharing(settings.data, nodes, self.state(label))
                with suppress(_Killed), RunFolder(settings) as folder:
                    conduct(_MortalGrid(settings, configs, dies_at), folder)
        return path

    def _settings(self, label: str, **changes: object) -> Settings:
        output = {"output.dir": str(self.folder / "runs"), "output.name": label}
        return settings_from({**self._table, **output, **changes})


class _Killed(BaseException):
    """Raised to simulate a killed server."""


class _MortalGrid(LocalGrid):
    """A grid that kills the server at the reply with the number `dies_at`."""

    def __init__(
        self, settings: Settings, node_configs: Sequence[UserConfig], dies_at: float
    ) -> None:
        super().__init__(settings, node_configs)
        self._answers_left = dies_at

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if message.metadata.message_type in (MessageType.TRAIN, QUESTION, MessageType.EVALUATE):
            self._answers_left -= 1
            if self._answers_left == 0:
                raise _Killed
        return reply


# --- the invariants ---------------------------------------------------------------------------


def cohorts_equal_their_clients(runs: SmallRuns) -> Deviation:
    """Compare clients trained as a cohort, padded to the longest, with clients trained alone."""
    together, alone = runs.run("one-node", 1), runs.run("alone", 1, **_ALONE)
    return apart(results(together), results(alone), TOLERANCE)


def one_node_equals_eight(runs: SmallRuns) -> Deviation:
    """Compare one node that has all clients with one node per client."""
    return apart(results(runs.run("one-node", 1)), results(runs.run("eight", 8)), TOLERANCE)


def seeds_repeat(runs: SmallRuns) -> Deviation:
    """Compare two runs with the same seed, bit for bit."""
    first, second = runs.run("once", 2, **_PARTIAL), runs.run("again", 2, **_PARTIAL)
    return apart(everything(second), everything(first), 0.0)


def kills_change_nothing(runs: SmallRuns) -> Deviation:
    """Compare a run that is killed twice and resumed with an undisturbed run, bit for bit."""
    killed = runs.run("killed", 2, deaths=(6, 3), **_PARTIAL)
    return apart(everything(killed), everything(runs.run("once", 2, **_PARTIAL)), 0.0)


def kept_models_predict(runs: SmallRuns) -> Deviation:
    """Compare the reported errors with the errors of the models that predict for new data.

    Validation errors of methods that also learn from validation samples are of other models, so
    they are left out.
    """
    reported = read_clients(runs.run("one-node", 1))
    state = read_state(runs.state("one-node"))
    shard = load_shard(state.settings, 0, 1)
    learns = method_named(state.settings.method).learns_from_validation(state.settings)
    computed, noted = {}, {}
    for name, client in shard.clients.items():
        settings, kept_round = state.settings.of_client(name), state.store.record(name).kept_round
        task = make_task(settings, shard.shape)
        learner = make_learner(settings, task, kept_round)
        parameters = kept_model(state.store, name, learner)
        batch = {parameter: value.unsqueeze(0) for parameter, value in parameters.items()}
        errors = task.evaluate(batch, task.gather([client], kept_round))
        metrics = {
            replace(metric, model=Model.KEPT): values[0] for metric, values in errors.items()
        }
        for figure in task.metrics.figures:
            column, error = figure.column.name, figure.value(metrics)
            if learns and figure is task.metrics.kept_validation:
                continue
            if column and error is not None and not figure.jumps:
                computed[f"{name}: {column}"] = error
                noted[f"{name}: {column}"] = reported.by_client(column)[name]
    return apart(computed, noted, TOLERANCE)


Invariant = Callable[[SmallRuns], Deviation]

_FOR_ALL_METHODS: Mapping[str, Invariant] = {
    "a cohort equals its clients one by one": cohorts_equal_their_clients,
    "1 node with 8 clients equals 8 nodes with 1": one_node_equals_eight,
    "two runs with one seed are equal": seeds_repeat,
    "a run that is killed and resumed ends the same": kills_change_nothing,
}


def invariants_of(runs: SmallRuns) -> Mapping[str, Invariant]:
    """Return the invariants that apply to the method with these settings, in words, with checks."""
    if runs.cannot_predict:
        return _FOR_ALL_METHODS
    return {**_FOR_ALL_METHODS, "what is reported is what predicts": kept_models_predict}


# --- comparing --------------------------------------------------------------------------------


def results(run: Path) -> dict[str, object]:
    """Return the numbers of clients.csv, and the mean losses of the rounds.

    Figures that can jump are left out. For instance, a tiny difference decides whether a value lies
    in an interval, and so changes the coverage.
    """
    figures = report_for(read_task(run)).metrics.figures
    jumping = {figure.column.name for figure in figures if figure.jumps}
    numbers = _client_numbers(run, jumping)
    for line in read_rounds(run):
        numbers |= {f"round {line['round']}: {name}": loss for name, loss in line["loss"].items()}
    return numbers


def everything(run: Path) -> dict[str, object]:
    """Return all results of a run except its costs."""
    values = _client_numbers(run)
    for line in read_rounds(run):
        figures = flat({name: value for name, value in line.items() if name not in _COSTS})
        values |= {f"round {line['round']}: {name}": value for name, value in figures.items()}
    for file in sorted(run.glob("*.npz")):
        with np.load(file, allow_pickle=False) as arrays:
            values |= {f"{file.name}: {name}": arrays[name] for name in arrays.files}
    for file in sorted(run.glob("model/*.safetensors")):
        values |= {f"{file.name}: {name}": value for name, value in load_file(file).items()}
    return values


def _client_numbers(run: Path, without: Collection[str] = ()) -> dict[str, object]:
    clients = read_clients(run)
    return {
        f"{client}: {column}": value
        for column in clients.numbers
        if column not in without
        for client, value in clients.by_client(column).items()
        if not math.isnan(value)
    }


def apart(
    values: Mapping[str, object], reference: Mapping[str, object], allowed: float
) -> Deviation:
    """Return the deviation between named numbers, texts and arrays."""
    if unmatched := sorted(values.keys() ^ reference.keys()):
        return Deviation(math.inf, unmatched[0], allowed)
    differences = {name: _difference(values[name], reference[name]) for name in values}
    where = max(differences, key=differences.__getitem__)
    return Deviation(differences[where], where, allowed)


def _difference(value: object, reference: object) -> float:
    """Return the largest relative difference, infinite if values that are no numbers differ.

    NaN equals NaN.
    """
    array, reference_array = np.asarray(value), np.asarray(reference)
    kinds = {array.dtype.kind, reference_array.dtype.kind}
    if array.shape != reference_array.shape or not kinds <= set("biuf"):
        return 0.0 if np.array_equal(array, reference_array) else math.inf
    both_none = np.isnan(array) & np.isnan(reference_array)
    gap = np.where(both_none, 0, np.abs(array.astype(np.float64) - reference_array))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(gap <= _NO_DIFFERENCE, gap, gap / np.abs(reference_array))
    return float(np.nan_to_num(relative, nan=math.inf, posinf=math.inf).max(initial=0.0))
