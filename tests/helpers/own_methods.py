"""Two methods in a user's module: FedAvg with a penalty, and a prototype.

Tests copy this file into their own folder, and nothing else in the app or its tests imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.round import Round
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.settings import Section, setting
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution, Learner
from fedproto_app.strategies.common.prototypes import PeriodPrototype
from fedproto_app.strategies.common.strategy import PersonalStrategy
from fedproto_app.strategies.fedavg import FedAvgLearner, FedAvgStrategy
from fedproto_app.tasks.forecasting.task import ForecastingTask


class PenaltySettings(Section):
    penalty: float = setting(0.01, "of the squared parameters")


class PenaltyLearner(FedAvgLearner):
    """FedAvg's loss, and the squares of the parameters."""

    section: PenaltySettings  # type: ignore[assignment]

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: Context
    ) -> dict[str, Tensor]:
        squares = [value.flatten(start_dim=1).square().sum(dim=1) for value in parameters.values()]
        penalty = self.section.penalty * torch.stack(squares).sum(dim=0)
        return {**super().loss(parameters, batch, context), "penalty": penalty}


PENALTY = Method(
    name="penalty",
    strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
    learner="own_methods:PenaltyLearner",
    settings=PenaltySettings,
)


class PullContext(Context):
    def __init__(self, clients: int, mean: Tensor | None) -> None:
        self.own, self.mean = PeriodPrototype(clients), mean

    def start_epoch(self) -> None:
        self.own.clear()


class PullLearner(Learner[PullContext, ForecastingTask]):
    """The supervised loss, and the distance from all clients' mean prototype."""

    needs_representation = True

    @classmethod
    def sends(cls, section: Section, sizes: Sizes) -> list[Sends]:
        shape = (sizes.period, sizes.width)
        return [Sends("prototype", {"mine": shape}, combine="mean", clip="rows")]

    def context(self, guidance: Guidance, cohort: Cohort) -> PullContext:
        mean = guidance.arrays.get("all")
        return PullContext(len(cohort.names), None if mean is None else torch.from_numpy(mean))

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: PullContext
    ) -> dict[str, Tensor]:
        represented = self.task.represent(parameters, batch)
        context.own.add(represented.detach(), batch.age)
        prediction = self.task.predict(parameters, represented, batch)
        terms = {"prediction": self.task.loss(prediction, batch)}
        if context.mean is not None:
            terms["pull"] = (represented - context.mean).square().mean(dim=(1, 2))
        return terms

    def contribution(self, cohort: Cohort, context: PullContext) -> Contribution:
        return Contribution({"mine": context.own.value().numpy()})


class PullStrategy(PersonalStrategy):
    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        mean = self.received.mean("mine")
        return Guidance() if mean is None else Guidance({"all": mean})


PULL = Method(
    name="pull",
    strategy="own_methods:PullStrategy",
    learner="own_methods:PullLearner",
    tasks=("forecasting",),
)


class ChangedSettings(Section):
    """The differences between the declarations of `CHANGED` and `PULL`."""

    combine: str = setting("mean", "")
    remember: str = setting("round", "")
    clip: str = setting("rows", "")
    consent: str = setting("", "")
    counts: bool = setting(False, "whether clients send one number more")
    shared: str = setting("", "more parameters that are averaged, by prefix")


class ChangedLearner(PullLearner):
    """PULL, with a declaration that the settings change."""

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> list[Sends]:
        fields = section.model_dump(include={"combine", "remember", "clip", "consent"})
        arrays = {"mine": (sizes.period, sizes.width), **({"count": ()} if section.counts else {})}
        prototype = Sends("prototype", arrays, **fields, reveals="its mean day")
        return [prototype, *([model(section.shared)] if section.shared else [])]

    def contribution(self, cohort: Cohort, context: PullContext) -> Contribution:
        arrays = super().contribution(cohort, context).arrays
        if self.section.counts:
            arrays["count"] = torch.ones(len(cohort.names)).numpy()
        return Contribution(arrays)


class ChangedModelStrategy(FedAvgStrategy):
    guide = PullStrategy.guide


CHANGED = Method(
    "changed", "own_methods:PullStrategy", ChangedLearner, ChangedSettings, ("forecasting",)
)
CHANGED_MODEL = Method(
    "changed", ChangedModelStrategy, ChangedLearner, ChangedSettings, ("forecasting",)
)


class SilentLearner(PullLearner):
    """Forgets to declare what it sends."""

    @classmethod
    def sends(cls, section: Section, sizes: Sizes) -> list[Sends]:
        return list(super(PullLearner, cls).sends(section, sizes))


class UndeclaredLearner(PullLearner):
    """Sends more than it declares."""

    def contribution(self, cohort: Cohort, context: PullContext) -> Contribution:
        values = context.own.value().numpy()
        return Contribution({"mine": values, "secret": values[:, :1]})


class MisshapenLearner(PullLearner):
    """Sends another shape than it declares."""

    def contribution(self, cohort: Cohort, context: PullContext) -> Contribution:
        return Contribution({"mine": context.own.value().numpy()[:, :1]})


WRONG = {
    name: Method(
        name=name,
        strategy="own_methods:PullStrategy",
        learner=f"own_methods:{learner}",
        tasks=("forecasting",),
    )
    for name, learner in (
        ("silent", "SilentLearner"),
        ("undeclared", "UndeclaredLearner"),
        ("misshapen", "MisshapenLearner"),
    )
}
SILENT, UNDECLARED, MISSHAPEN = WRONG.values()
