"""Define the interface between reports and tasks: a task's files, tables and charts.

The run folder, the progress display, the tables and the comparison work alike for every task. The
task's metrics determine what they contain. Each task adds a `TaskReport`, in the folder with the
task's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedproto_app.core.tasks import task_record
from fedproto_app.report.run_files import Record
from fedproto_app.settings.fit import withholds_samples
from fedproto_app.tasks.metrics import FACTS, Figure, Statistic, TaskMetrics

if TYPE_CHECKING:
    from fedproto_app.core.charts import Chart, Section
    from fedproto_app.core.clients import ClientKey, ClientResult
    from fedproto_app.server.federation import Federation
    from fedproto_app.server.round_log import RoundLog

    Results = Mapping[ClientKey, ClientResult]

Row = Sequence[object]
WITHHELD = "The clients' errors stayed at their nodes"  # `in_words` of a run without errors


class TaskReport(ABC):
    """The report of one kind of task. metrics: what it reports, the same object as the task's."""

    metrics: ClassVar[TaskMetrics]

    @abstractmethod
    def round_figures(self, log: RoundLog, results: Results, evaluated: bool) -> Record:
        """Return the task's fields of a line of rounds.jsonl, all None if nothing was evaluated."""

    @abstractmethod
    def tables(self, federation: Federation) -> dict[str, list[Row]]:
        """Return the rows of the task's CSV files by file name. The first row names the columns."""

    @abstractmethod
    def summary_figures(self, federation: Federation, rounds: Sequence[Record]) -> Record:
        """Return the task's fields of summary.json. rounds: the lines of rounds.jsonl."""

    @abstractmethod
    def run_rows(self, summary: Record) -> list[tuple[str, str]]:
        """Return the name and the text of each figure that the table of one run shows."""

    @abstractmethod
    def in_words(self, summary: Record) -> str:
        """Return the result, for a reader new to the run, as a sentence without its full stop."""

    @abstractmethod
    def curves(self, rounds: Sequence[Record]) -> dict[str, list[float | None]]:
        """Return the curves of a learning chart: by label, the values after each round.

        They are in the unit of the headline figure. rounds: the lines of rounds.jsonl.
        """

    def sections(self, runs: Mapping[str, Path], first: str) -> list[Section]:
        """Return the task's own sections for a page on runs with one dataset.

        runs: the run folders by label. A run's position among them determines how its lines look.
        first: the label of the run that the page is mostly about.
        """
        sections: list[Section] = self._charts().sections(runs, first)
        return sections

    def pictures(self, run_dir: Path) -> dict[str, Sequence[Chart]]:
        """Return the task's own charts, by PNG file name, as far as the run has data for them."""
        pictures: dict[str, Sequence[Chart]] = self._charts().pictures(run_dir)
        return pictures

    def _charts(self) -> ModuleType:
        """Return the charts module beside the report's module. It imports what only charts need."""
        return import_module(f"{type(self).__module__.rpartition('.')[0]}.charts")


def client_rows(federation: Federation, figures: Sequence[Figure]) -> list[Row]:
    """Return the rows of clients.csv: what nodes declared about each client, then its figures.

    If the nodes add noise to the figures, they are left out, because a single client's figure is
    then hardly more than noise.
    """
    settings = federation.settings
    exact, hidden = settings.privacy.reported == "exact", withholds_samples(settings)
    columns = [figure for figure in figures if figure.column.name]
    rows: list[Row] = [(*FACTS, *(figure.column.name for figure in columns))]
    for key, result in sorted(federation.history.results.items()):
        facts = federation.members.facts[key]
        values = (figure.value(result.metrics) if exact else None for figure in columns)
        samples = None if hidden else facts.samples
        kept_round = result.kept_round if exact else None
        rows.append([key.client, key.node, facts.group, samples, kept_round, *values])
    return rows


def round_means(results: Results, figures: Iterable[Figure]) -> dict[str, float | None]:
    """Return the figures' fields of rounds.jsonl: plain means over the clients with a value."""
    return {
        figure.round.name: over_clients(np.mean, results, figure)
        for figure in figures
        if figure.round.name
    }


def summary_statistics(
    federation: Federation, figures: Iterable[Figure]
) -> dict[str, float | None]:
    """Return the figures' fields of summary.json: statistics over the clients with a value.

    Means of metrics come first, beginning with those that are also in rounds.jsonl. If the errors
    contain noise, only their means are given.
    """
    results, noised = federation.history.results, federation.settings.privacy.reported == "noised"
    fields = [(figure, field) for figure in figures for field in figure.summary]
    fields.sort(
        key=lambda pair: (
            bool(pair[0].over) or pair[1].statistic is not np.mean,
            not pair[0].round.name,
        )
    )
    return {
        field.name: None
        if noised and field.statistic is not np.mean
        else over_clients(field.statistic, results, figure)
        for figure, field in fields
    }


def over_clients(statistic: Statistic, results: Results, figure: Figure) -> float | None:
    """Return a statistic of a figure over the clients with a value, or None without any."""
    values = [figure.value(results[key].metrics) for key in sorted(results)]
    return statistic_of(statistic, values)


def statistic_of(statistic: Statistic, values: Iterable[float | None]) -> float | None:
    """Return a statistic of the known values, or None if all are unknown."""
    present = np.array([value for value in values if value is not None], dtype=np.float64)
    return float(statistic(present)) if len(present) else None


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, or None if all are unknown."""
    return statistic_of(np.mean, values)


def kept_model(summary: Record) -> str:
    """Return in words which model each client of the run ends with."""
    return "best validation" if summary["keep"] == "best-validation" else str(summary["keep"])


def report_for(task: str) -> TaskReport:
    """Return the report of a task, or raise `FedProtoError` if this version lacks the task."""
    module = import_module(f"fedproto_app.report.{task_record(task).folder}.report")
    report: TaskReport = module.REPORTS[task]()
    return report
