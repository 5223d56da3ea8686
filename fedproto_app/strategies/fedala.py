"""FedALA (Zhang et al., "FedALA: Adaptive Local Aggregation for personalized federated learning",
AAAI 2023).

A client does not begin a round with the global model, but with
    θ_own + (θ_global − θ_own) ⊙ W
for its p top layers, and with the global parameters for those below. θ_own is how its last training
left them. W lies in 0 … 1, begins at 1 and learns on s of the client's batches, by steps of
gradient descent at rate η: until its loss has settled in the client's second round, one epoch a
round from then on. Then the client trains and sends as in FedAvg.

Clients are judged by the model that they would begin the next round with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.messages import Order
from fedproto_app.core.method import Method
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.section import CountOrZero, Positive, Section, ShareOrOne, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.settings import Training
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Context, Phase
from fedproto_app.strategies.fedala import mixed, settled, stepped
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.task import AnyTask


class FedAlaSettings(Section):
    """``[fedala]`` (docs: personalised.md)."""

    layers: CountOrZero = setting(
        1, "p, the top layers whose parameters a client mixes with its own; 0: all"
    )
    share: ShareOrOne = setting(0.8, "s, of its batches, on which it learns how to mix")
    rate: Positive = setting(1.0, "η, of the steps in which it learns that")
    threshold: Positive = setting(
        0.1, "deviation of ten epochs' losses below which a client's first learning ends"
    )


LOOKED_BACK_ON = 10  # epochs whose losses tell whether the weights have settled
MOST_EPOCHS = 100  # in which they may settle


class MixtureMemory(NamedTuple):
    """own, weight: θ_own and W by the name of each parameter of the top layers. trained: whether
    the client has trained yet; learned: whether its W has learned until it settled; bool."""

    own: dict[str, Tensor]
    weight: dict[str, Tensor]
    trained: Tensor
    learned: Tensor


class FedAlaLearner(SoloLearner):
    """FedAvg's local training, from a mixture of the client's own."""

    section: FedAlaSettings

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        return [model(sizes.encoder, sizes.head)]

    def __init__(self, training: Training, section: FedAlaSettings, task: AnyTask) -> None:
        super().__init__(training, section, task)
        self._top = _top_layers(list(task.initial_parameters()), section.layers)

    def initial_memory(self) -> MixtureMemory:
        model = self.task.initial_parameters()
        return MixtureMemory(
            own={name: torch.zeros_like(model[name]) for name in self._top},
            weight={name: torch.ones_like(model[name]) for name in self._top},
            trained=torch.tensor(False),
            learned=torch.tensor(False),
        )

    def phases(self) -> list[Phase]:
        return [Phase("local", self.shared, self.training.local_epochs)]

    def begin(self, cohort: Cohort) -> None:
        """Learn W, and begin with the mixture."""
        memory: MixtureMemory = cohort.memory
        weights = self._learned(cohort)
        for name, value in mixed(self._own(cohort), cohort.parameters, weights).items():
            cohort.parameters[name].copy_(value)
            memory.weight[name].copy_(weights[name])
        memory.learned.copy_(memory.trained)

    def conclude(self, cohort: Cohort, context: Context) -> dict[str, Tensor]:
        memory: MixtureMemory = cohort.memory
        for name, own in memory.own.items():
            own.copy_(cohort.parameters[name])
        memory.trained.fill_(True)
        return {}

    def personalises(self) -> bool:
        return True

    def personalised(self, cohort: Cohort, order: Order) -> dict[str, Tensor]:
        """The mixture with the model that the order brings; the client's own W stays as it is."""
        model = {name: v for name, v in cohort.parameters.items() if self.is_shared(name)}
        return {**model, **mixed(self._own(cohort), model, self._learned(cohort))}

    def _own(self, cohort: Cohort) -> dict[str, Tensor]:
        """θ_own of the top layers; of a client that has never trained, the received ones."""
        memory, received = cohort.memory, cohort.parameters
        return {
            name: torch.where(_like(memory.trained, own), own, received[name])
            for name, own in memory.own.items()
        }

    def _learned(self, cohort: Cohort) -> dict[str, Tensor]:
        """W as it is after learning with the parameters at hand, by the mixed parameter."""
        memory, samples = cohort.memory, cohort.samples
        if not any(map(self.is_encoder, self._top)):
            samples = self.task.fix_encoder(cohort.parameters, samples)
        weights: dict[str, Tensor] = dict(memory.weight)
        learns, until_settled = memory.trained, ~memory.learned
        losses: list[Tensor] = []
        while learns.any() and len(losses) < MOST_EPOCHS:
            weights, loss = self._epoch(cohort, samples, weights, learns)
            losses.append(loss)
            rests = settled(torch.stack(losses), self.section.threshold, LOOKED_BACK_ON)
            learns = learns & until_settled & ~rests
        return weights

    def _epoch(
        self, cohort: Cohort, samples: Any, weights: dict[str, Tensor], learns: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """W after a step on each of the client's chosen batches, and their mean loss [K].

        They are the same, in the same order, in all epochs of a round. learns: [K] bool; the W of
        the others stays.
        """
        own, received = self._own(cohort), cohort.parameters
        used = [math.ceil(self.section.share * count) for count in samples.batch_counts]
        chosen = torch.tensor(used, device=learns.device)
        generators = [
            torch_stream(self.training.seed, name, cohort.server_round, "aggregation")
            for name in cohort.names
        ]
        total = torch.zeros(len(cohort.names), device=learns.device)
        for step, batch in enumerate(self.batches(samples, generators)):
            k = len(batch.inputs)
            takes = learns[:k] & (step < chosen[:k])
            if not takes.any():
                break
            leaves = {name: w[:k].detach().requires_grad_() for name, w in weights.items()}
            begun = mixed(
                {name: value[:k] for name, value in own.items()},
                {name: received[name][:k] for name in own},
                leaves,
            )
            model = {name: v[:k] for name, v in received.items() if self.is_shared(name)}
            loss = self.loss({**model, **begun}, batch, Context())["prediction"]
            gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
            after = stepped(leaves, dict(zip(leaves, gradients, strict=True)), self.section.rate)
            weights = {
                name: torch.cat([torch.where(_like(takes, w), after[name], w[:k]), w[k:]]).detach()
                for name, w in weights.items()
            }
            total[:k] += torch.where(takes, loss.detach(), 0.0)
        return weights, total / chosen


def _top_layers(names: list[str], layers: int) -> list[str]:
    """The parameters of the last so many layers, or of all if that is 0. What has the same name up
    to its last dot is one layer."""
    every = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    top = every[-layers:]  # 0: from the first on
    return [name for name in names if name.rpartition(".")[0] in top]


def _like(flags: Tensor, values: Tensor) -> Tensor:
    """[k] → [k, 1, …], to stand beside [K, …]."""
    return flags.view(-1, *[1] * (values.dim() - 1))


METHOD = Method(
    name="fedala",
    strategy=FedAvgStrategy,
    learner=FedAlaLearner,
    settings=FedAlaSettings,
)
