"""A metric as a value: the quantity, the client's model that it measures, the inference rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

ValuesT = TypeVar("ValuesT")


class Model(StrEnum):
    """Which of a client's models was measured.

    USED: the model that the client uses after the round. LOCAL: the client's model after local
    training: before averaging, or next to a head of its cluster. KEPT: the model that it keeps.
    """

    USED = "used"
    LOCAL = "local"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Metric:
    """The meaning of a number about a client.

    name: what is measured, in the task's words: "mse", "validation-error", "correct/stage-1".
    shared: of the client's copy of the global model, which it has next to a personal model.
    rule: of inference, where a method has several, "" for the rule that the run chose.
    """

    name: str
    model: Model = Model.USED
    shared: bool = False
    rule: str = ""

    def __str__(self) -> str:
        """For people to read in refusals. Nothing takes it apart."""
        model = "" if self.model is Model.USED else self.model.value
        parts = (model, "global" if self.shared else "", self.rule, self.name)
        return "-".join(part for part in parts if part)


def of_shared(metrics: Mapping[Metric, ValuesT]) -> dict[Metric, ValuesT]:
    """Return metrics of the shared model, as a client reports them beside its personal model's."""
    return {replace(metric, shared=True): values for metric, values in metrics.items()}


def metric_row(metric: Metric) -> tuple[str, Model, bool, str]:
    """The metric as JSON has it, in records and checkpoints."""
    return metric.name, metric.model, metric.shared, metric.rule


def metric_of(row: Sequence[Any]) -> Metric:
    """Return the metric that `metric_row` wrote. Raise ValueError for an unknown model."""
    name, model, shared, rule = row
    return Metric(name, Model(model), shared, rule)
