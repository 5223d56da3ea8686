"""Compare a run with what its clients could do alone, and count the clients that are better off.

A run that sent no values shows what clients can do alone: solo, the naive forecasts, or a ridge
regression per client. Among several such runs, each client takes the run with its lowest validation
error, as it would in practice. Test errors are never used to choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import fmean

from fedproto_app.report.runs import Group, Run, known_settings, read_clients
from fedproto_app.report.task_report import report_for
from fedproto_app.tasks.metrics import BETTER_OFF, TaskMetrics


@dataclass(frozen=True)
class Errors:
    """Test and validation error of one client's kept model, infinite where unknown."""

    test: float
    validation: float


def client_errors(run: Run, metrics: TaskMetrics) -> dict[str, Errors]:
    """Return the errors of the clients that have a test error, by client name.

    Names that occur at two nodes are left out: another run may have them at other nodes.
    """
    rows = read_clients(run.folder)
    times = Counter(row["client"] for row in rows)
    test, validation = metrics.kept.column.name, metrics.kept_validation.column.name
    errors = {
        row["client"]: Errors(
            1 - _number(row[test]) if metrics.is_accuracy else _number(row[test]),
            _number(row[validation]),
        )
        for row in rows
        if times[row["client"]] == 1
    }
    return {client: error for client, error in errors.items() if isfinite(error.test)}


def is_alone(run: Run) -> bool:
    """Whether the run shared nothing; False if its summary does not say."""
    parameters_sent = [run.summary.get(key) for key in ("parameters_up", "parameters_down")]
    return parameters_sent == [0, 0]


def question(run: Run, metrics: TaskMetrics) -> tuple[object, ...]:
    """Return a key that is equal for runs whose test errors can be compared client by client."""
    data = {
        key: value
        for key, value in known_settings(run).items()
        if key.startswith("data.") and key.removeprefix("data.") not in metrics.inputs
    }
    return run.summary["dataset"], tuple(sorted(data.items(), key=repr))


class Alone:
    """The best that each client could do alone, from the runs of these groups of one task."""

    def __init__(self, groups: Sequence[Group], metrics: TaskMetrics) -> None:
        self._metrics = metrics
        alone = [group for group in groups if all(map(is_alone, group.runs))]
        # Ties in validation error go to the first group, so the order must not use test errors.
        self._groups = sorted(
            alone, key=lambda group: (group.method, group.runs[0].summary["settings_digest"])
        )
        self._errors_by_folder: dict[str, dict[str, Errors]] = {}

    def errors(self, run: Run) -> dict[str, float]:
        """Return the test error by client, as `best` chooses it."""
        return {client: errors.test for client, errors in self.best(run).items()}

    def best(self, run: Run) -> dict[str, Errors]:
        """Return each client's best errors alone; {} without a run to compare with.

        Each group that shared nothing and has the same question contributes its run with the same
        seed, or else its first run.
        """
        best: dict[str, Errors] = {}
        for rival in self._rivals(run):
            for client, errors in self._errors_of_run(rival).items():
                if client not in best or errors.validation < best[client].validation:
                    best[client] = errors
        return best

    def _rivals(self, run: Run) -> list[Run]:
        asked_question = question(run, self._metrics)
        rivals = []
        for group in self._groups:
            if question(group.runs[0], self._metrics) == asked_question:
                same_seed = [
                    rival for rival in group.runs if rival.summary["seed"] == run.summary["seed"]
                ]
                rivals.append((same_seed or list(group.runs))[0])
        return rivals

    def _errors_of_run(self, run: Run) -> dict[str, Errors]:
        """Return the errors of a run; each run is read only once."""
        name = str(run.folder)
        if name not in self._errors_by_folder:
            self._errors_by_folder[name] = client_errors(run, self._metrics)
        return self._errors_by_folder[name]


def share_better_off(errors: Mapping[str, Errors], alone: Mapping[str, float]) -> float | None:
    """Return the share of clients whose error is lower than alone, None without any client alone.

    A client without an error is not better off.
    """
    if not alone:
        return None
    return fmean(client in errors and errors[client].test < alone[client] for client in alone)


def with_better_off(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with the share of clients better off than alone in their runs' summaries.

    The share is None where there is no run to compare with, or where the run shared nothing.
    """
    completed = []
    for group in groups:
        metrics = report_for(group.task).metrics
        alone = Alone([member for member in groups if member.task == group.task], metrics)
        completed.append(Group(tuple(_completed(run, alone, metrics) for run in group.runs)))
    return completed


def _completed(run: Run, alone: Alone, metrics: TaskMetrics) -> Run:
    share = None
    if not is_alone(run) and (rivals := alone.errors(run)):
        share = share_better_off(client_errors(run, metrics), rivals)
    return replace(run, summary={**run.summary, BETTER_OFF: share})


def _number(cell: str) -> float:
    value = float(cell or inf)
    return value if isfinite(value) else inf
