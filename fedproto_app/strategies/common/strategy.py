"""The server half of a method. It takes in arrays, returns guidance and never sees a message.

`FlowerStrategy` calls the hooks below in the order of docs/design.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Guidance, Reply
from fedproto_app.core.round import ClientReply, Received, Round, SentModel
from fedproto_app.core.sends import Expected, Sends
from fedproto_app.core.stored import AnyArray
from fedproto_app.settings import Section, Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.tasks.table import make_task
from fedproto_app.trust.fixed_point import Sums

State = dict[str, AnyArray]  # what checkpoints keep, by name
Findings = dict[str, dict[str, AnyArray]]  # arrays by file and name


class Saved(Protocol):
    """What a checkpoint keeps."""

    def state(self) -> State:
        """Return the arrays for a checkpoint, without the global model."""

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays of `state`."""


class BaseStrategy:
    """The hooks of a method in a round. Methods override what they need.

    section: the method's settings, which a subclass annotates with their class. learner: the client
    half, which declares what clients send. sizes: the sizes of the data and the model, which give
    the declared arrays their shapes. releases: the declared arrays that clients send. received: the
    arrays that clients sent. averaging: the aggregation rule. model: the shared parameters at the
    start of the phase. saved: the parts of the state that checkpoints keep, by default `received`.
    shared_names: the arrays of guidance that are the same for all clients. first_round: for the
    strategy of a first phase, the number of that phase's first round, else 0.
    """

    section: Section
    shared_names: Collection[str] = ()
    first_round = 0

    def __init__(self, settings: Settings, federation: Federation) -> None:
        self.settings, self.federation = settings, federation
        task = make_task(settings, federation.shape)
        self.averaging = federation.averaging
        first_round = self.first_round or settings.pretraining_rounds + 1
        self.learner = make_learner(settings, task, first_round)
        self.section = self.learner.section
        self.sizes = task.sizes()
        self.received = Received(self.releases, self.averaging.rows)
        self.saved: Sequence[Saved] = [self.received]
        self.model: Arrays = {}

    @property
    def releases(self) -> Sequence[Sends]:
        return self.learner.sends(self.section, self.sizes)

    def expected(self, round_: Round) -> Expected:
        """Return the arrays of a reply to an order to train."""
        return Expected.declared(
            self.releases,
            self.sizes,
            nodes_average=self.learner.sends_mean,
            evaluates=round_.evaluated,
            masked=self.settings.training.masked,
        )

    # --- hooks of a method ------------------------------------------------------------------------

    def initial_arrays(self) -> Arrays:
        """Return the parameters that the server shares before round 1."""
        return {}

    def begin(self, round_: Round) -> None:
        """Change `model` before the round's clients are chosen."""

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """Return the clients that the method can train."""
        return clients

    def chosen(self, eligible: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return the clients to train in a round."""
        return self.federation.selection.choose(eligible, round_.number)

    def shared_for(self, clients: Sequence[ClientKey]) -> Arrays:
        """Return the parameters that go to these clients of one node."""
        return self.model

    def evaluates_with_training(self, round_: Round) -> bool:
        """Return whether clients are evaluated right after training, in the same message."""
        return False

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Return the guidance for these clients of one node when they train."""
        return Guidance()

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        """Return why a client's arrays cannot be true, or None."""
        return None

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        """Return the reasons for refusing replies that are possible but too unlike the others."""
        return {}

    def average(self, models: Sequence[SentModel], round_: Round) -> Arrays | None:
        """Return the mean of the models that clients or nodes sent, or None if there are none."""
        return None

    def mean_of(self, sums: Sums, answers: Sequence[Reply]) -> tuple[Arrays | None, str]:
        """Return the mean model that the masked sums of these replies hold, or None if they hold
        none. Also return why the sums cannot be true, or ""."""
        return None, ""

    def renewed(self, mean: Arrays, round_: Round) -> Arrays:
        """Return the next model, given the mean."""
        return mean

    def update(self, round_: Round) -> None:
        """Update the method's state with the clients' arrays of a round."""

    def conclude(self, round_: Round) -> None:
        """Change `model` before the round's evaluation."""

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return the clients to evaluate, chosen from all connected clients."""
        return clients

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Return the guidance for these clients of one node when they are only evaluated."""
        return Guidance()

    def answered(
        self, asked_nodes: Collection[str], clients: Sequence[ClientKey], *, evaluation: bool
    ) -> None:
        """Note which clients gave a usable reply in a phase. asked_nodes: the nodes of the clients
        that were asked."""

    def state(self) -> State:
        return {name: array for part in self.saved for name, array in part.state().items()}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        for part in self.saved:
            part.restore(state)

    def findings(self) -> Findings:
        """Return the artefacts of the finished run: arrays by file name."""
        return {}


class PersonalStrategy(BaseStrategy):
    """Base of the methods whose models stay at the clients.

    A client's model is final after training, so it is evaluated in the same message. The evaluation
    phase covers only clients that trained in rounds without evaluation. Methods override `update`
    to use the replies and `guide` to send guidance.

    final_after_training: false if clients get guidance between training and evaluation.
    """

    final_after_training = True

    def chosen(self, eligible: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return a share of all clients, and every client that has never trained."""
        unheard = set(eligible) - self.federation.history.trained
        return self.federation.selection.choose(eligible, round_.number, unheard)

    def shared_for(self, clients: Sequence[ClientKey]) -> Arrays:
        """Return no parameters: models stay at the clients."""
        return {}

    def evaluates_with_training(self, round_: Round) -> bool:
        return self.final_after_training and round_.evaluated

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return the clients that trained since their last evaluation."""
        return [key for key in clients if key in self.federation.history.unevaluated]
