"""A metric as a value: what is measured, of which of a client's models, by which rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Model(StrEnum):
    """Which of a client's models was measured.

    USED: the one that the client goes on with after the round. LOCAL: its own, as local training
    left it: before averaging, or beside a head of its cluster's. KEPT: the one it keeps for good.
    """

    USED = "used"
    LOCAL = "local"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Metric:
    """What a number about a client says.

    name: what is measured, in the task's words: "mse", "validation-error", "correct/stage-1".
    shared: of the client's copy of the global model, which it holds beside a personal one.
    rule: of inference, where a method has several; "" is the one that the run chose.
    """

    name: str
    model: Model = Model.USED
    shared: bool = False
    rule: str = ""

    def __str__(self) -> str:
        """For people to read in refusals; nothing takes it apart."""
        model = "" if self.model is Model.USED else self.model.value
        parts = (model, "global" if self.shared else "", self.rule, self.name)
        return "-".join(part for part in parts if part)


def metric_row(metric: Metric) -> tuple[str, Model, bool, str]:
    """The metric as JSON has it, in records and checkpoints."""
    return metric.name, metric.model, metric.shared, metric.rule


def metric_of(row: Sequence[Any]) -> Metric:
    """The metric that `metric_row` wrote; raises ValueError for an unknown model."""
    name, model, shared, rule = row
    return Metric(name, Model(model), shared, rule)
