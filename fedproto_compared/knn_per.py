"""kNN-Per (Marfoq, Neglia, Vidal, Kameni, "Personalized federated learning through local
memorization", ICML 2022).

Clients train FedAvg's model. For an evaluation, a client remembers the shared encoder's
representations of its train samples, up to a limit, and predicts
    λ·(prediction of the k nearest) + (1 − λ)·(prediction of the shared model)
where each neighbour has the weight exp(−distance). It chooses k and λ by the loss on its validation
samples. The memory never leaves the client. For forecasts, it is saved with the client's model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.section import Section, setting
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.class_gaussian import LabelledVectors
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import Forecaster
from fedproto_app.models.model import Model
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.learner import Cohort
from fedproto_app.strategies.fedavg import FedAvgLearner, FedAvgStrategy
from fedproto_app.strategies.kindred.learner import extent
from fedproto_app.tasks.forecasting.task import EVALUATED_AT_ONCE, CohortSamples, ForecastingTask
from fedproto_app.tasks.images.task import ClassificationTask, image_classifier
from fedproto_app.tasks.sequences.task import SequenceTask, sequence_model

MOST_REMEMBERED = 20_000  # because a node compares each sample of a cohort with all of them


class KnnPerSettings(Section):
    """``[knn-per]`` (docs: compared.md)."""

    most_samples: Annotated[int, Field(ge=1, le=MOST_REMEMBERED)] = setting(
        1000,
        "most train samples that a client remembers",
        f"1 … {MOST_REMEMBERED:,}",
    )


# Predictions from the nearest remembered samples.
#
# Shapes: K clients, B queries, M places of a client's memory, D width of a representation, m the
# largest number of neighbours, C classes, H values of a prediction.

QUERIES_AT_ONCE = 256  # of each client, to bound the memory that distances take


def nearest(
    queries: Tensor, memory: Tensor, counts: Tensor, most_neighbours: int
) -> tuple[Tensor, Tensor]:
    """Return the distances of the nearest remembered vectors, [K, B, m] float64, and their places.

    queries: [K, B, D]. memory: [K, M, D]. counts: [K], each client's filled places. The nearest
    comes first. Distances beyond a client's last vector are infinite. m = min(most_neighbours, M).
    """
    empty = torch.arange(memory.shape[1], device=memory.device) >= counts.unsqueeze(1)  # (K, M)
    remembered, nearest_of_chunks = memory.double(), []
    for chunk in torch.split(queries.double(), QUERIES_AT_ONCE, dim=1):
        far = torch.cdist(chunk, remembered).masked_fill(empty.unsqueeze(1), torch.inf)
        nearest_of_chunks.append(
            far.topk(min(most_neighbours, memory.shape[1]), dim=2, largest=False)
        )
    distances, places = zip(*nearest_of_chunks, strict=True)
    return torch.cat(distances, dim=1), torch.cat(places, dim=1)


def kernel_weights(distances: Tensor, neighbours: Tensor) -> Tensor:
    """Return the weights of each client's k nearest vectors, summing to 1: [K, B, m].

    neighbours: each client's k, [K]. Weights beyond k are 0, and so are all of an empty memory.
    """
    beyond = torch.arange(distances.shape[2], device=distances.device) >= neighbours.unsqueeze(1)
    weights = (-distances).masked_fill(beyond.unsqueeze(1), -torch.inf).softmax(dim=2)
    return weights.nan_to_num()


def votes(weights: Tensor, places: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the weighted share of each class among the neighbours, [K, B, C]. labels: [K, M]."""
    of_neighbours = _at_places(labels, places)
    shares = weights.new_zeros(*weights.shape[:2], classes)
    for number in range(
        weights.shape[2]
    ):  # in a loop, so that the sum has the same order on any device
        rank = slice(number, number + 1)
        shares = shares.scatter_add(2, of_neighbours[..., rank], weights[..., rank])
    return shares


def means(weights: Tensor, places: Tensor, targets: Tensor) -> Tensor:
    """Return the weighted mean of the neighbours' targets, [K, B, H]. targets: [K, M, H]."""
    step_means = [
        (weights * _at_places(targets[..., step], places)).sum(dim=2)
        for step in range(targets.shape[2])
    ]
    return torch.stack(step_means, dim=2)


def _at_places(values: Tensor, places: Tensor) -> Tensor:
    """Return the values [K, M] at places [K, B, m]: [K, B, m]."""
    return values.unsqueeze(1).expand(-1, places.shape[1], -1).gather(2, places)


MEMORY = "memory."
_NEVER_ZERO = 1e-12  # the least probability whose logarithm is taken


@dataclass(frozen=True)
class Memory:
    """The remembered samples of K clients, and how the clients use them.

    vectors: [K, M, D]. targets: labels [K, M], or numbers [K, M, H]. samples: [K], how many of the
    M places are filled. neighbours: [K], k. share: [K], λ, the neighbours' weight in the answer.
    """

    vectors: Tensor
    targets: Tensor
    samples: Tensor
    neighbours: Tensor
    share: Tensor

    def parameters(self) -> dict[str, Tensor]:
        """Return the memory as parameters of a model."""
        return {MEMORY + field.name: getattr(self, field.name) for field in fields(self)}


