"""What a task reports: its metrics, their names in a run's files, and how tables show them.

Every task declares this once, in the `metrics.py` of its folder. The messages of its runs, and
their files, tables, charts and comparisons, follow from it. These modules do not import torch,
because ``fedproto compare`` works without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan, nan
from typing import SupportsFloat

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.metrics import Metric

Statistic = Callable[[NDArray[np.float64]], SupportsFloat]  # of values [n]

UNKNOWN = "-"  # the text of a missing figure
FACTS = ("client", "node", "group", "samples", "kept_round")  # first columns of clients.csv
BETTER_OFF = "better_off"  # a field that needs other runs, see report/comparison.py


def error_text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"


def short_text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def percent_text(value: float | None) -> str:
    """Return a fraction in percent, without the percent sign."""
    return UNKNOWN if value is None else f"{100 * value:.1f}"


def badness(value: float | None, larger_is_better: bool) -> float:
    """Return a sort key: smaller is better, unknown and non-finite values come last."""
    if value is None or not math.isfinite(value):
        return math.inf
    return -value if larger_is_better else value


@dataclass(frozen=True)
class Field:
    """A field or column of a run's file, and how tables show it.

    name: "" for a figure that the file lacks. title: its heading or label, "" if no table shows it.
    text: formats a value, or None if it is unknown. statistic: the statistic over the clients that
    summary.json holds. spread: whether the comparison also shows the standard error over seeds.
    only_wide: whether it is too wide for terminals, so that only the CSV comparison and the page's
    table of all clients show it. later: whether the comparison shows it after the other figures of
    clients. larger_is_better: whether a comparison that is sorted by it begins with the largest.
    """

    name: str
    title: str = ""
    text: Callable[[float | None], str] = error_text
    statistic: Statistic = np.mean
    spread: bool = False
    only_wide: bool = False
    later: bool = False
    larger_is_better: bool = False


_NOWHERE = Field("")


@dataclass(frozen=True)
class Figure:
    """A number about a client, and its fields in the run's files.

    metric: the quantity and its model. over: the name of a metric of the same model that divides
    the quantity, or "". A client where that metric is 0 has no such figure. column: the field in
    clients.csv. round: the field in rounds.jsonl, for the mean over the clients. summary: the field
    in summary.json. jumps: whether tiny differences in predictions may change the figure a lot.
    """

    metric: Metric
    over: str = ""
    column: Field = _NOWHERE
    round: Field = _NOWHERE
    summary: tuple[Field, ...] = ()
    jumps: bool = False

    def value(self, metrics: Mapping[Metric, float]) -> float | None:
        """Return the figure of a client with these metrics, or None if it is unknown."""
        value = metrics.get(self.metric, nan)
        if isnan(value) or not self.over:
            return None if isnan(value) else value
        divisor = metrics.get(replace(self.metric, name=self.over), 0.0)
        return value / divisor if divisor > 0 else None


@dataclass(frozen=True)
class TaskMetrics:
    """All that a task reports.

    figures: all figures, in the order of columns and fields. headline: the figure that ranks runs
    and clients. latest: its counterpart in rounds.jsonl. validation: the figure that chooses a
    client's model. It describes the models in use and comes from validation data only, and smaller
    is better. kept, kept_validation: figures of the models that clients end with. compared: the
    figure of these models that compares methods client by client. is_accuracy: whether the test
    figure is the share of right answers, 0 … 1, and not an error. axis: the test figure with its
    unit. kept_error, error: the names of the errors of `kept` and `compared`. The error of an
    accuracy is 1 minus the accuracy. caption: the text below a comparison. inputs: the settings of
    ``[data]`` that change the models' inputs but not the test part. Runs that differ in any other
    setting of ``[data]`` cannot be compared. orders: the fields of summary.json that can sort a
    comparison, the default first, or {} for the headline. verdict: further figures of
    the kept models, by their names in a verdict. A verdict also says if another model is better by
    them. Smaller is better. more_rounds, more_summary: shown fields of rounds.jsonl and
    summary.json that do not come from a single metric.
    """

    figures: tuple[Figure, ...]
    headline: Figure
    latest: Figure
    validation: Figure
    kept: Figure
    kept_validation: Figure
    compared: Figure
    axis: str
    kept_error: str
    error: str
    caption: str
    is_accuracy: bool = False
    inputs: tuple[str, ...] = ()
    orders: Mapping[str, Field] = field(default_factory=dict)
    verdict: Mapping[str, Figure] = field(default_factory=dict)
    more_rounds: tuple[Field, ...] = ()
    more_summary: tuple[Field, ...] = ()

    @cached_property
    def names(self) -> Mapping[str, None]:
        """The names of the metrics that a client must report of a model, in order."""
        names = [name for figure in self.figures for name in (figure.metric.name, figure.over)]
        return dict.fromkeys(name for name in names if name)

    @property
    def progress(self) -> list[Field]:
        """The fields of rounds.jsonl that are shown during a run, the validation error first."""
        figures = self._in_order(self.validation, self.latest)
        shown = [figure.round for figure in figures if figure.round.title]
        return [*shown, *self.more_rounds]

    @property
    def every_client(self) -> list[Field]:
        """The columns of clients.csv in the page's table of all clients, the headline first."""
        return [figure.column for figure in self._in_order(self.headline) if figure.column.title]

    @property
    def clients(self) -> list[Field]:
        """The columns of clients.csv in a terminal's table of the best and the worst clients."""
        return [column for column in self.every_client if not column.only_wide]

    @property
    def comparison(self) -> list[Field]:
        """The fields of summary.json that are compared, the headline first."""
        fields = [field for figure in self._in_order(self.headline) for field in figure.summary]
        fields = sorted(filter(lambda field: field.title, fields), key=lambda field: field.later)
        return [*fields, *self.more_summary]

    def _in_order(self, *first: Figure) -> list[Figure]:
        return [*first, *(figure for figure in self.figures if figure not in first)]

    def badness(self, value: float | None) -> float:
        """Return a sort key of the test figure, see `badness`."""
        return badness(value, self.is_accuracy)
