"""What a run's clients could do alone, and how many of them a method leaves better off.

A run in which no value was sent is what its clients can do alone: solo, the naive forecasts, a
ridge regression of one's own. Among several such runs each client takes the one with its own lowest
validation error. So the rival is what the client would really have without the others: test errors
choose nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import fmean

from fedproto_app.report.runs import Group, Run, known_settings, read_clients
from fedproto_app.report.task_report import BETTER_OFF, ClientErrors, report_for


@dataclass(frozen=True)
class Errors:
    """Of one client's kept model, infinite where unknown."""

    test: float
    validation: float


def client_errors(run: Run, columns: ClientErrors) -> dict[str, Errors]:
    """By client name, of those with a test error. Names that stand at two nodes are left out:
    another run may have them at other nodes."""
    rows = read_clients(run.folder)
    times = Counter(row["client"] for row in rows)
    errors = {
        row["client"]: Errors(
            1 - _number(row[columns.test]) if columns.right else _number(row[columns.test]),
            _number(row[columns.validation]),
        )
        for row in rows
        if times[row["client"]] == 1
    }
    return {client: one for client, one in errors.items() if isfinite(one.test)}


def is_alone(run: Run) -> bool:
    """Whether nothing was shared in the run. Of runs that do not tell: no."""
    sent = [run.summary.get(key) for key in ("parameters_up", "parameters_down")]
    return sent == [0, 0]


def question(run: Run, columns: ClientErrors) -> tuple[object, ...]:
    """Equal for runs whose test errors can be compared client by client."""
    data = {
        key: value
        for key, value in known_settings(run).items()
        if key.startswith("data.") and key.removeprefix("data.") not in columns.inputs
    }
    return run.summary["dataset"], tuple(sorted(data.items(), key=repr))


class Alone:
    """The best that each client could do alone, by the runs among these groups of one task."""

    def __init__(self, groups: Sequence[Group], columns: ClientErrors) -> None:
        self._columns = columns
        alone = [group for group in groups if all(map(is_alone, group.runs))]
        # Of equal validation errors the first counts: in an order that no test error makes.
        self._groups = sorted(
            alone, key=lambda one: (one.method, one.runs[0].summary["settings_digest"])
        )
        self._known: dict[str, dict[str, Errors]] = {}

    def errors(self, run: Run) -> dict[str, float]:
        """Test error by client, as `best`."""
        return {client: errors.test for client, errors in self.best(run).items()}

    def best(self, run: Run) -> dict[str, Errors]:
        """By client, {} without a run to compare with: of each group that shared nothing and was
        asked the same, the run of the same seed, or its first one."""
        best: dict[str, Errors] = {}
        for rival in self._rivals(run):
            for client, errors in self._of(rival).items():
                if client not in best or errors.validation < best[client].validation:
                    best[client] = errors
        return best

    def _rivals(self, run: Run) -> list[Run]:
        asked = question(run, self._columns)
        rivals = []
        for group in self._groups:
            if question(group.runs[0], self._columns) == asked:
                same = [one for one in group.runs if one.summary["seed"] == run.summary["seed"]]
                rivals.append((same or list(group.runs))[0])
        return rivals

    def _of(self, run: Run) -> dict[str, Errors]:
        """Read once."""
        name = str(run.folder)
        if name not in self._known:
            self._known[name] = client_errors(run, self._columns)
        return self._known[name]


def share_better_off(errors: Mapping[str, Errors], alone: Mapping[str, float]) -> float | None:
    """The share of the clients that have a rival whose own error is lower; one without an error is
    not better off."""
    if not alone:
        return None
    return fmean(client in errors and errors[client].test < alone[client] for client in alone)


def with_better_off(groups: Sequence[Group]) -> list[Group]:
    """The groups, and in their runs' summaries the share of clients better off than alone.

    None where there is no run to compare with, or nothing was shared in the run itself.
    """
    completed = []
    for group in groups:
        columns = report_for(group.task).client_errors
        if columns is not None:
            alone = Alone([one for one in groups if one.task == group.task], columns)
            group = Group(tuple(_completed(run, alone, columns) for run in group.runs))
        completed.append(group)
    return completed


def _completed(run: Run, alone: Alone, columns: ClientErrors) -> Run:
    share = None
    if not is_alone(run) and (rivals := alone.errors(run)):
        share = share_better_off(client_errors(run, columns), rivals)
    return replace(run, summary={**run.summary, BETTER_OFF: share})


def _number(cell: str) -> float:
    value = float(cell or inf)
    return value if isfinite(value) else inf
