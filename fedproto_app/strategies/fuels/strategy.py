"""FUELS (Liu et al., AAAI 2025), server half: ServerExecute (A, Algorithm 1).

The server stores the latest prototype of every client that ever reported and the N×N matrix of
their Jensen-Shannon divergences. A round recomputes only the rows of the clients that reported (the
paper's reuse under the participation ratio α). Each client gets two means: one of the similar
prototypes (PR_n) and one of the others (NR_n).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.round import Round
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.divergence import (
    contrast_prototypes,
    threshold,
    update_divergence,
)
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.findings import divergence_findings
from fedproto_app.strategies.common.strategy import PersonalStrategy
from fedproto_app.strategies.fuels import FuelsSettings
from fedproto_app.strategies.fuels.learner import (
    NEGATIVE,
    POSITIVE,
    PROTOTYPE_BATCHES,
    PROTOTYPES,
)


class JSDPrototypeStrategy(PersonalStrategy):
    """State: client keys, prototypes [N, rows, d_p] and divergence [N, N] in the same order."""

    section: FuelsSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self._rows_of: dict[ClientKey, int] = {}
        self._prototypes: Tensor | None = None
        self._divergence: Tensor | None = None
        self._threshold = 0.0
        self._batches = 1 if self.section.periodicity_aware else 0  # 0: not fixed yet

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """Return all clients or, with concatenated prototypes, those with the common length."""
        if self.section.periodicity_aware:
            return clients
        self._fix_common_length()
        least_samples = self._batches * self.settings.data.period
        facts = self.federation.members.facts
        return [key for key in clients if facts[key].samples >= least_samples]

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Send PR_n and NR_n (A, Algorithm 1, line 10) to the clients that have both."""
        options = {}
        if not self.section.periodicity_aware:
            options = {PROTOTYPE_BATCHES: float(self._batches)}
        compared = [key for key in clients if key in self._rows_of]
        if not compared or not self.section.inter:
            return Guidance(options=options)
        assert self._prototypes is not None
        assert self._divergence is not None
        positive, negative, has_negative = contrast_prototypes(
            self._prototypes,
            self._divergence,
            self._threshold,
            torch.tensor([self._rows_of[key] for key in compared]),
            self._places(),
            self.averaging.groups(),
        )
        guided = [key.client for key, ok in zip(compared, has_negative.tolist(), strict=True) if ok]
        if not guided:
            return Guidance(options=options)
        arrays = {
            POSITIVE: positive[has_negative].numpy(),
            NEGATIVE: negative[has_negative].numpy(),
        }
        return Guidance(arrays, guided, options=options)

    def update(self, round_: Round) -> None:
        """Replace the reporting clients' prototypes and recompute their rows of the divergence."""
        if self.received.fresh:
            self._compare([reply.key for reply in self.received.fresh])

    def _compare(self, changed: Sequence[ClientKey]) -> None:
        """Compare the latest prototypes. changed: the clients with a new prototype."""
        senders = self.received.senders
        self._rows_of = {key: row for row, key in enumerate(senders)}
        self._prototypes = torch.from_numpy(self.received.stacked(PROTOTYPES, senders))
        rows = torch.tensor([self._rows_of[key] for key in changed])
        self._divergence = update_divergence(self._divergence, self._prototypes, rows)
        self._threshold = threshold(self._divergence, self.section.threshold, self.section.beta)

    def _places(self) -> Tensor | None:
        """Return the clients' places on a circle if `comparison` is "random", else None.

        Each place is drawn from the seed and the client's name, so it is the same in every round
        and newcomers do not change it.
        """
        if self.section.comparison == "jsd":
            return None
        streams = (numpy_stream(self.settings.seed, "place", key.client) for key in self._rows_of)
        return torch.tensor([stream.random() for stream in streams])

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the prototypes, and compute the divergence from them."""
        super().restore(state)
        if self.received.senders:
            self._divergence = None
            self._compare(self.received.senders)
            assert self._prototypes is not None
            self._batches = self._prototypes.shape[1] // self.settings.data.period
            self.sizes = replace(self.sizes, batches=self._batches)

    def findings(self) -> dict[str, dict[str, AnyArray]]:
        """Return ``divergence``: the state, the clients' true groups and the divergence matrix."""
        if self._prototypes is None or self._divergence is None:
            return {}
        divergence = self._divergence.numpy()
        facts, prototypes = self.federation.members.facts, self._prototypes.numpy()
        return divergence_findings(
            list(self._rows_of), facts, prototypes, lambda rows: divergence[np.ix_(rows, rows)]
        )

    def _fix_common_length(self) -> None:
        """Give concatenated prototypes as many rows as the shortest client has."""
        if not self._batches:
            members = self.federation.members
            samples = [members.facts[key].samples for key in members.clients()]
            shortest = min(count for count in samples if count)
            self._batches = shortest // self.settings.data.period
            self.sizes = replace(self.sizes, batches=self._batches)
