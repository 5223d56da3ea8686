"""FedAvg (McMahan et al., AISTATS 2017): train the global model, send it back.

Adam starts afresh each round, because its moments belong to a model that averaging replaced.
Clients can be evaluated with the shared model, or with that model fine-tuned on their own data for
some epochs, which is the simplest personal model.

The server half is Flower's own strategy. A node replies with the sample-weighted mean of its
clients' models and their number of samples, so Flower's weighted mean over nodes is exactly FedAvg
over clients. If the models are not aggregated by their mean, or if the method needs each client's
model, nodes send every client's model, and the server applies the rule to the clients' models.
Methods that share only a part of their model, such as FedRep, use this strategy unchanged: their
learners declare the shared part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Guidance, Reply
from fedproto_app.core.method import Method
from fedproto_app.core.round import Round, SentModel
from fedproto_app.core.section import CountOrZero, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.maths.steps import length, mean_fault
from fedproto_app.settings import Settings, Training
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import Cohort, Phase, fine_tuned
from fedproto_app.strategies.common.strategy import BaseStrategy
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.task import AnyTask
from fedproto_app.trust.fixed_point import WEIGHT, Sums
from fedproto_app.trust.outliers import growth_fault, root_mean_square


class FedAvgSettings(Section):
    """``[fedavg]``."""

    fine_tune_epochs: CountOrZero = setting(
        0,
        "epochs on a client's own data before evaluation (0: none). The default for `fedavg-ft` "
        "is 1",
    )


class FedAvgLearner(SoloLearner):
    """Solo's local training, starting from the server's model."""

    section: FedAvgSettings

    @classmethod
    def sends(cls, section: object, sizes: Sizes) -> Sequence[Sends]:
        return [model()]

    def __init__(self, training: Training, section: Section, task: AnyTask) -> None:
        super().__init__(training, section, task)
        # A user's method that builds on this learner has its own section.
        self._fine_tuning = getattr(section, "fine_tune_epochs", 0)
        self.personalises = self.personalises or self._fine_tuning > 0

    def personalised(self, cohort: Cohort, guidance: Guidance) -> dict[str, Tensor] | None:
        if not self._fine_tuning:
            return None
        phase = Phase("fine-tune", ("",), self._fine_tuning)
        return fine_tuned(self, cohort, self.context(guidance, cohort), phase)


class FedAvgStrategy(BaseStrategy):
    """The mean of the clients' models, by Flower's own averaging over checked replies.

    Methods that exchange more than the averaged model override `update` to process the rest of the
    replies, and `guide` to send clients more than the model. If clients need other guidance for an
    evaluation, methods override `guide_evaluation` too.

    judges_trained: whether the locally trained model is evaluated as a client's personal model
    where the task asks for one.
    """

    judges_trained = True

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        parameters = self.learner.initial_parameters()
        self._initial: Arrays = {
            name: value.numpy()
            for name, value in parameters.items()
            if self.learner.is_shared(name)
        }
        self.shared_names = self._initial

    def initial_arrays(self) -> Arrays:
        return self._initial

    def chosen(self, eligible: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Choose a share of all clients. Raise an error if their models take too much memory."""
        chosen = super().chosen(eligible, round_)
        if not self.learner.sends_mean:
            expected = self.expected(round_)
            values = sum(math.prod(expected.per_client[name]) for name in expected.models)
            self.averaging.require_room(len(chosen), values)
        return chosen

    def evaluates_with_training(self, round_: Round) -> bool:
        local = self.judges_trained and not self.learner.personalises
        if self.settings.privacy.reported != "exact":  # only errors of final models may be sent
            return False
        return local and self.learner.task.evaluates_local and round_.evaluated

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        return self.guide(clients, round_)

    def average(self, models: Sequence[SentModel], round_: Round) -> Arrays | None:
        in_order = sorted(models, key=lambda sent_model: sent_model.key)
        weighed = [
            (sent_model.arrays, self.weight(sent_model.samples, sent_model.clients))
            for sent_model in in_order
        ]
        return self.averaging.model(weighed, self.model)

    def mean_of(self, sums: Sums, answers: Sequence[Reply]) -> tuple[Arrays | None, str]:
        weight = sum(self.weight(sum(reply.samples), len(reply.names)) for reply in answers)
        if sums.counts[WEIGHT] != weight:
            return None, f"the weights of its models do not add up to the {weight} declared"
        mean = {n: (sums.values[n] / weight).astype(np.float32) for n in self._initial}
        fault = growth_fault(mean, root_mean_square(list(self.model.values())))
        steps = [step for reply in answers for step in reply.steps]
        if steps and not fault:
            samples = [count for reply in answers for count in reply.samples]
            fault = mean_fault(length(mean, self.model), steps, samples)
        return mean, fault or ""

    def weight(self, samples: int, clients: int) -> int:
        """Return the weight in the mean of this many clients, with this many samples in all."""
        by_samples = self.learner.weighs_samples and self.averaging.is_mean
        return samples if by_samples else clients


METHOD = Method(
    name="fedavg",
    title="FedAvg",
    strategy=FedAvgStrategy,
    learner=FedAvgLearner,
    settings=FedAvgSettings,
)
