"""Kindred, server half: who is like whom, and each client's priors.

From the prototypes it computes the Jensen-Shannon divergence of every two clients. A client's
prior is the mean of the others' A and B, weighed by how like they are, for every temperature.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.round import ClientReply, Guidance, Received, Round
from fedproto_app.maths.divergence import pairwise_divergence
from fedproto_app.maths.ridge import sums_fault, symmetric
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.divergence_findings import divergence_findings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask, PersonalStrategy
from fedproto_app.strategies.kindred import KindredSettings
from fedproto_app.strategies.kindred.learner import GRAM, MOMENT, PROTOTYPE
from fedproto_app.strategies.kindred.strategy import kinship

# A client's values have mean square 1 on its own scale, differences of two of them at most 4; a
# spike that is carried over a gap can make it more.
LARGEST_MEAN_SQUARE = 400.0
LARGEST_PROTOTYPE = 100.0
COLUMNS_AT_ONCE = 4096


class KindredStrategy(PersonalStrategy):
    """State: the latest prototype and means of every client ever heard from.

    With ``sharing = "none"`` there is nothing to exchange.
    """

    section: KindredSettings

    def __init__(
        self, settings: Settings, section: KindredSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self.final_after_training = section.sharing == "none"
        self._given: Arrays = {}  # the priors of the evaluation under way

    def conclude(self, round_: Round, ask: Ask) -> None:
        """Make everyone's priors, once for all nodes."""
        clients = self.received.clients
        due = round_.evaluated and len(clients) > 1 and not self.final_after_training
        self._given = self._priors(len(clients)) if due else {}

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Everyone who has sent means."""
        if self.final_after_training:
            return super().to_evaluate(clients, round_)
        return [key for key in clients if key in self.federation.history.trained]

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
        row_of = {key: row for row, key in enumerate(received.clients if self._given else [])}
        guided = [key for key in clients if key in row_of]
        rows = [row_of[key] for key in guided]
        priors = {name: prior[rows] for name, prior in self._given.items()} if guided else {}
        return Guidance(priors, guided)

    def answered(
        self, asked: Collection[str], clients: Sequence[ClientKey], *, evaluation: bool
    ) -> None:
        """Drop the priors, which are gigabytes for thousands of clients."""
        if evaluation:
            self._given = {}

    def _priors(self, clients: int) -> Arrays:
        """[N, T, …] everyone's priors, for every temperature.

        Of all clients at once, as a product for each node would read all means as often; and some
        columns at a time, as in float64 the means of thousands of clients are gigabytes.
        """
        divergence = self._divergence(clients)
        common = self.section.sharing == "common"
        temperatures = [math.inf] if common else self.section.temperatures
        means = {name: self.received.stacked(name) for name in (GRAM, MOMENT)}
        priors = {
            name: np.empty((clients, len(temperatures), *every.shape[1:]), dtype=np.float32)
            for name, every in means.items()
        }
        for number, temperature in enumerate(temperatures):
            weights = kinship(divergence, temperature)
            for name, every in means.items():
                flat = torch.from_numpy(every).flatten(start_dim=1)
                mixed = torch.from_numpy(priors[name]).flatten(start_dim=2)[:, number]
                for start in range(0, flat.shape[1], COLUMNS_AT_ONCE):
                    columns = slice(start, start + COLUMNS_AT_ONCE)
                    mixed[:, columns] = weights @ flat[:, columns].double()
        return priors

    def _divergence(self, clients: int) -> Tensor:
        """[N, N] of every two clients' prototypes; for the control somebody else's."""
        divergence = pairwise_divergence(
            torch.from_numpy(self.received.stacked(PROTOTYPE)[:, None])
        )
        if self.section.sharing != "random":
            return divergence
        draws = numpy_stream(self.settings.seed, "random relatives")
        order = torch.from_numpy(draws.permutation(clients))
        return divergence[order][:, order]

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """``divergence``: the prototypes [N, 1, p], the clients' groups, the divergence [N, N]."""
        known = self.received.clients
        if len(known) < 2:
            return {}
        prototypes = self.received.stacked(PROTOTYPE)[:, None]
        return divergence_findings(
            known,
            self.federation.members.facts,
            prototypes,
            lambda rows: pairwise_divergence(torch.from_numpy(prototypes[rows])).numpy(),
        )

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        """Why these cannot be the means of a client's samples."""
        told = reply.arrays
        if not told:
            return None
        if not told[GRAM].any():  # the calendar's, or the 1 that stands for it, never are all 0
            return "its means are of no sample"
        if (largest := float(np.abs(told[PROTOTYPE]).max())) > LARGEST_PROTOTYPE:
            return f"its prototype holds ±{largest:g}, more than {LARGEST_PROTOTYPE:g}"
        gram = symmetric(torch.from_numpy(told[GRAM]).double(), self.sizes.width)
        moment = torch.from_numpy(told[MOMENT]).double().T
        fault = sums_fault(gram, moment, 1, LARGEST_MEAN_SQUARE)
        return fault and f"its means cannot be those of its samples: {fault}"
