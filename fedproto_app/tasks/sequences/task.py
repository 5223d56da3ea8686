"""Tasks on labelled sequences of several dimensions and any length: classes, or a real number.

The supervised methods train an encoder and a linear head together (`represent`, `predict`,
`loss`). The methods that train their encoder first fit heads to its vectors afterwards (`fit_head`,
`head_loss`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.errors import DataError
from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sizes
from fedproto_app.data.formats import csv_sequences, sequence_npz
from fedproto_app.data.sequences.clients import (
    ClientSequences,
    LabelledSequences,
    resampled,
    scaling_from,
    scaling_numbers,
)
from fedproto_app.data.sequences.pool import float32_steps
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.class_gaussian import LabelledVectors
from fedproto_app.maths.linear_heads import (
    Head,
    Vectors,
    classifier_loss,
    fit_classifier,
    fit_regressor,
    regressor_loss,
)
from fedproto_app.models.causal_cnn import CausalCnnModel, CausalCnnSize
from fedproto_app.models.model import Model
from fedproto_app.models.module import ModuleShape
from fedproto_app.models.sequence_model import LstmModel
from fedproto_app.settings import Settings
from fedproto_app.tasks.labelled import (
    LabelledBatch,
    LabelledSamples,
    LabelledTask,
    NewSamples,
    as_array,
    masked_mean,
    numbered,
)
from fedproto_app.tasks.sequences.clients import sequence_settings
from fedproto_app.tasks.sequences.metrics import (
    ACCURACY,
    CLASSES,
    ERROR,
    MAE,
    NUMBERS,
    RMSE,
    VALIDATION_RMSE,
)
from fedproto_app.tasks.task import in_padded

EXAMPLE_STEPS = 16  # length of the sequences on which a user's module is tried
LARGEST_HEAD = 1e6  # a larger value would dominate its cluster's mean and every similarity
MOST_DIMENSIONS, MOST_CLASSES = 4096, 10_000  # bound a server's memory


@dataclass(frozen=True, kw_only=True)
class CohortSequences(LabelledSamples):
    """The sequences of K clients: [K, n, T, d], zeros after the end of each.

    The first `train_samples` of a client's train sequences have a label. The next `unlabelled` have
    none, and their target is 0.
    """

    unlabelled: list[int]
    lengths: Tensor
    test_lengths: Tensor

    @property
    def trainable(self) -> list[int]:
        """The number of each client's train sequences, with or without a label."""
        return [*map(sum, zip(self.train_samples, self.unlabelled, strict=True))]

    @property
    def trained_stages(self) -> list[int]:
        """The stage of each client: always 0, as sequences have no stages."""
        return [0] * len(self.names)


def causal_cnn_model(settings: Settings, shape: DataShape) -> CausalCnnModel:
    """Return a causal CNN, which can also learn without labels, and a head."""
    cnn, scaled = settings.encoder, settings.model.scaled
    size = CausalCnnSize(cnn.blocks, scaled(cnn.channels), scaled(cnn.reduced_dim), cnn.output_dim)
    return CausalCnnModel(shape.inputs[0], _outputs(shape), size)


def sequence_model(settings: Settings, shape: DataShape) -> Model:
    """Return the model that the settings name."""
    model = settings.model
    if model.sequence_encoder == "causal-cnn":
        return causal_cnn_model(settings, shape)
    embedding = model.scaled(model.embedding_dim)
    return LstmModel(shape.inputs[0], _outputs(shape), embedding, model.hidden_dim)


def _outputs(shape: DataShape) -> int:
    """Return the number of outputs of a head: one per class, or 1 for a real number."""
    return len(shape.classes) or 1