class Remembering(Model):
    """Another model, whose parameters may include a `Memory`.

    It predicts λ·(neighbours' prediction) + (1 − λ)·(model's prediction). For classes these are
    probabilities, and `predict` returns their logarithms. Without a memory it predicts like the
    other model. classes: the number of classes, or 0 if predictions are numbers.
    """

    def __init__(self, model: Model, classes: int) -> None:
        self._model, self.classes = model, classes
        self.representation_dim, self.splits = model.representation_dim, model.splits
        self.sees_beside = model.sees_beside

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._model.encoder_parameters(generator)

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._model.head_parameters(generator)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        return self._model.encode(parameters, *inputs)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        answer = self._model.predict(parameters, representation)
        if MEMORY + "vectors" not in parameters:
            return answer
        memory = Memory(*(parameters[MEMORY + field.name] for field in fields(Memory)))
        queries = representation[..., : self.representation_dim]  # without the head's extra columns
        most_neighbours = int(memory.neighbours.max())
        distances, places = nearest(queries, memory.vectors, memory.samples, most_neighbours)
        neighbour_answer = self.neighbour_answer(distances, places, memory)
        return self.mixture(neighbour_answer, answer, memory.share).to(answer.dtype)

    def neighbour_answer(self, distances: Tensor, places: Tensor, memory: Memory) -> Tensor:
        """Return the neighbours' prediction, [K, B, C or H]: class shares, or mean numbers."""
        weights = kernel_weights(distances, memory.neighbours)
        if self.classes:
            return votes(weights, places, memory.targets, self.classes)
        return means(weights, places, memory.targets)

    def mixture(self, neighbour_answer: Tensor, answer: Tensor, share: Tensor) -> Tensor:
        """Mix the neighbours' and the other model's answers (logits for classes): [K, B, …]."""
        part = share.double().view(-1, 1, 1)
        if not self.classes:
            return part * neighbour_answer + (1 - part) * answer.double()
        model_shares = answer.double().softmax(dim=2)
        return (part * neighbour_answer + (1 - part) * model_shares).clamp(min=_NEVER_ZERO).log()


def forecasting_model(settings: Settings, layout: WindowLayout) -> Remembering:
    """Return FUELS's forecaster with an optional memory."""
    return Remembering(Forecaster(settings.model.representation_dim, layout), 0)


def image_model(settings: Settings, shape: DataShape) -> Remembering:
    """Return the classifier of the settings with an optional memory."""
    return Remembering(image_classifier(settings.model, shape), len(shape.classes))


def sequences_model(settings: Settings, shape: DataShape) -> Remembering:
    """Return the model of sequences of the settings with an optional memory."""
    return Remembering(sequence_model(settings, shape), len(shape.classes))


NEIGHBOURS = (5, 10, 20)  # k
SHARES = tuple(number / 10 for number in range(11))  # λ
UNTUNED = (10, 0.5)  # k and λ of a client without validation samples


