"""Compare runs client by client: with what the clients could do alone, or with another method.

A run that shared nothing shows what clients can do alone: for example solo, a naive forecast, or a
ridge regression per client. Among several such runs, each client takes the run where its
validation error is lowest, as it would in practice. Test errors are never used to choose.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedproto_app.maths.client_errors import largest_share
from fedproto_app.maths.two_way_bootstrap import LEVEL
from fedproto_app.report.gain import (
    Blocks,
    Gain,
    gain_of,
    is_lower,
    read_blocks,
)
from fedproto_app.report.runs import (
    NOT_CONVERGED,
    Group,
    Run,
    known_settings,
    marked_labels,
    windows_of,
)
from fedproto_app.report.task_report import report_for
from fedproto_app.tasks.metrics import BETTER_OFF, Figure, TaskMetrics

PAIR_COLUMNS = (
    "dataset", "method", "against", "clients", "better", "worse", "median gain", f"{LEVEL}% CI",
    "finding",
)  # fmt: skip
BEST_ALONE = "best local model"
_HEAVY_SHARE = 0.5  # of a mean. A client that contributes more, and twice its equal share, is named


@dataclass(frozen=True)
class Errors:
    """Test and validation error of one client's kept model, infinite where unknown.

    more: the figures of `TaskMetrics.verdict`. blocks: the test error by block, None if unknown.
    """

    test: float
    validation: float
    more: tuple[float, ...] = ()
    blocks: Blocks | None = None


def client_errors(
    run: Run, metrics: TaskMetrics, figure: Figure | None = None
) -> dict[str, Errors]:
    """Return the errors of the clients that have a test error, by client name.

    figure: the figure to use as the test error, by default `TaskMetrics.compared`. Names that occur
    at two nodes are left out, because another run may have these clients at other nodes.
    """
    table, blocks = run.clients, read_blocks(run.folder)

    def column(figure: Figure) -> list[float]:
        values = table[figure.column.name].tolist()
        return [value if isfinite(value) else inf for value in values]

    test, validation = column(figure or metrics.compared), column(metrics.kept_validation)
    more = [column(figure) for figure in metrics.verdict.values()]
    times = Counter(table.clients)
    return {
        client: Errors(
            1 - test[row] if metrics.is_accuracy else test[row],
            validation[row],
            tuple(values[row] for values in more),
            blocks.get((client, node)),
        )
        for row, (client, node) in enumerate(zip(table.clients, table.nodes, strict=True))
        if times[client] == 1 and isfinite(test[row])
    }


@dataclass(frozen=True)
class Question:
    """Groups of one task whose test errors can be compared client by client.

    title: the dataset, and the settings of ``[data]`` that differ between the questions on this
    dataset.
    """

    title: str
    groups: Sequence[Group]

    @property
    def labels(self) -> list[str]:
        """The groups' names within the question. Groups that had not converged are marked."""
        return marked_labels(self.groups)

    @property
    def metrics(self) -> TaskMetrics:
        """The metrics of the groups' task."""
        return report_for(self.groups[0].task).metrics


def question_key(run: Run, metrics: TaskMetrics) -> tuple[object, ...]:
    """Return a key that is equal for runs whose test errors can be compared client by client."""
    return run.summary["dataset"], tuple(sorted(_asked_data(run, metrics).items(), key=repr))


def _asked_data(run: Run, metrics: TaskMetrics) -> dict[str, object]:
    """Return the settings that change the test part, by their keys without "data."."""
    data = {
        key.removeprefix("data."): value
        for key, value in known_settings(run).items()
        if key.startswith("data.")
    }
    data["backtest"] = windows_of(known_settings(run))
    return {key: value for key, value in data.items() if key not in metrics.inputs}


def questions(groups: Sequence[Group]) -> list[Question]:
    """Return the questions that the groups answer.

    The questions on one dataset are sorted by the settings that differ between them.
    """
    by_key: dict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in groups:
        metrics = report_for(group.task).metrics
        by_key[group.task, *question_key(group.runs[0], metrics)].append(group)
    by_data: dict[tuple[str, str], list[list[Group]]] = defaultdict(list)
    for members in by_key.values():
        by_data[members[0].task, members[0].dataset].append(members)
    return [
        question for (_, dataset), alike in by_data.items() for question in _titled(dataset, alike)
    ]


def _titled(dataset: str, alike: Sequence[Sequence[Group]]) -> list[Question]:
    metrics = report_for(alike[0][0].task).metrics
    tables = [_asked_data(members[0].runs[0], metrics) for members in alike]
    keys = sorted({key for table in tables for key in table})
    differing = [key for key in keys if len({repr(table.get(key)) for table in tables}) > 1]

    def values(place: int) -> list[tuple[str, Any]]:
        differ = (tables[place].get(key) for key in differing)
        return [(type(value).__name__, value) for value in differ]

    def title(place: int) -> str:
        return ", ".join([dataset, *(f"{key} {tables[place].get(key)}" for key in differing)])

    order = sorted(range(len(alike)), key=values)
    return [Question(title(place), alike[place]) for place in order]


