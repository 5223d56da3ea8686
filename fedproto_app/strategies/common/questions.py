"""Questions: messages between the phases of a round, for the methods whose rounds need them.

A question carries arrays both ways and changes no client's state. The learner declares its answers
with ``when="question"`` and returns them. The strategy asks in `begin` or `conclude`:

    class MyLearner(Answers, SoloLearner):
        def answer(self, cohort, guidance):
            return Contribution({"profile": …})

    class MyStrategy(FedAvgStrategy):
        def begin(self, round_):
            ask = self.federation.asking(round_.number)
            for reply in ask(clients, lambda keys: Guidance(), expected):
                …

The node's side is in `node/questions.py`, and the server's side in `server/questions.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from fedproto_app.core.messages import Guidance
from fedproto_app.strategies.common.learner import Cohort, Contribution


class Answers(ABC):
    """A learner that answers questions."""

    @abstractmethod
    def answer(self, cohort: Cohort, guidance: Guidance) -> Contribution:
        """Return the clients' answers. Changes to the cohort are not stored."""
