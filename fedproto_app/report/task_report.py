"""What the report layer asks of a task: its figures, how a person sees them, its pictures.

Folder, progress, tables and comparison are the same for every task. What differs is one
`TaskReport` a task, in the file of the task's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedproto_app.core.clients import metric_values

if TYPE_CHECKING:
    from fedproto_app.core.charts import Chart, Section
    from fedproto_app.core.clients import ClientKey, ClientResult
    from fedproto_app.core.metrics import Metric
    from fedproto_app.server.federation import Federation
    from fedproto_app.server.round_log import RoundLog

    Results = Mapping[ClientKey, ClientResult]

Row = Sequence[object]
BETTER_OFF = "better_off"  # a figure that a run has beside others only, see report/alone.py
UNKNOWN = "-"  # the text of a figure that there is not


@dataclass(frozen=True)
class Shown:
    """A figure as a person sees it.

    figure: its field in the artefact. title: above or before it. text: of the value, None where
    unknown. spread: whether the comparison tells its error over seeds as well. only_csv:
    whether a comparison has it as CSV alone, since no screen is wide enough for all.
    """

    figure: str
    title: str
    text: Callable[[float | None], str]
    spread: bool = False
    only_csv: bool = False


@dataclass(frozen=True)
class Measure:
    """What runs and clients of the task are ranked by.

    summary, client, round: its field in summary.json, clients.csv and rounds.jsonl. name: what a
    title calls it. axis: what an axis calls it, percent: whether it is a fraction, 0 … 1, that
    is written in percent. kept, validation: columns of clients.csv, of the models
    that clients end with: their test figure, and the error by which such models are chosen, on
    validation data alone. round_validation: the field of rounds.jsonl with the mean of that error
    over all clients' models of the round.
    """

    summary: str
    client: str
    round: str
    larger_is_better: bool
    name: str
    axis: str
    kept: str
    validation: str
    round_validation: str
    percent: bool = False

    def badness(self, value: float | None) -> float:
        """For sorting: smaller is better, and what is unknown or no number comes last."""
        return badness(value, self.larger_is_better)


@dataclass(frozen=True)
class Order:
    """How a comparison may be sorted: by a field of summary.json."""

    summary: str
    larger_is_better: bool = False


@dataclass(frozen=True)
class ClientErrors:
    """Errors by which methods are compared client by client, smaller being better.

    test, validation: columns of clients.csv. right: whether `test` is the share of right answers,
    and so the error what is left of 1. name: of the test error. inputs: the settings of
    ``[data]`` that change what models see, but not what they are asked: runs that differ in others
    have no test part in common. orders: what a table can be sorted by, the default first.
    """

    test: str
    validation: str
    name: str
    inputs: tuple[str, ...] = ()
    orders: Mapping[str, Order] = field(default_factory=dict)
    right: bool = False


def badness(value: float | None, larger_is_better: bool) -> float:
    """For sorting: smaller is better, and what is unknown or no number comes last."""
    if value is None or not np.isfinite(value):
        return float("inf")
    return -value if larger_is_better else value


class TaskReport(Protocol):
    """The figures of one kind of task.

    progress: fields of rounds.jsonl, clients: columns of clients.csv, comparison: fields of
    summary.json that a person sees, in their order. every_client: columns of clients.csv where
    there is room for more of them, with all clients. caption: below the comparison. client_errors:
    None where methods are not compared client by client, but sorted by the measure alone. metric:
    the short name of the test figure, in names of files.
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
        """The task's fields of a line of rounds.jsonl; None each if the round was not evaluated."""

    def tables(self, federation: Federation) -> dict[str, list[Row]]:
        """The rows of each CSV file by its name, the columns' names first."""

    def summary_figures(
        self, federation: Federation, rounds: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The task's fields of summary.json. rounds: the lines of rounds.jsonl."""

    def run_rows(self, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Name and text of the task's figures in the table of one run."""

    def in_words(self, summary: Mapping[str, Any]) -> str:
        """What the run reached, in a sentence without its full stop, for somebody who knows
        nothing of it."""

    def curves(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
        """What the run reached after each round, by label, in the unit of the measure's field.
        rounds: the lines of rounds.jsonl."""

    def sections(self, runs: Mapping[str, Path], first: str) -> list[Section]:
        """What a page shows of runs with one dataset besides what it shows of all tasks.

        runs: by label; a run's place is the look of its lines. first: the label of the run that the
        page is mostly about."""

    def pictures(self, run_dir: Path) -> dict[str, Sequence[Chart]]:
        """The charts of each PNG that the run's artefacts allow, by file name, besides those of all
        tasks."""

    @property
    def client_figures(self) -> Mapping[str, str]:
        """Columns of clients.csv whose distributions over the clients are drawn, by label."""


def mean_metric(
    results: Results, metric: Metric, keys: Iterable[ClientKey] | None = None
) -> float | None:
    """The plain mean of a metric over the clients that have it (of `keys`), None without any."""
    values = metric_values(results, metric, keys)
    return float(np.mean(values)) if values else None


def error_text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"


def short_text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def percent_text(value: float | None) -> str:
    """A fraction in percent, without the sign."""
    return UNKNOWN if value is None else f"{100 * value:.1f}"