class SequenceTask(LabelledTask[ClientSequences, CohortSequences]):
    """The base of tasks on sequences. Its subclasses predict classes or real numbers.

    largest_metric: a client's metrics lie between 0 and this number.
    """

    evaluates_local = False
    largest_metric: ClassVar[float]

    @classmethod
    def metrics_fault(cls, metrics: Mapping[Metric, float]) -> str | None:
        for metric, value in metrics.items():
            if metric.name not in cls.metrics.names or metric.rule:
                return f"{str(metric)[:80]!r} is no metric of this task"
            if not 0 <= value <= cls.largest_metric:
                return f"its metrics are not 0 … {cls.largest_metric:g}: {metric} = {value:g}"
        return None

    @staticmethod
    def shape_fault(shape: DataShape) -> str | None:
        if len(shape.inputs) != 1:
            return f"its samples are {shape.inputs}, not sequences of d values a step"
        if shape.inputs[0] > MOST_DIMENSIONS:
            return f"its sequences have {shape.inputs[0]} dimensions, more than {MOST_DIMENSIONS}"
        if shape.columns and len(shape.columns) != shape.inputs[0]:
            return f"it names {len(shape.columns)} of its {shape.inputs[0]} columns"
        return None

    @property
    def outputs(self) -> int:
        """The number of outputs of a head."""
        return _outputs(self.shape)

    def default_model(self) -> Model:
        """Return the special model of the method or of its first phase, or the settings' model."""
        special = self.special_model(self.shape, pretraining=True)
        return special or sequence_model(self.settings, self.shape)

    def module_shape(self) -> ModuleShape:
        dimensions = self.shape.inputs[0]
        sample = (self.settings.data.sequences.steps or EXAMPLE_STEPS, dimensions)
        return ModuleShape(dimensions, self.outputs, sample, self.head, has_lengths=True)

    def sizes(self) -> Sizes:
        return replace(super().sizes(), outputs=self.outputs)

    def initial_encoder(self) -> dict[str, Tensor]:
        """Return one client's encoder at round 0, without the client axis."""
        generator = torch_stream(self.settings.seed, "initial parameters")
        return self.model.encoder_parameters(generator)

    def initial_parameters(self) -> dict[str, Tensor]:
        generator = torch_stream(self.settings.seed, "initial head")
        return {**self.initial_encoder(), **self.model.head_parameters(generator)}

    def steps(self, client: ClientSequences, server_round: int) -> int:
        return -(-len(client.train) // self.batch_size)

    def gather(self, clients: Sequence[ClientSequences], server_round: int) -> CohortSequences:
        steps = [self.steps(client, server_round) for client in clients]
        assert steps == sorted(steps, reverse=True), "cohort out of order"
        trains = [[client.train, _as_labelled(client)] for client in clients]
        values, lengths, targets = self._stacked(trains)
        tests = [[client.validation, client.test] for client in clients]
        test_values, test_lengths, test_targets = self._stacked(tests)
        kinds = torch.full((len(clients), test_targets.shape[1]), -1)
        for row, (validation, test) in enumerate(tests):
            kinds[row, : len(validation)] = 0
            kinds[row, len(validation) : len(validation) + len(test)] = 1
        return CohortSequences(
            names=[client.name for client in clients],
            train_samples=[len(client.train) for client in clients],
            unlabelled=[len(client.unlabelled) for client in clients],
            batch_counts=steps,
            values=values,
            lengths=lengths,
            targets=targets,
            test_values=test_values,
            test_lengths=test_lengths,
            test_targets=test_targets,
            is_validation=(kinds == 0).float().to(self.device),
            is_test=(kinds == 1).float().to(self.device),
        )

    def _stacked(
        self, parts: Sequence[Sequence[LabelledSequences]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Join each client's parts: values [K, n, T, d], lengths [K, n], targets [K, n]."""
        sequences = [[s for part in client_parts for s in part.values] for client_parts in parts]
        longest = max((len(steps) for steps in chain.from_iterable(sequences)), default=1)
        shape = (len(parts), max(map(len, sequences)), longest, self.shape.inputs[0])
        values, lengths = np.zeros(shape, np.float32), np.ones(shape[:2], np.int64)
        targets = np.zeros(shape[:2], parts[0][0].targets.dtype)
        for row, client_sequences in enumerate(sequences):
            for place, steps in enumerate(client_sequences):
                values[row, place, : len(steps)] = steps
                lengths[row, place] = len(steps)
            labels = [part.targets for part in parts[row]]
            targets[row, : len(client_sequences)] = np.concatenate(labels)
        on_device = [torch.from_numpy(a).to(self.device) for a in (values, lengths, targets)]
        return on_device[0], on_device[1], on_device[2]

    def scale(self, client: ClientSequences) -> dict[str, float]:
        return scaling_numbers(client.scaled)

    def read(self, path: Path) -> tuple[Sequence[str], NewSamples]:
        if path.is_dir() or path.suffix.lower() != ".npz":
            return csv_sequences.load_unlabelled(path, self.settings.data, self.shape.names)
        sequences = sequence_npz.load_unlabelled(path, self.shape.names)
        return numbered(sequences), sequences

    def stored(self, scale: Mapping[str, float], samples: NewSamples) -> tuple[Tensor, Tensor]:
        scaled = scaling_from(scale, sequence_settings(self.settings))
        longest, (dimensions,) = self.settings.data.sequences.steps, self.shape.inputs
        sequences = []
        for number, sample in enumerate(samples):
            if (given := getattr(sample, "columns", None)) is not None and self.shape.names:
                if missing := [name for name in self.shape.names if name not in given]:
                    raise DataError(f"sequence {number} has no column {missing[0]!r}")
                sample = sample[list(self.shape.names)]  # a frame's columns may come in any order
            steps = as_array(sample, f"sequence {number}")
            if steps.ndim == dimensions == 1:
                steps = steps[:, None]
            if steps.dtype.kind not in "iuf" or steps.ndim != 2 or steps.shape[1] != dimensions:
                raise DataError(
                    f"sequence {number} is {steps.dtype} {list(steps.shape)}, expected a list of "
                    f"sequences, each of numbers [T, {dimensions}]"
                )
            steps = float32_steps(steps)
            if not len(steps):
                raise DataError(f"sequence {number} has no steps")
            if not np.isfinite(steps).all():
                step, dimension = np.argwhere(~np.isfinite(steps))[0].tolist()
                raise DataError(
                    f"sequence {number}: value {dimension} of step {step} is not finite"
                )
            with np.errstate(over="ignore"):
                sequences.append(scaled(resampled(steps, longest)))
            if not np.isfinite(sequences[-1]).all():
                raise DataError(
                    f"sequence {number}: {np.abs(steps).max():g} is too large beside the values "
                    "in training"
                )
        if not sequences:
            raise DataError("there is no sequence to predict for")
        unknown = np.zeros(len(sequences), np.int64)
        values, lengths, _ = self._stacked([[LabelledSequences(sequences, unknown)]])
        return values, lengths

    @property
    def batch_size(self) -> int:
        return self.settings.sequence.batch_size

    def inputs_of(
        self, samples: CohortSequences, order: Tensor, generators: Sequence[torch.Generator]
    ) -> Callable[[Tensor, slice], Tensor]:
        """Return the function that cuts sequences to the longest one of their batch."""
        longest = samples.lengths.cpu().gather(1, order)  # once, so that no step waits for it
        return lambda values, columns: values[:, :, : int(longest[: len(values), columns].max())]

    def evaluate(
        self, parameters: Mapping[str, Tensor], samples: CohortSequences
    ) -> dict[Metric, list[float]]:
        vectors = self.test_vectors(parameters, samples)
        return self.judge(self.predict(parameters, vectors), samples)

    def guessed(
        self, parameters: Mapping[str, Tensor], samples: CohortSequences, vectors: LabelledVectors
    ) -> LabelledVectors:
        """Return the train vectors, labelled with the classes that the clients' models predict.

        Only the vectors of unlabelled sequences are marked as present.
        """
        trainable = in_padded(samples.trainable, samples.targets.shape[1], self.device)
        labels = self.predict(parameters, vectors.features).argmax(dim=2)
        return LabelledVectors(vectors.features, labels, trainable - vectors.present)

    @abstractmethod
    def judge(self, outputs: Tensor, samples: CohortSequences) -> dict[Metric, list[float]]:
        """Return metrics of each client from the outputs of heads.

        outputs: [K, m, outputs], for the validation and test sequences.
        """

    @abstractmethod
    def fit_head(self, vectors: Vectors, targets: NDArray[np.generic], penalty: float) -> Head:
        """Fit a head to vectors [n, D] with targets [n]."""

    @abstractmethod
    def head_loss(self, head: Head, vectors: Vectors, targets: NDArray[np.generic]) -> float:
        """Return the loss of a head on vectors [n, D] with targets [n]."""


def _as_labelled(client: ClientSequences) -> LabelledSequences:
    """Return the client's unlabelled sequences with target 0, of the same type as other targets."""
    targets: Any = np.zeros(len(client.unlabelled), client.train.targets.dtype)
    return LabelledSequences(client.unlabelled, targets)


class SequenceClassificationTask(SequenceTask):
    """Predict the class of a sequence."""

    metrics = CLASSES
    largest_metric = 1.0

    @staticmethod
    def shape_fault(shape: DataShape) -> str | None:
        if not 1 <= len(shape.classes) <= MOST_CLASSES:
            return f"it has {len(shape.classes)} classes, expected 1 … {MOST_CLASSES}"
        return SequenceTask.shape_fault(shape)

    def judge_scores(
        self,
        parameters: Mapping[str, Tensor],
        samples: CohortSequences,
        scores: Callable[[Tensor], Tensor],
    ) -> dict[Metric, list[float]]:
        """Return the metrics of predicting the class with the highest score.

        scores: a function of representations [K, m, D] with results [K, m, C].
        """
        return self.judge(scores(self.test_vectors(parameters, samples)), samples)

    def judge(self, outputs: Tensor, samples: CohortSequences) -> dict[Metric, list[float]]:
        """Return ``accuracy`` on test and ``validation-error`` on validation sequences."""
        right = (outputs.argmax(dim=2) == samples.test_targets).double()
        return {
            ACCURACY: masked_mean(right, samples.is_test),
            ERROR: masked_mean(1 - right, samples.is_validation),
        }

    def fit_head(self, vectors: Vectors, targets: NDArray[np.generic], penalty: float) -> Head:
        return fit_classifier(vectors, targets.astype(np.int64), self.outputs, penalty)

    def head_loss(self, head: Head, vectors: Vectors, targets: NDArray[np.generic]) -> float:
        return classifier_loss(head, vectors, targets.astype(np.int64))


class SequenceRegressionTask(SequenceTask):
    """Predict a real number for a sequence.

    Models learn the target divided by ``data.sequences.target-scale``. Errors are in the data's
    units.
    """

    metrics = NUMBERS
    largest_metric = 1e30  # so that the sum over any number of clients is finite

    @staticmethod
    def shape_fault(shape: DataShape) -> str | None:
        if shape.classes:
            return f"it has {len(shape.classes)} classes, where a real number is predicted"
        return SequenceTask.shape_fault(shape)

    @property
    def _scale(self) -> float:
        return self.settings.data.sequences.target_scale

    def predictions(
        self, parameters: Mapping[str, Tensor], scale: Mapping[str, float], samples: NewSamples
    ) -> Tensor:
        return super().predictions(parameters, scale, samples).double() * self._scale

    def loss(self, prediction: Tensor, batch: LabelledBatch) -> Tensor:
        """Return the mean squared error over each client's sequences in the batch, [k]."""
        scaled_targets = (batch.targets / self._scale).float()
        squared = (prediction[:, :, 0] - scaled_targets).square() * batch.present
        return squared.sum(dim=1) / batch.present.sum(dim=1)

    def judge(self, outputs: Tensor, samples: CohortSequences) -> dict[Metric, list[float]]:
        """Return ``rmse`` and ``mae`` on test, ``validation-rmse`` on validation sequences."""
        error = outputs[:, :, 0].double() * self._scale - samples.test_targets
        squares = masked_mean(error.square(), samples.is_test)
        validation = masked_mean(error.square(), samples.is_validation)
        return {
            RMSE: [value**0.5 for value in squares],
            MAE: masked_mean(error.abs(), samples.is_test),
            VALIDATION_RMSE: [value**0.5 for value in validation],
        }

    def fit_head(self, vectors: Vectors, targets: NDArray[np.generic], penalty: float) -> Head:
        scaled_targets = targets.astype(np.float64) / self._scale
        return fit_regressor(vectors, scaled_targets, penalty)

    def head_loss(self, head: Head, vectors: Vectors, targets: NDArray[np.generic]) -> float:
        return regressor_loss(head, vectors, targets.astype(np.float64) / self._scale)


TASK_CLASSES = {
    "sequence-classification": SequenceClassificationTask,
    "sequence-regression": SequenceRegressionTask,
}
