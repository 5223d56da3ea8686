"""Three methods of fluke 0.8.1, mended where its steps differ from the paper's.

All else is fluke's: its loop, its clients and channels, its average, its tests. Runs in fluke's
environment, after `stand_in`.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from fluke.algorithms.apfl import APFL, APFLClient
from fluke.algorithms.per_fedavg import PerFedAVG, PerFedAVGClient
from fluke.algorithms.pfedme import PFedMe, PFedMeClient, PFedMeOptimizer
from torch import Tensor, nn


class MendedApflClient(APFLClient):  # type: ignore[misc]
    """APFL as Deng, Kamani and Mahdavi have it (2020).

    fluke takes the loss of a copy of the mixture, so its gradient never reaches the personal model
    v, and then puts the mixture in the place of v. Here v learns from the mixture of both models
    before this step, and is not replaced.
    """

    personal: nn.Module | None = None  # v

    def fit(self, override_local_epochs: int = 0) -> float:
        self.personal = self.personal or deepcopy(self.personalized_model)
        share, rate = self.hyper_params.lam, self._optimizer_cfg.optimizer_cfg.lr
        for _ in range(self.hyper_params.local_epochs):
            for images, labels in self.train_set:
                mixture = _mixed(self.personal, self.model, share)
                output = torch.func.functional_call(self.model, mixture, images)
                mixed = self.hyper_params.loss_fn(output, labels)
                plain = self.hyper_params.loss_fn(self.model(images), labels)
                _descend(self.personal.parameters(), mixed, rate)
                _descend(self.model.parameters(), plain, rate)
        self.personalized_model.load_state_dict(_mixed(self.personal, self.model, share))
        return 0.0


class MendedPerFedAvgClient(PerFedAVGClient):  # type: ignore[misc]
    """First-order Per-FedAvg by Fallah, Mokhtari and Ozdaglar.

    fluke takes the second step from where the first one led. Here it starts where that started.
    A client's own model is the average after one step on one batch. fluke would train on instead.
    """

    def fit(self, override_local_epochs: int = 0) -> float:
        inner = self._optimizer_cfg.optimizer_cfg.lr
        if override_local_epochs:  # the client's own model is asked for
            _descend(self.model.parameters(), self._loss(next(iter(self.train_set))), inner)
            return 0.0
        for _ in range(self.hyper_params.local_epochs * len(self.train_set)):
            first, second = self._get_next_batch(), self._get_next_batch()
            start = deepcopy(self.model.state_dict())
            _descend(self.model.parameters(), self._loss(first), inner)
            steps = torch.autograd.grad(self._loss(second), list(self.model.parameters()))
            self.model.load_state_dict(start)
            _add(self.model.parameters(), steps, -self.hyper_params.beta)
        return 0.0

    def _loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        loss: Tensor = self.hyper_params.loss_fn(self.model(images), labels)
        return loss


class MendedPFedMeClient(PFedMeClient):  # type: ignore[misc]
    """pFedMe by T. Dinh, Tran and Nguyen.

    fluke draws the personal model θ towards itself instead of to w, sends θ instead of w, and is
    tested with what it sends. Here θ is drawn to w, w is sent, and θ is tested.
    """

    def fit(self, override_local_epochs: int = 0) -> float:
        options = self._optimizer_cfg.optimizer_cfg
        self.internal_model = deepcopy(self.model)  # θ
        optimizer = PFedMeOptimizer(self.internal_model.parameters(), **options)
        for _ in range(self.hyper_params.local_epochs):
            for images, labels in self.train_set:
                for _ in range(self.hyper_params.k):
                    optimizer.zero_grad()
                    self.hyper_params.loss_fn(self.internal_model(images), labels).backward()
                    optimizer.step(list(self.model.parameters()))
                with torch.no_grad():
                    pairs = zip(
                        self.model.parameters(), self.internal_model.parameters(), strict=True
                    )
                    for shared, personal in pairs:
                        shared.lerp_(personal, options.lamda * options.lr)
        return 0.0

    def evaluate(self, evaluator: Any, test_set: Any) -> dict[str, float]:
        figures: dict[str, float] = evaluator.evaluate(
            self._last_round, self.internal_model, test_set, device=self.device
        )
        return figures


class MendedApfl(APFL):  # type: ignore[misc]
    def get_client_class(self) -> type:
        return MendedApflClient


class MendedPerFedAvg(PerFedAVG):  # type: ignore[misc]
    def get_client_class(self) -> type:
        return MendedPerFedAvgClient


class MendedPFedMe(PFedMe):  # type: ignore[misc]
    def get_client_class(self) -> type:
        return MendedPFedMeClient


def _mixed(personal: nn.Module, shared: nn.Module, share: float) -> dict[str, Tensor]:
    """Return share · v + (1 − share) · w, whose gradient reaches v alone."""
    return {
        name: share * value + (1 - share) * shared.get_parameter(name).detach()
        for name, value in personal.named_parameters()
    }


def _descend(parameters: Iterable[nn.Parameter], loss: Tensor, rate: float) -> None:
    """Take one gradient step on the loss, in place."""
    leaves = list(parameters)
    _add(leaves, torch.autograd.grad(loss, leaves), -rate)


@torch.no_grad()
def _add(parameters: Iterable[nn.Parameter], steps: Iterable[Tensor], factor: float) -> None:
    for parameter, step in zip(parameters, steps, strict=True):
        parameter.add_(step, alpha=factor)
