"""Census (ours): learned and fixed features of images, and a classifier fitted to class sums.

The encoder and its head are trained as in FedAvg, with logit-adjusted cross-entropy (Menon et al.,
"Long-tail learning via logit adjustment", ICLR 2021). With logits s_c and the client's class
frequencies π_c in the stage, the loss is
    L = −log softmax_y(s + τ·log π)
so that the frequency of a class alone teaches the encoder nothing.

Before it trains, a client computes the sums of `maths/class_gaussian.py` over the features of the
received encoder, which is the same for all clients, and over fixed random features. The client's
classifier ("answer") is fitted to its own sums and the totals (`class_fit.py`), as in the closed
form. It belongs to the received encoder, so clients are evaluated with that encoder and not with
the newly averaged one. Sums of earlier stages come from the encoders of those stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.events import tell
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.metrics import Metric, of_shared
from fedproto_app.core.round import ClientReply, Received, Round
from fedproto_app.core.section import NonNegative, Positive, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.class_gaussian import UNKNOWN_CLASS, ClassSums, class_sums, log_prior
from fedproto_app.models.model import HEAD, Model
from fedproto_app.settings import Settings, Training
from fedproto_app.strategies.analytic import Prior
from fedproto_app.strategies.common.class_fit import (
    COUNTS,
    ClassFit,
    Fold,
    frequencies,
    packed,
    scatter_in,
    sent_sums,
    sums_of_classes,
    sums_shapes,
    total_in,
    unpacked,
)
from fedproto_app.strategies.common.client_sums import SumsOfClasses
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution, Learner, Phase
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.images.task import ClassificationTask, fixed_features, image_classifier
from fedproto_app.tasks.labelled import LabelledBatch
from fedproto_app.trust.outliers import FEWEST

# The most fixed features beside learned ones. A node keeps a cohort's sums in its state, and twice
# in memory.
MOST_BESIDE_LEARNED = 200


class CensusSettings(Section):
    """``[census]``: our own method for images (docs: closed-forms.md)."""

    logit_adjustment: NonNegative = setting(
        1.0, "weight of the client's class frequencies in the loss (τ). 0 is plain cross-entropy"
    )
    features: Annotated[int, Field(ge=0, le=MOST_BESIDE_LEARNED)] = setting(
        100,
        "random filters beside the learned features (0: none)",
        f"0 … {MOST_BESIDE_LEARNED}",
    )
    penalty: Positive = setting(1.0, "as `analytic.penalty`")
    prior: Prior = setting("own", "as `analytic.prior`")


class LearnedAndFixed(Model):
    """A learned representation followed by fixed functions of the same inputs.

    learned: the model with the parameters. Its head sees only the learned representation. fixed: a
    model without parameters, or None. A head with weights for all D values sees all features.
    """

    def __init__(self, learned: Model, fixed: Model | None) -> None:
        self.learned, self._fixed = learned, fixed
        self.representation_dim = learned.representation_dim
        if fixed is not None:
            self.representation_dim += fixed.representation_dim
        self.never_negative = learned.never_negative and (fixed is None or fixed.never_negative)

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self.learned.encoder_parameters(generator)

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self.learned.head_parameters(generator)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        learned = self.learned.encode(parameters, *inputs)
        if self._fixed is None:
            return learned
        return torch.cat([learned, self._fixed.encode({}, *inputs)], dim=-1)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        rows = parameters[HEAD + "weight"].shape[1]
        return self.learned.predict(parameters, representation[..., :rows])


ANSWER = "answer."  # the classifier last fitted for the client

SENDS_SUMS = "sends-sums"  # an option of the training guidance


class CensusMemory(NamedTuple):
    """A client's packed sums of the earlier stages and of the present stage.

    stage: the number of the present stage, -1 before the first.
    """

    earlier: dict[str, Tensor]
    current: dict[str, Tensor]
    stage: Tensor


class CensusContext(Context):
    """log_frequencies: τ·log π of the stages that clients train on, [K, C]. sends_sums: whether the
    server asks for sums in this round."""

    def __init__(self, log_frequencies: Tensor, sends_sums: bool) -> None:
        self.log_frequencies, self.sends_sums = log_frequencies, sends_sums


class CensusLearner(Learner[CensusContext, ClassificationTask]):
    """FedAvg with logit-adjusted cross-entropy, and sums of the shared encoder's vectors."""

    section: CensusSettings

    def __init__(
        self, training: Training, section: CensusSettings, task: ClassificationTask
    ) -> None:
        super().__init__(training, section, task)
        self._classes = len(task.shape.classes)
        learned = self._model.learned.representation_dim
        self._fit = ClassFit(section.penalty, section.prior == "even", steady_from=learned)

    @classmethod
    def sends(cls, section: CensusSettings, sizes: Sizes) -> Sequence[Sends]:
        sums = sums_of_classes(sizes, when="evaluated")
        return [model(sizes.encoder, sizes.head, clip=""), sums]

    @property
    def _model(self) -> LearnedAndFixed:
        assert isinstance(self.task.model, LearnedAndFixed)
        return self.task.model

    def initial_parameters(self) -> dict[str, Tensor]:
        return {
            **self.task.initial_parameters(),
            ANSWER + "weight": torch.zeros(self.task.representation_dim, self._classes),
            ANSWER + "bias": torch.zeros(self._classes),
        }

    def initial_memory(self) -> CensusMemory:
        shapes = sums_shapes(self._classes, self.task.representation_dim)
        none = {name: torch.zeros(shape) for name, shape in shapes.items()}
        return CensusMemory(earlier=none, current=none, stage=torch.tensor(-1))

    def phases(self) -> list[Phase]:
        return [Phase("local", self.shared, self.training.local_epochs)]

    def begin(self, cohort: Cohort) -> None:
        """Compute the stage's sums while the encoder is still the received one."""
        memory: CensusMemory = cohort.memory
        stages = torch.tensor(cohort.samples.trained_stages, device=memory.stage.device)
        comes = stages != memory.stage
        turn = stages < memory.stage  # the stages start again, and so do the sums
        vectors = self.task.train_vectors(cohort.parameters, cohort.samples)
        stage_sums = packed(class_sums(vectors, self._classes))
        for name, earlier in memory.earlier.items():
            current = memory.current[name]
            by_client = (-1, *[1] * (earlier.dim() - 1))
            passed = torch.where(turn.view(by_client), 0.0, earlier + current)
            earlier.copy_(torch.where(comes.view(by_client), passed, earlier))
            current.copy_(stage_sums[name])
        memory.stage.copy_(stages)

    def context(self, guidance: Guidance, cohort: Cohort) -> CensusContext:
        prior = self._adjustment(cohort.memory.current[COUNTS])
        return CensusContext(prior, bool(guidance.options.get(SENDS_SUMS)))

    def loss(
        self, parameters: Mapping[str, Tensor], batch: LabelledBatch, context: CensusContext
    ) -> dict[str, Tensor]:
        learned = self._model.learned
        representation = self.task.encode(parameters, batch.inputs, model=learned)
        logits = learned.predict(parameters, representation)
        adjusted = logits + context.log_frequencies[: len(logits)].unsqueeze(1)
        return {"prediction": self.task.loss(adjusted, batch)}

    def contribution(self, cohort: Cohort, context: CensusContext) -> Contribution:
        if not context.sends_sums:
            return Contribution()
        return Contribution(sent_sums(self._sums(cohort), masked=self.training.masked))

    def receive(self, cohort: Cohort, guidance: Guidance) -> list[int]:
        """Fit each client's answer to the totals over all clients."""
        cohort.samples = self.task.tests_encoded(cohort.parameters, cohort.samples)
        total = total_in(guidance, self.task.device)
        weight, bias = self._of_head(cohort, total)
        if total is not None and self._fit.of_all(total) is None:
            tell("invalid-totals", WARNING, round=cohort.server_round, clients=len(cohort.names))
        elif total is not None:
            validation = self.task.validation_vectors(cohort.parameters, cohort.samples)
            weight, bias = self._fit.personal(
                unpacked(self._sums(cohort)),
                total,
                [Fold(validation, in_sums=False)],
                own=scatter_in(guidance, total),
                shares=cohort.shares,
            ).final
        cohort.parameters[ANSWER + "weight"].copy_(weight)
        cohort.parameters[ANSWER + "bias"].copy_(bias)
        return list(range(len(cohort.names)))

    def predictor(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the shared encoder with the client's answer."""
        return {**parameters, **{HEAD + n: parameters[ANSWER + n] for n in ("weight", "bias")}}

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Evaluate the client's answer, the averaged head, and the classifier of all samples."""
        total = total_in(guidance, self.task.device)
        personal = self.predictor(cohort.parameters)
        head = self._with(cohort, *self._of_head(cohort, total))
        rules = {"": self.task.by_head(personal), "head": self.task.by_head(head)}
        metrics = self.task.judge(personal, cohort.samples, rules)
        if total is None or (of_all := self._fit.of_all(total)) is None:
            return metrics
        clients = len(cohort.names)
        weight, bias = (tensor.expand(clients, *tensor.shape) for tensor in of_all)
        with_shared_head = self._with(cohort, weight, bias)
        return metrics | of_shared(self.task.evaluate(with_shared_head, cohort.samples))

    def _with(self, cohort: Cohort, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
        """Return the shared encoder with this classifier [K, D, C], [K, C]."""
        classifier = {HEAD + "weight": weight, HEAD + "bias": bias}
        floats = {name: value.float().contiguous() for name, value in classifier.items()}
        return {**cohort.parameters, **floats}

    def _of_head(self, cohort: Cohort, total: ClassSums | None) -> tuple[Tensor, Tensor]:
        """Return the averaged head with the client's class frequencies added, because it was
        trained without any."""
        weight, bias = (cohort.parameters[HEAD + name] for name in ("weight", "bias"))
        counts = self._sums(cohort)[COUNTS].double()
        if total is not None:
            counts = frequencies(counts, total.counts)
        beside = self.task.representation_dim - weight.shape[1]
        return pad(weight, (0, 0, 0, beside)), bias + self._adjustment(counts)

    def _adjustment(self, counts: Tensor) -> Tensor:
        """Return τ·log π of these counts, [K, C], very low for a class without samples."""
        strength = self.section.logit_adjustment
        if strength == 0:
            return torch.zeros_like(counts, dtype=torch.float32)
        prior = log_prior(counts)
        return torch.where(counts > 0, strength * prior, UNKNOWN_CLASS).float()

    def _sums(self, cohort: Cohort) -> dict[str, Tensor]:
        """Return the clients' packed sums over all stages so far."""
        current = cohort.memory.current
        return {name: value + current[name] for name, value in cohort.memory.earlier.items()}


def learned_and_random_patches(settings: Settings, shape: DataShape) -> LearnedAndFixed:
    """Return the encoder of the settings with random filters, which all processes draw alike."""
    filters = settings.method_table(CensusSettings).features
    fixed = fixed_features(settings, shape, filters) if filters else None
    return LearnedAndFixed(image_classifier(settings.model, shape), fixed)


class SumsOfLearnedFeatures(SumsOfClasses):
    """Sums of features that change from round to round."""

    def __init__(self, settings: Settings, federation: Federation, received: Received) -> None:
        super().__init__(settings, federation, received)
        # If stages repeat, sums start again with each cycle.
        self.grow = settings.classification.stage_schedule != "cyclic"

    def comparable(self, reported: Mapping[ClientKey, float]) -> Mapping[ClientKey, float]:
        """Return the sizes of the round or, if there are few, the latest sizes of all clients."""
        return reported if len(reported) >= FEWEST else super().comparable(reported)


class CensusStrategy(FedAvgStrategy):
    """The mean of the models. For an evaluation, clients also get the sums over all clients."""

    section: CensusSettings
    judges_trained = False

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self._sums = SumsOfLearnedFeatures(settings, federation, self.received)
        self.saved = [self._sums]
        self._sent_out: Arrays = {}

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Ask for sums if the round is evaluated."""
        return Guidance(options={SENDS_SUMS: float(round_.evaluated)})

    def begin(self, round_: Round) -> None:
        self._sent_out = self.model

    def update(self, round_: Round) -> None:
        self._sums.take_in(round_)

    def conclude(self, round_: Round) -> None:
        self.model = self._sent_out

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        return Guidance(self._sums.totals())

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        if COUNTS not in reply.arrays:  # a round that is not evaluated
            return None
        return self._sums.fault(reply.arrays, reply.key, reply.samples)

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        sums = {reply.key: reply.arrays for reply in replies if COUNTS in reply.arrays}
        return self._sums.outliers(sums) if sums else {}


METHOD = Method(
    name="census",
    strategy=CensusStrategy,
    learner=CensusLearner,
    settings=CensusSettings,
    tasks=("classification",),
    model=f"{__name__}:learned_and_random_patches",
    small={"census.features": 2},
)
