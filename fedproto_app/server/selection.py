"""The choice of a round's clients, and of the rounds that are evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.settings import Settings


class Selection:
    """The choices that are the same for every method.

    ends_with: whether no round can follow this one, for another reason than the number of rounds.
    """

    def __init__(self, settings: Settings, ends_with: Callable[[int], bool]) -> None:
        self._settings, self._ends_with = settings, ends_with

    def choose(
        self,
        clients: Sequence[ClientKey],
        server_round: int,
        newcomers: Collection[ClientKey] = (),
    ) -> list[ClientKey]:
        """Return the clients to train this round: a share of all clients, and all newcomers."""
        seed, share = self._settings.seed, self._settings.participation
        return select(clients, share, set(newcomers), seed, server_round)

    def evaluates(self, server_round: int) -> bool:
        """Whether this round's models are evaluated; the last round's always are.

        Before the method's own rounds there is nothing to evaluate.
        """
        of_task = server_round - self._settings.pretraining_rounds
        if of_task <= 0:
            return False
        last = of_task == self._settings.rounds or self._ends_with(server_round)
        return of_task % self._settings.evaluate_every == 0 or last


def select(
    keys: Sequence[ClientKey], share: float, newcomers: set[ClientKey], seed: int, server_round: int
) -> list[ClientKey]:
    """Return a round's clients: a seeded share of all (at least one), and all newcomers."""
    count = max(1, math.ceil(share * len(keys) - 1e-9)) if keys else 0
    order = numpy_stream(seed, "selection", server_round).permutation(len(keys))
    chosen = {keys[index] for index in order[:count]}
    return [key for key in keys if key in chosen or key in newcomers]
