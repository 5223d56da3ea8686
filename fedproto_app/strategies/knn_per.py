"""kNN-Per (Marfoq, Neglia, Vidal, Kameni, "Personalized federated learning through local
memorization", ICML 2022).

Clients train FedAvg's model. For evaluation a client remembers the shared encoder's representations
of its train samples, up to a limit, and predicts
    λ·(prediction of the k nearest) + (1 − λ)·(prediction of the shared model)
where a neighbour has weight exp(−distance). It chooses k and λ by the loss on its validation
samples. The memory never leaves the client; it is saved with its model, for forecasts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.section import Section, setting
from fedproto_app.maths.class_gaussian import LabelledVectors
from fedproto_app.maths.neighbours import nearest
from fedproto_app.models.remembering import Memory, Remembering
from fedproto_app.strategies.common.learner import Cohort
from fedproto_app.strategies.fedavg import FedAvgLearner, FedAvgStrategy
from fedproto_app.strategies.kindred.learner import extent
from fedproto_app.tasks.forecasting.samples import CohortSamples
from fedproto_app.tasks.forecasting.task import EVALUATED_AT_ONCE, ForecastingTask
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceTask

MOST_REMEMBERED = 20_000  # a node compares each of a cohort's samples with all of them


class KnnPerSettings(Section):
    """``[knn-per]`` (docs: compared.md)."""

    most_samples: Annotated[int, Field(ge=1, le=MOST_REMEMBERED)] = setting(
        1000,
        "train samples that a client remembers, drawn once if it has more",
        f"1 … {MOST_REMEMBERED:,}",
    )


NEIGHBOURS = (5, 10, 20)  # k
SHARES = tuple(number / 10 for number in range(11))  # λ
UNTUNED = (10, 0.5)  # k and λ of a client without validation samples


class Examples(NamedTuple):
    """Samples of K clients.

    vectors: representations [K, n, D]. targets: labels [K, n] or numbers [K, n, H]. present:
    [K, n].
    """

    vectors: Tensor
    targets: Tensor
    present: Tensor


class KnnPerLearner(FedAvgLearner):
    """FedAvg's training, and a memory per client; subclasses define the remembered samples."""

    section: KnnPerSettings  # type: ignore[assignment]
    needs_representation = True

    @abstractmethod
    def train_examples(self, cohort: Cohort) -> Examples:
        """Return the samples that can be remembered."""

    @abstractmethod
    def validation_examples(self, cohort: Cohort) -> tuple[Examples, Tensor]:
        """Return the validation samples, and the shared model's predictions, [K, n, C or H]."""

    def personalises(self) -> bool:
        return True

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
        clients, device = len(cohort.names), examples.vectors.device
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
            vectors=examples.vectors[rows, places],
            targets=examples.targets[rows, places],
            samples=counts.to(device),
            neighbours=torch.full_like(counts, UNTUNED[0]).to(device),
            share=torch.full((clients,), UNTUNED[1], device=device),
        )

    def _chosen(self, memory: Memory, examples: Examples, answers: Tensor) -> Memory:
        """Return the memory with the k and λ of least validation loss; ties take the smaller."""
        model = self.model
        distances, places = nearest(
            examples.vectors, memory.vectors, memory.samples, max(NEIGHBOURS)
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

    def _loss(self, mixed: Tensor, examples: Examples) -> Tensor:
        """Return cross-entropy or squared error, summed over each client's samples, [K]."""
        if self.model.classes:
            picked = mixed.gather(2, examples.targets.unsqueeze(2)).squeeze(2)
            return -(picked * examples.present).sum(dim=1)
        squared = (mixed - examples.targets).square().mean(dim=2)
        return (squared * examples.present).sum(dim=1)


class KnnPerVectorsLearner(KnnPerLearner):
    """kNN-Per for images and sequences."""

    task: ClassificationTask | SequenceTask

    @torch.no_grad()
    def train_examples(self, cohort: Cohort) -> Examples:
        return self._examples(self.task.train_vectors(cohort.parameters, cohort.samples))

    @torch.no_grad()
    def validation_examples(self, cohort: Cohort) -> tuple[Examples, Tensor]:
        vectors = self.task.validation_vectors(cohort.parameters, cohort.samples)
        return self._examples(vectors), self.task.predict(cohort.parameters, vectors.features)

    def _examples(self, vectors: LabelledVectors) -> Examples:
        labels = vectors.labels
        if not self.model.classes:  # models learn the target on this scale
            labels = (labels / self.task.settings.data.sequences.target_scale).float().unsqueeze(2)
        return Examples(vectors.features, labels, vectors.present)


class KnnPerForecastLearner(KnnPerLearner):
    """kNN-Per for forecasts; samples with a missing target are not remembered."""

    task: ForecastingTask

    @torch.no_grad()
    def train_examples(self, cohort: Cohort) -> Examples:
        samples = cohort.samples
        is_target = self.task.train_targets(samples)
        span = slice(*extent(is_target))
        vectors = [self.task.encode(cohort.parameters, inputs) for inputs in _chunks(samples, span)]
        present = is_target[:, span].amin(dim=2)
        return Examples(torch.cat(vectors, dim=1), samples.targets[:, span], present)

    @torch.no_grad()
    def validation_examples(self, cohort: Cohort) -> tuple[Examples, Tensor]:
        parameters, samples = cohort.parameters, cohort.samples
        span = slice(*extent(samples.is_validation))
        vectors = [self.task.encode(parameters, inputs) for inputs in _chunks(samples, span)]
        answers = [self.task.forecast(parameters, inputs) for inputs in _chunks(samples, span)]
        present = samples.is_validation[:, span].amin(dim=2)
        examples = Examples(torch.cat(vectors, dim=1), samples.targets[:, span], present)
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
        "forecasting": "fedproto_app.tasks.forecasting.own_models:remembering",
        "classification": "fedproto_app.tasks.images.own_models:remembering",
        "sequence-classification": "fedproto_app.tasks.sequences.own_models:remembering",
        "sequence-regression": "fedproto_app.tasks.sequences.own_models:remembering",
    },
    small={"knn-per.most-samples": 50},
)