class KnnPerLearner(FedAvgLearner):
    """FedAvg's training, and a memory per client. Subclasses define the remembered samples."""

    section: KnnPerSettings  # type: ignore[assignment]
    needs_representation = True
    personalises = True

    @abstractmethod
    def train_examples(self, cohort: Cohort) -> LabelledVectors:
        """Return the samples that can be remembered, with labels [K, n] or numbers [K, n, H]."""

    @abstractmethod
    def validation_examples(self, cohort: Cohort) -> tuple[LabelledVectors, Tensor]:
        """Return the validation samples, and the shared model's predictions, [K, n, C or H]."""

    def personalised(self, cohort: Cohort, guidance: Guidance) -> dict[str, Tensor]:
        """Return the shared model with the clients' memories."""
        memory = self._chosen(self._remembered(cohort), *self.validation_examples(cohort))
        return {**cohort.parameters, **memory.parameters()}

    @property
    def model(self) -> Remembering:
        model = self.task.model
        assert isinstance(model, Remembering)
        return model

    def _remembered(self, cohort: Cohort) -> Memory:
        """Return each client's train samples, or a subset drawn once for the whole run."""
        examples, size = self.train_examples(cohort), self.section.most_samples
        clients, device = len(cohort.names), examples.features.device
        present = examples.present.cpu()
        places = torch.zeros(clients, size, dtype=torch.int64)
        counts = torch.zeros(clients, dtype=torch.int64)
        for row, name in enumerate(cohort.names):
            available = present[row].nonzero().flatten()
            draws = torch_stream(self.training.seed, name, "memory")
            drawn = torch.randperm(len(available), generator=draws)[:size].sort().values
            counts[row] = len(drawn)
            places[row, : len(drawn)] = available[drawn]
        rows, places = torch.arange(clients, device=device)[:, None], places.to(device)
        return Memory(
            vectors=examples.features[rows, places],
            targets=examples.labels[rows, places],
            samples=counts.to(device),
            neighbours=torch.full_like(counts, UNTUNED[0]).to(device),
            share=torch.full((clients,), UNTUNED[1], device=device),
        )

    def _chosen(self, memory: Memory, examples: LabelledVectors, answers: Tensor) -> Memory:
        """Return the memory with the k and λ of the least validation loss, the smaller if tied."""
        model = self.model
        distances, places = nearest(
            examples.features, memory.vectors, memory.samples, max(NEIGHBOURS)
        )
        choices, losses = [], []
        for neighbours in NEIGHBOURS:
            with_k = replace(memory, neighbours=torch.full_like(memory.samples, neighbours))
            neighbour_answer = model.neighbour_answer(distances, places, with_k)
            for share in SHARES:
                mixed = model.mixture(
                    neighbour_answer, answers, torch.full_like(memory.share, share)
                )
                choices.append((neighbours, share))
                losses.append(self._loss(mixed, examples))
        best = torch.stack(losses).argmin(dim=0)  # (K,)
        table = torch.tensor(choices, device=best.device)
        tuned = examples.present.any(dim=1)
        chosen = torch.where(tuned, table[best, 1], memory.share)
        return replace(
            memory,
            neighbours=torch.where(tuned, table[best, 0].long(), memory.neighbours),
            share=torch.where(memory.samples > 0, chosen, 0.0),  # an empty memory predicts nothing
        )

    def _loss(self, mixed: Tensor, examples: LabelledVectors) -> Tensor:
        """Return cross-entropy or squared error, summed over each client's samples, [K]."""
        if self.model.classes:
            picked = mixed.gather(2, examples.labels.unsqueeze(2)).squeeze(2)
            return -(picked * examples.present).sum(dim=1)
        squared = (mixed - examples.labels).square().mean(dim=2)
        return (squared * examples.present).sum(dim=1)


class KnnPerVectorsLearner(KnnPerLearner):
    """kNN-Per for images and sequences."""

    task: ClassificationTask | SequenceTask

    @torch.no_grad()
    def train_examples(self, cohort: Cohort) -> LabelledVectors:
        return self._examples(self.task.train_vectors(cohort.parameters, cohort.samples))

    @torch.no_grad()
    def validation_examples(self, cohort: Cohort) -> tuple[LabelledVectors, Tensor]:
        vectors = self.task.validation_vectors(cohort.parameters, cohort.samples)
        return self._examples(vectors), self.task.predict(cohort.parameters, vectors.features)

    def _examples(self, vectors: LabelledVectors) -> LabelledVectors:
        labels = vectors.labels
        if not self.model.classes:  # models learn the target on this scale
            labels = (labels / self.task.settings.data.sequences.target_scale).float().unsqueeze(2)
        return LabelledVectors(vectors.features, labels, vectors.present)


class KnnPerForecastLearner(KnnPerLearner):
    """kNN-Per for forecasts. Samples with a missing target are not remembered."""

    task: ForecastingTask

    @torch.no_grad()
    def train_examples(self, cohort: Cohort) -> LabelledVectors:
        samples = cohort.samples
        is_target = self.task.train_targets(samples)
        span = slice(*extent(is_target))
        vectors = [self.task.encode(cohort.parameters, inputs) for inputs in _chunks(samples, span)]
        present = is_target[:, span].amin(dim=2)
        return LabelledVectors(torch.cat(vectors, dim=1), samples.targets[:, span], present)

    @torch.no_grad()
    def validation_examples(self, cohort: Cohort) -> tuple[LabelledVectors, Tensor]:
        parameters, samples = cohort.parameters, cohort.samples
        span = slice(*extent(samples.is_validation))
        vectors = [self.task.encode(parameters, inputs) for inputs in _chunks(samples, span)]
        answers = [self.task.forecast(parameters, inputs) for inputs in _chunks(samples, span)]
        present = samples.is_validation[:, span].amin(dim=2)
        examples = LabelledVectors(torch.cat(vectors, dim=1), samples.targets[:, span], present)
        return examples, torch.cat(answers, dim=1)


def _chunks(samples: CohortSamples, span: slice) -> Sequence[Tensor]:
    """Return the inputs of the samples in a span, in chunks that bound the memory used."""
    return torch.split(samples.inputs[:, span], EVALUATED_AT_ONCE, dim=1)


METHOD = Method(
    name="knn-per",
    strategy=FedAvgStrategy,
    learner={
        "forecasting": KnnPerForecastLearner,
        "classification": KnnPerVectorsLearner,
        "sequence-classification": KnnPerVectorsLearner,
        "sequence-regression": KnnPerVectorsLearner,
    },
    settings=KnnPerSettings,
    model={
        "forecasting": f"{__name__}:forecasting_model",
        "classification": f"{__name__}:image_model",
        "sequence-classification": f"{__name__}:sequences_model",
        "sequence-regression": f"{__name__}:sequences_model",
    },
    small={"knn-per.most-samples": 50},
)
