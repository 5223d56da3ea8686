"""The interface between reports and tasks: a task's figures, how they are shown, its charts.

Folder, progress, tables and comparison are the same for every task. Each task adds a `TaskReport`,
in the folder with the task's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedproto_app.core.clients import metric_values
from fedproto_app.core.tasks import task_record

if TYPE_CHECKING:
    from fedproto_app.core.charts import Chart, Section
    from fedproto_app.core.clients import ClientKey, ClientResult
    from fedproto_app.core.metrics import Metric
    from fedproto_app.server.federation import Federation
    from fedproto_app.server.round_log import RoundLog

    Results = Mapping[ClientKey, ClientResult]

Row = Sequence[object]
BETTER_OFF = "better_off"  # a figure that needs other runs, see report/comparison.py
UNKNOWN = "-"  # the text of a missing figure


@dataclass(frozen=True)
class Shown:
    """A figure as it is shown to users.

    figure: its field in the artefact. title: its heading or label. text: formats a value, None if
    unknown. spread: whether the comparison also shows the standard error over seeds. only_csv:
    whether only the CSV comparison includes it, because no screen is wide enough for all figures.
    """

    figure: str
    title: str
    text: Callable[[float | None], str]
    spread: bool = False
    only_csv: bool = False


@dataclass(frozen=True)
class Measure:
    """The metric that ranks runs and clients of the task.

    summary, client, round: its field in summary.json, clients.csv and rounds.jsonl. name: its name
    in titles. axis: its name on axes. percent: whether it is a fraction, 0 … 1, shown in percent.
    kept_figure, validation: columns of clients.csv with the test figure and the validation error of
    the models that clients end with. round_validation: the field of rounds.jsonl with the mean
    validation error over all clients' models of the round.
    """

    summary: str
    client: str
    round: str
    larger_is_better: bool
    name: str
    axis: str
    kept_figure: str
    validation: str
    round_validation: str
    percent: bool = False

    def badness(self, value: float | None) -> float:
        """Return a sort key: smaller is better, unknown and non-finite values come last."""
        return badness(value, self.larger_is_better)


@dataclass(frozen=True)
class Order:
    """How a comparison may be sorted: by a field of summary.json."""

    summary: str
    larger_is_better: bool = False


@dataclass(frozen=True)
class ClientErrors:
    """The errors that compare methods client by client; smaller is better.

    test, validation: columns of clients.csv. right: whether `test` is the share of right answers,
    so that the error is 1 minus it. name: the name of the test error. inputs: the settings of
    ``[data]`` that change the models' inputs but not the test part; runs that differ in any other
    setting of ``[data]`` cannot be compared. orders: how a table can be sorted, the default first.
    """

    test: str
    validation: str
    name: str
    inputs: tuple[str, ...] = ()
    orders: Mapping[str, Order] = field(default_factory=dict)
    right: bool = False


def badness(value: float | None, larger_is_better: bool) -> float:
    """Return a sort key: smaller is better, unknown and non-finite values come last."""
    if value is None or not np.isfinite(value):
        return float("inf")
    return -value if larger_is_better else value


class TaskReport(Protocol):
    """The figures of one kind of task.

    progress, clients, comparison: the fields of rounds.jsonl, columns of clients.csv and fields of
    summary.json that are shown, in this order. every_client: the columns of clients.csv in a table
    of all clients, which has room for more. caption: the text below the comparison. client_errors:
    None if methods are not compared client by client but only sorted by the measure. metric: the
    short name of the test figure, used in file names.
    """

    metric: str
    measure: Measure
    progress: tuple[Shown, ...]
    clients: tuple[Shown, ...]
    every_client: tuple[Shown, ...]
    comparison: tuple[Shown, ...]
    caption: str
    client_errors: ClientErrors | None

    def round_figures(self, log: RoundLog, results: Results, evaluated: bool) -> dict[str, Any]:
        """Return the task's fields of a line of rounds.jsonl, all None without an evaluation."""

    def tables(self, federation: Federation) -> dict[str, list[Row]]:
        """Return the rows of each CSV file, by file name; the first row names the columns."""

    def summary_figures(
        self, federation: Federation, rounds: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the task's fields of summary.json. rounds: the lines of rounds.jsonl."""

    def run_rows(self, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return name and text of the task's figures in the table of one run."""

    def in_words(self, summary: Mapping[str, Any]) -> str:
        """Return the run's result as a sentence without full stop, for a reader new to the run."""

    def curves(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
        """Return the values after each round, by label, in the unit of the measure's field.

        rounds: the lines of rounds.jsonl.
        """

    def sections(self, runs: Mapping[str, Path], first: str) -> list[Section]:
        """Return the task's own sections of a page on runs with one dataset.

        runs: the run folders by label; a run's position sets the look of its lines. first: the
        label of the run that the page is mostly about.
        """

    def pictures(self, run_dir: Path) -> dict[str, Sequence[Chart]]:
        """Return the task's own charts that the run's artefacts allow, by PNG file name."""

    @property
    def client_figures(self) -> Mapping[str, str]:
        """The columns of clients.csv whose distributions over the clients are drawn, by label."""


def mean_metric(
    results: Results, metric: Metric, keys: Iterable[ClientKey] | None = None
) -> float | None:
    """Return the plain mean of a metric over the clients (of `keys`) that have it, or None."""
    values = metric_values(results, metric, keys)
    return float(np.mean(values)) if values else None


def error_text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"


def short_text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def percent_text(value: float | None) -> str:
    """Return a fraction in percent, without the percent sign."""
    return UNKNOWN if value is None else f"{100 * value:.1f}"


def report_for(task: str) -> TaskReport:
    """Return the report of a task; raises `FedProtoError` if this version lacks the task."""
    report: TaskReport = task_record(task).part("report")()
    return report
