"""FedALA (Zhang et al., "FedALA: Adaptive Local Aggregation for personalized federated learning",
AAAI 2023).

A client does not begin a round with the global model. Its p top layers begin with
    θ_own + (θ_global − θ_own) ⊙ W
and the layers below with the global parameters. θ_own are the parameters after the client's last
training. W lies in 0 … 1 and begins at 1. It is trained by gradient descent at rate η on a share s
of the client's batches: in the client's second round until the loss settles, and then for one epoch
per round. After that, the client trains and sends as in FedAvg.

Clients are evaluated with the model that they would begin the next round with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.section import CountOrZero, Positive, Section, ShareOrOne, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.settings import Training
from fedproto_app.strategies.common.learner import Cohort, Context
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.task import AnyTask

# FedALA's mixture of a client's local model and the received model (Zhang et al., AAAI 2023).
#
# Models are dictionaries of tensors, [K, …] each, for K clients. W has the parameters' shapes.


def mixed(
    local: Mapping[str, Tensor], received: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return θ_own + (θ_received − θ_own) ⊙ W for the parameters that have weights."""
    return {
        name: local[name] + (received[name] - local[name]) * weight
        for name, weight in weights.items()
    }


def stepped(
    weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rate: float
) -> dict[str, Tensor]:
    """Return W after a step down its gradient, clamped to 0 … 1.

    The gradient with respect to W is the gradient with respect to the mixture, times
    θ_received − θ_own.
    """
    return {name: (weight - rate * gradients[name]).clamp(0, 1) for name, weight in weights.items()}


def have_settled(losses: Tensor, threshold: float, looked_back_on: int) -> Tensor:
    """Return which clients' losses [epochs, K] have settled, [K] bool.

    They have settled if there are more than `looked_back_on` epochs, and the deviation of the
    newest `looked_back_on` losses is below the threshold.
    """
    if len(losses) <= looked_back_on:
        return torch.zeros(losses.shape[1], dtype=torch.bool, device=losses.device)
    return losses[-looked_back_on:].std(dim=0, correction=0) < threshold


class FedAlaSettings(Section):
    """``[fedala]`` (docs: compared.md)."""

    layers: CountOrZero = setting(
        1, "top layers where a client mixes the global model with its own (p). 0: all"
    )
    share: ShareOrOne = setting(
        0.8, "share of a client's batches that train the mixing weights (s)"
    )
    rate: Positive = setting(1.0, "learning rate of the mixing weights (η)")
    threshold: Positive = setting(
        0.1,
        "the first training of the weights ends when the losses of ten epochs deviate by less "
        "than this",
    )


LOOKED_BACK_ON = 10  # epochs whose losses tell whether the weights have settled
MOST_EPOCHS = 100  # after these the training of W ends anyway


class MixtureMemory(NamedTuple):
    """What a client remembers between rounds.

    own, weight: θ_own and W by the name of each parameter of the top layers. trained: bool, whether
    the client has trained yet. learned: bool, whether its W has been trained until it settled.
    """

    own: dict[str, Tensor]
    weight: dict[str, Tensor]
    trained: Tensor
    learned: Tensor


class FedAlaLearner(SoloLearner):
    """FedAvg's local training, started from a mixture of the client's own and the global model."""

    section: FedAlaSettings
    personalises = True

    @classmethod
    def sends(cls, section: object, sizes: Sizes) -> Sequence[Sends]:
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

    def begin(self, cohort: Cohort) -> None:
        """Train W, and begin with the mixture."""
        memory: MixtureMemory = cohort.memory
        weights = self._learned(cohort)
        for name, value in mixed(self._local_model(cohort), cohort.parameters, weights).items():
            cohort.parameters[name].copy_(value)
            memory.weight[name].copy_(weights[name])
        memory.learned.copy_(memory.trained)

    def conclude(self, cohort: Cohort, context: Context) -> dict[str, Tensor]:
        memory: MixtureMemory = cohort.memory
        for name, local in memory.own.items():
            local.copy_(cohort.parameters[name])
        memory.trained.fill_(True)
        return {}

    def personalised(self, cohort: Cohort, guidance: Guidance) -> dict[str, Tensor]:
        """Return the mixture with the received model. The stored W does not change."""
        model = {name: v for name, v in cohort.parameters.items() if self.is_shared(name)}
        return {**model, **mixed(self._local_model(cohort), model, self._learned(cohort))}

    def _local_model(self, cohort: Cohort) -> dict[str, Tensor]:
        """Return θ_own of the top layers, or the received parameters before any training."""
        memory, received = cohort.memory, cohort.parameters
        return {
            name: torch.where(_like(memory.trained, local), local, received[name])
            for name, local in memory.own.items()
        }

    def _learned(self, cohort: Cohort) -> dict[str, Tensor]:
        """Return W, trained with the current parameters, by parameter name."""
        memory, samples = cohort.memory, cohort.samples
        if not any(name.startswith(self.encoder) for name in self._top):
            samples = self.task.fix_encoder(cohort.parameters, samples)
        weights: dict[str, Tensor] = dict(memory.weight)
        learns, until_settled = memory.trained, ~memory.learned
        losses: list[Tensor] = []
        while learns.any() and len(losses) < MOST_EPOCHS:
            weights, loss = self._epoch(cohort, samples, weights, learns)
            losses.append(loss)
            rests = have_settled(torch.stack(losses), self.section.threshold, LOOKED_BACK_ON)
            learns = learns & until_settled & ~rests
        return weights

    def _epoch(
        self, cohort: Cohort, samples: Any, weights: dict[str, Tensor], learns: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return W after a step on each of the client's chosen batches, and the mean loss [K].

        The batches and their order are the same in all epochs of a round. learns: [K] bool. The
        other clients' W does not change.
        """
        local, received = self._local_model(cohort), cohort.parameters
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
            mixture = mixed(
                {name: value[:k] for name, value in local.items()},
                {name: received[name][:k] for name in local},
                leaves,
            )
            model = {name: v[:k] for name, v in received.items() if self.is_shared(name)}
            loss = self.loss({**model, **mixture}, batch, Context())["prediction"]
            gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
            after = stepped(leaves, dict(zip(leaves, gradients, strict=True)), self.section.rate)
            weights = {
                name: torch.cat([torch.where(_like(takes, w), after[name], w[:k]), w[k:]]).detach()
                for name, w in weights.items()
            }
            total[:k] += torch.where(takes, loss.detach(), 0.0)
        return weights, total / chosen


def _top_layers(names: list[str], layers: int) -> list[str]:
    """Return the parameters of the last layers, or of all layers if `layers` is 0.

    Parameters with the same name up to the last dot form one layer.
    """
    layer_names = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    top = layer_names[-layers:]  # 0: from the first on
    return [name for name in names if name.rpartition(".")[0] in top]


def _like(flags: Tensor, values: Tensor) -> Tensor:
    """Reshape [k] → [k, 1, …] to broadcast with [K, …]."""
    return flags.view(-1, *[1] * (values.dim() - 1))


METHOD = Method(
    name="fedala",
    strategy=FedAvgStrategy,
    learner=FedAlaLearner,
    settings=FedAlaSettings,
)
