"""A metric as a value: a quantity, which of a client's models it measures, an inference rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

ValuesT = TypeVar("ValuesT")


class Model(StrEnum):
    """Which of a client's models was measured.

    USED: the model that the client uses after the round. LOCAL: the client's model after its own
    training, before averaging, or beside the head of its cluster. KEPT: the client's kept model.
    """

    USED = "used"
    LOCAL = "local"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Metric:
    """The meaning of a number about a client.

    name: the quantity as the task calls it: "mse", "validation-error", "correct/stage-1".
    shared: whether it measures the client's copy of the global model, not its personal model.
    rule: the inference rule if a method has several, "" for the rule that the run chose.
    """

    name: str
    model: Model = Model.USED
    shared: bool = False
    rule: str = ""

    def __str__(self) -> str:
        """Return a text for people to read in refusals. No code parses it."""
        model = "" if self.model is Model.USED else self.model.value
        parts = (model, "global" if self.shared else "", self.rule, self.name)
        return "-".join(part for part in parts if part)


def of_shared(metrics: Mapping[Metric, ValuesT]) -> dict[Metric, ValuesT]:
    """Return these metrics as a client reports them for the shared model."""
    return {replace(metric, shared=True): values for metric, values in metrics.items()}


def metric_row(metric: Metric) -> tuple[str, Model, bool, str]:
    """Return the metric as it stands in JSON, in records and checkpoints."""
    return metric.name, metric.model, metric.shared, metric.rule


def metric_of(row: Sequence[Any]) -> Metric:
    """Return the metric that `metric_row` wrote. Raise ValueError for an unknown model."""
    name, model, shared, rule = row
    return Metric(name, Model(model), shared, rule)