class Rivals:
    """The best errors of each client in the runs of these groups, chosen by validation error.

    groups: of one task. any_columns: whether a run may be a rival of a run that uses other columns
    known in advance.
    """

    def __init__(
        self, groups: Sequence[Group], metrics: TaskMetrics, *, any_columns: bool = False
    ) -> None:
        self._metrics, self._any_columns = metrics, any_columns
        # Ties in validation error go to the first group, so the order must not use test errors.
        self._groups = sorted(
            groups, key=lambda group: (group.method, group.runs[0].summary["settings_digest"])
        )
        self._errors_by_folder: dict[Path, dict[str, Errors]] = {}

    def best(self, run: Run) -> dict[str, Errors]:
        """Return the best errors of each client, or {} if there is no run to compare with.

        Each group that answers the same question contributes one run: the run with the same seed
        and backtest window or, if there is none, its first run with the same window.
        """
        best: dict[str, Errors] = {}
        for rival in self._rivals(run):
            for client, errors in self._errors_of_run(rival).items():
                if client not in best or errors.validation < best[client].validation:
                    best[client] = errors
        return best

    def _rivals(self, run: Run) -> list[Run]:
        asked_question = question_key(run, self._metrics)
        rivals = []
        for group in self._groups:
            if question_key(group.runs[0], self._metrics) == asked_question and (
                self._any_columns or group.known_columns == run.known_columns
            ):
                repeated = [rival for rival in group.runs if rival.repetition == run.repetition]
                _, window = run.repetition
                rivals += (repeated or [r for r in group.runs if r.repetition[1] == window])[:1]
        return rivals

    def _errors_of_run(self, run: Run) -> dict[str, Errors]:
        """Return the errors of a run. Each run is read only once."""
        if run.folder not in self._errors_by_folder:
            self._errors_by_folder[run.folder] = client_errors(run, self._metrics)
        return self._errors_by_folder[run.folder]


def with_better_off(groups: Sequence[Group]) -> list[Group]:
    """Add to each run's summary the share of clients that are better off than alone.

    A client without an error counts as not better off. The share is None if there is no run to
    compare with, or if the run itself shared nothing.
    """
    completed = []
    for group in groups:
        metrics = report_for(group.task).metrics
        alone = Rivals([g for g in groups if g.is_alone and g.task == group.task], metrics)
        completed.append(Group(tuple(_completed(run, alone, metrics) for run in group.runs)))
    return completed


def _completed(run: Run, alone: Rivals, metrics: TaskMetrics) -> Run:
    share = None
    if not run.is_alone and (rivals := alone.best(run)):
        errors = client_errors(run, metrics)
        share = fmean(
            client in errors and is_lower(errors[client].test, rival.test)
            for client, rival in rivals.items()
        )
    return replace(run, summary={**run.summary, BETTER_OFF: share})


@dataclass(frozen=True)
class Pair:
    """A comparison of two methods over the clients that both have, with errors averaged over seeds.

    dataset: the question's title.
    """

    dataset: str
    method: str
    against: str
    gain: Gain

    def row(self) -> list[str]:
        """Return the cells of `PAIR_COLUMNS`."""
        interval = self.gain.interval
        return [
            *(self.dataset, self.method, self.against, str(len(self.gain.ratios))),
            *(str(self.gain.better), str(self.gain.worse), percent_gain(self.gain.ratio)),
            "-" if interval is None else " to ".join(map(percent_gain, reversed(interval))),
            self.gain.finding.value,
        ]

    @property
    def figures(self) -> dict[str, object]:
        """The numbers of the pair, not rounded. Gains are fractions of the rival's error."""
        low, high = self.gain.interval or (None, None)
        return {
            "dataset": self.dataset,
            "method": self.method,
            "against": self.against,
            "clients": len(self.gain.ratios),
            "better": self.gain.better,
            "worse": self.gain.worse,
            "gain": 1 - self.gain.ratio,
            "least": None if high is None else 1 - high,
            "most": None if low is None else 1 - low,
            "finding": self.gain.finding.value,
        }


def percent_gain(ratio: float) -> str:
    """Return in percent how much lower than the rival's an error is: "+5.1%", "−2.0%"."""
    return f"{100 * (1 - ratio):+.1f}%".replace("-", "−") if isfinite(ratio) else "−∞"


