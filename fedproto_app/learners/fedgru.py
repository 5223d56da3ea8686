"""FedGRU (Liu, Yu, Kang, Niyato, Zhang, IEEE IoT Journal 2020), client half.

A client trains the model of its organisation's cluster as in FedAvg. It forecasts with the mean of
those of all clusters' models that have the lowest error together on its validation samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context, Contribution, Phase
from fedproto_app.learners.profile import PROFILE, profile
from fedproto_app.learners.solo import SoloLearner
from fedproto_app.messages import Order
from fedproto_app.models.ensemble import CHOICE, member, name_alone
from fedproto_app.settings import FedGruSettings, Training
from fedproto_app.tasks.forecasting.task import ForecastingTask


class FedGruLearner(SoloLearner):
    """With one cluster FedAvg's; else each client sends its own cluster's model, which nodes cannot
    average, and an order to train brings the number of each client's cluster by its name."""

    section: FedGruSettings
    task: ForecastingTask

    def __init__(self, training: Training, section: FedGruSettings, task: ForecastingTask) -> None:
        super().__init__(training, section, task)
        self._clusters = section.clusters
        self._alone = self._clusters == 1  # FedAvg

    @classmethod
    def sends(cls, section: FedGruSettings, sizes: Sizes) -> Sequence[Sends]:
        profile = Sends("profile", {PROFILE: (sizes.period,)}, when="question")
        if section.clusters == 1:
            return [model(sizes.encoder, sizes.head, clip=""), profile]
        # Each client sends the model of its cluster, under the names of a model alone.
        own = {name_alone(n): s for n, s in sizes.parameters.items() if n.split(".")[1] == "0"}
        every = model(sizes.encoder, sizes.head, arrays=own, combine="each", clip="")
        return [every, profile]

    def initial_parameters(self) -> dict[str, Tensor]:
        model = self.task.initial_parameters()
        if self._alone:
            return model
        return {**model, CHOICE: torch.full((self._clusters,), 1 / self._clusters)}

    def phases(self) -> list[Phase]:
        return [Phase("local", self.shared, self.training.local_epochs)]

    def context(self, order: Order, cohort: Cohort) -> Context:
        """While it trains, a client has its own cluster's model alone."""
        if not self._alone:
            own = cohort.parameters[CHOICE]
            own.zero_()
            for row, name in enumerate(cohort.names):
                own[row, int(order.options[name])] = 1.0
        return Context()

    def own_models(self, cohort: Cohort) -> dict[str, Tensor]:
        """Of each client its own cluster's model."""
        chosen = cohort.parameters[CHOICE].argmax(dim=1).tolist()
        members = [member(cohort.parameters, one) for one in range(self._clusters)]
        return {
            name: torch.stack([members[one][name][row] for row, one in enumerate(chosen)])
            for name in members[0]
        }

    def answer(self, cohort: Cohort, order: Order) -> Contribution:
        return profile(cohort, self.task)

    def receive(self, cohort: Cohort, order: Order) -> list[int]:
        """Choose among all clusters' models, and the means of several."""
        if self._alone:
            return []
        parameters = dict(cohort.parameters)
        choices = subsets(self._clusters)
        errors = []
        for choice in choices:
            parameters[CHOICE] = choice.to(self.task.device).expand(len(cohort.names), -1)
            errors.append(self.task.validation_error(parameters, cohort.samples))
        best = torch.stack(errors).nan_to_num(nan=torch.inf).argmin(dim=0)
        cohort.parameters[CHOICE].copy_(torch.stack(choices).to(best.device)[best])
        return list(range(len(cohort.names)))


def subsets(clusters: int) -> list[Tensor]:
    """[C] the weights of every mean of one or more of C models, the smallest means first."""
    made = []
    for size in range(1, clusters + 1):
        for some in combinations(range(clusters), size):
            weights = torch.zeros(clusters)
            weights[list(some)] = 1 / size
            made.append(weights)
    return made