def pairs(groups: Sequence[Group]) -> list[Pair]:
    """Compare every group with the best that its clients could do alone.

    groups: the best group first. If no run shares nothing, each group is compared with the first
    group that answers the same question.
    """
    compared: list[Pair] = []
    for question in questions(groups):
        alone = [group for group in question.groups if group.is_alone]
        family = _against_alone(question, alone) if alone else _against_best(question)
        compared += [pair for pair in family if pair.gain.ratios]
    return compared


def _against_alone(question: Question, alone: Sequence[Group]) -> Iterator[Pair]:
    best = Rivals(alone, question.metrics)
    for label, group in zip(question.labels, question.groups, strict=True):
        with_its_columns = [
            member for member in alone if member.known_columns == group.known_columns
        ]
        if [group] != with_its_columns:  # a single local model is itself the best
            yield _pair(question, group, label, BEST_ALONE, best)


def _against_best(question: Question) -> Iterator[Pair]:
    first, *other_labels = question.labels
    rival = Rivals(question.groups[:1], question.metrics, any_columns=True)
    for label, group in zip(other_labels, question.groups[1:], strict=True):
        yield _pair(question, group, label, first, rival)


def mean_errors(
    group: Group, metrics: TaskMetrics, figure: Figure | None = None
) -> dict[str, float]:
    """Return each client's test error, averaged over the seeds that have one."""
    return _tests([client_errors(run, metrics, figure) for run in group.runs])


def gain_between(
    errors: Sequence[Mapping[str, Errors]],
    rivals: Sequence[Mapping[str, Errors]],
    left_out: Collection[str] = (),
) -> Gain:
    """Return how much lower these errors are than the rivals' in the same runs.

    left_out: clients to leave out.
    """
    blocks = [
        (client, ours, theirs)
        for of_run, rival in zip(errors, rivals, strict=True)
        for client in sorted(of_run.keys() & rival.keys())
        if (ours := of_run[client].blocks) and (theirs := rival[client].blocks)
    ]
    compared = {name: error for name, error in _tests(rivals).items() if name not in left_out}
    return gain_of(_tests(errors), compared, blocks)


def merged(runs: Sequence[Mapping[str, Errors]]) -> dict[str, Errors]:
    """Return each client's errors, averaged over the runs that have them, without blocks."""
    of_clients = {
        client: [errors[client] for errors in runs if client in errors]
        for client in sorted(set().union(*runs))
    }
    return {
        client: Errors(
            fmean(e.test for e in errors),
            fmean(e.validation for e in errors),
            tuple(fmean(values) for values in zip(*(e.more for e in errors), strict=True)),
        )
        for client, errors in of_clients.items()
    }


def _tests(runs: Sequence[Mapping[str, Errors]]) -> dict[str, float]:
    return {client: errors.test for client, errors in merged(runs).items()}


def heavy_clients(groups: Sequence[Group]) -> list[str]:
    """Return a line for each client that alone accounts for most of a mean over clients."""
    lines = []
    for question in questions(groups):
        shares: dict[str, list[str]] = defaultdict(list)
        for group, label in zip(question.groups, question.labels, strict=True):
            # Use the mean that tables show. Clients may be compared by another error.
            errors = mean_errors(group, question.metrics, question.metrics.kept)
            if not errors:
                continue
            worst, share = largest_share(np.array(list(errors.values())))
            if share > max(_HEAVY_SHARE, 2 / len(errors)):  # so never one of two clients
                shares[list(errors)[worst]].append(f"{label} ({share:.0%})")
        lines += [
            f"{question.title}: client {client!r} alone accounts for most of the mean "
            f"{question.metrics.kept_error} of {', '.join(heavy)}"
            for client, heavy in shares.items()
        ]
    return lines


def not_converged(groups: Sequence[Group]) -> list[str]:
    """Return a line for each question with runs that had not converged."""
    lines = []
    for question in questions(groups):
        names = [
            label.removesuffix(NOT_CONVERGED)
            for label, group in zip(question.labels, question.groups, strict=True)
            if group.had_not_converged
        ]
        if names:
            lines.append(
                f"{NOT_CONVERGED.strip()} {question.title}: {', '.join(names)} had not converged: "
                "the validation error was lowest in the last fifth of the rounds, where it still "
                "fell by more than 1%. More rounds may change this comparison."
            )
    return lines


def _pair(question: Question, group: Group, label: str, against: str, rivals: Rivals) -> Pair:
    errors_of_runs = [client_errors(run, question.metrics) for run in group.runs]
    rivals_of_runs = [rivals.best(run) for run in group.runs]
    gain = gain_between(errors_of_runs, rivals_of_runs)
    return Pair(dataset=question.title, method=label, against=against, gain=gain)
