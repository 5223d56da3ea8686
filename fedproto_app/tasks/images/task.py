"""The classification task: images whose classes arrive stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.section import kebab
from fedproto_app.data.formats.class_folders import load_unlabelled_images
from fedproto_app.data.formats.image_npz import load_unlabelled_pixels
from fedproto_app.data.images.clients import ClientImages, LabelledImages
from fedproto_app.data.images.pool import Pixels
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.augmentation import draw_moves, moved
from fedproto_app.models.image_classifier import (
    CNN_GROUPS,
    ResNetClassifier,
    SmallCnnClassifier,
    resnet_dim,
)
from fedproto_app.models.model import LinearHeadModel, Model
from fedproto_app.models.module import ModuleShape
from fedproto_app.models.pretrained import (
    LARGEST_SIDE,
    LONGEST_VECTOR,
    FixedVectorClassifier,
    VectorClassifier,
    pretrained_encoder,
    vectors_name,
)
from fedproto_app.models.random_patches import RandomPatchClassifier
from fedproto_app.settings import ModelSettings, Settings
from fedproto_app.tasks.images.metrics import (
    ACCURACY,
    CLASSIFICATION,
    CORRECT,
    COUNT,
    ERROR,
    MOST_CLASSES,
    class_metric,
    stage_metric,
    totals,
)
from fedproto_app.tasks.labelled import (
    LabelledSamples,
    LabelledTask,
    NewSamples,
    as_array,
    masked_mean,
    numbered,
)

MOST_IMAGES = 1e9  # images of a client

Rule = Callable[[Tensor], Tensor]  # representations [K, n, D] → predicted classes [K, n]


@dataclass(frozen=True, kw_only=True)
class CohortImages(LabelledSamples):
    """The images of K clients in a round: uint8 [K, n, channels, height, width].

    The validation and test images come from all stages so far.
    """

    stages: list[int]  # the stage of each client, from 0
    trained_stages: list[int]  # the stage of each client's train images, see `trained_stage`
    tested_stages: int  # the largest number of tested stages of a client
    test_stages: Tensor  # [K, m]


def image_classifier(settings: ModelSettings, shape: DataShape) -> Model:
    """Return the classifier that the settings name."""
    classes = len(shape.classes)
    if are_vectors(shape):
        for key in ("image_encoder", "width_factors"):
            value = getattr(settings, key)
            if value != type(settings).model_fields[key].default:
                raise SettingsError(
                    f"model.{kebab(key)} = {value!r}: for pixels, but data.pretrained-encoder "
                    "makes vectors of them"
                )
        return VectorClassifier(shape.inputs[0], classes, settings.representation_dim)
    if settings.image_encoder == "resnet18":
        if settings.factors != (1.0,):
            raise SettingsError(
                f"model.width-factors = {settings.width_factors!r}: model.image-encoder = "
                "'resnet18' has one width; 'small-cnn' can have others"
            )
        dim, (_, height, breadth) = settings.representation_dim, shape.inputs
        if (usable := resnet_dim(shape.inputs, dim)) != dim:
            raise SettingsError(
                f"model.representation-dim = {dim}: with model.image-encoder = 'resnet18' and "
                f"images of {height}×{breadth} pixels, the next possible length is {usable}"
            )
        return ResNetClassifier(shape.inputs, classes, dim)
    width = settings.scaled(settings.width, CNN_GROUPS)
    return SmallCnnClassifier(shape.inputs, classes, width, settings.representation_dim)


def fixed_features(settings: Settings, shape: DataShape, filters: int) -> LinearHeadModel:
    """Return a classifier on random filters, which are the same in every process, or on vectors."""
    if are_vectors(shape):
        return FixedVectorClassifier(shape.inputs[0], len(shape.classes))
    draws, section = torch_stream(settings.seed, "random filters"), settings.classification
    mirrored = section.augment == "crop-and-mirror"
    return RandomPatchClassifier(shape.inputs, len(shape.classes), filters, draws, mirrored)


def are_vectors(shape: DataShape) -> bool:
    """Return whether a pretrained encoder's vectors stand in place of the images."""
    return len(shape.inputs) == 3 and shape.inputs[1:] == (1, 1) and bool(shape.columns)


def stage_at(server_round: int, rounds: int, stages: int, schedule: str) -> int:
    """Return the stage, from 0, of a client with this many stages in a round, counted from 1.

    "sequential": the rounds are divided into equal parts, one for each stage. "cyclic": the stages
    take turns (GLDP, Algorithm 1: each of the paper's global rounds goes through all stages).
    """
    if schedule == "cyclic":
        return (server_round - 1) % stages
    return min(server_round - 1, rounds - 1) * stages // rounds


class ClassificationTask(LabelledTask[ClientImages, CohortImages]):
    """Classify images with a small CNN, ResNet-18 or the user's module."""

    metrics = CLASSIFICATION
    evaluates_local = True

    @classmethod
    def required_metrics(cls, settings: Settings) -> tuple[Metric, ...]:
        has_validation = settings.data.partition.validation_share > 0
        required = super().required_metrics(settings)
        return tuple(metric for metric in required if has_validation or metric != ERROR)

    @staticmethod
    def longer_fault(settings: Settings) -> str | None:
        """Return a reason if the rounds are divided among several stages, else None."""
        partition = settings.data.partition
        one_stage = partition.stages == 1 and partition.scheme != "given"
        chosen = settings.keep != "last" or settings.patience > 0
        if settings.classification.stage_schedule == "cyclic" or one_stage or chosen:
            return None
        return (
            "with classification.stage-schedule = 'sequential' the rounds are divided among a "
            "client's stages, so a longer run would have been different from the start"
        )

    @classmethod
    def metrics_fault(cls, metrics: Mapping[Metric, float]) -> str | None:
        for metric, value in metrics.items():
            has_rules = metric.name == ACCURACY.name
            if metric.name in cls.metrics.names and (has_rules or not metric.rule):
                limit = 1.0
            elif metric.name in totals() and not metric.rule:
                limit = MOST_IMAGES
            else:
                return f"{str(metric)[:80]!r} is no metric of classification"
            if not 0 <= value <= limit:
                return f"its metrics are not finite and positive: {metric} = {value:g}"
            total = totals().get(metric.name)
            if total and value > metrics.get(replace(metric, name=total), 0):
                return f"its metrics have more correct answers than images: {metric} = {value:g}"
        return None

    def is_of_class(self, metric: Metric) -> bool:
        return metric.name in self._names_of_classes

    @cached_property
    def _names_of_classes(self) -> set[str]:
        """The names of the counts by class, which `judge` reports for each class of the shape."""
        labels = range(len(self.shape.classes))
        return {class_metric(name, label).name for name in (CORRECT, COUNT) for label in labels}

    @staticmethod
    def shape_fault(shape: DataShape) -> str | None:
        if are_vectors(shape) and shape.inputs[0] > LONGEST_VECTOR:
            return f"its vectors have {shape.inputs[0]} values, more than {LONGEST_VECTOR}"
        if len(shape.inputs) != 3 or not (shape.inputs[0] in (1, 3) or are_vectors(shape)):
            return f"its samples are {shape.inputs}, not images of 1 or 3 channels"
        if not are_vectors(shape) and max(shape.inputs) > LARGEST_SIDE:
            return f"its images are {shape.inputs}, larger than {LARGEST_SIDE}"
        if not 1 <= len(shape.classes) <= MOST_CLASSES:
            return f"it has {len(shape.classes)} classes, expected 1 … {MOST_CLASSES}"
        return None

    def default_model(self) -> Model:
        """Return a small CNN or ResNet-18, or the method's special model."""
        special = self.special_model(self.shape)
        return special or image_classifier(self.settings.model, self.shape)

    def module_shape(self) -> ModuleShape:
        image = self.shape.inputs
        return ModuleShape(image, len(self.shape.classes), image, self.head)

    def stage(self, client: ClientImages, server_round: int) -> int:
        """Return the client's stage in a round, from 0."""
        schedule, stages = self.settings.classification.stage_schedule, len(client.stages)
        rounds = stages if self.settings.has_round_per_stage else self.settings.rounds
        return stage_at(server_round, rounds, stages, schedule)

    def _tested_stages(self, client: ClientImages, server_round: int) -> int:
        """Return how many stages the client is tested on, which are those that it has reached.

        A source may have test or validation images only in later stages. Then the stages up to the
        first with such images are included from the start.
        """
        reached = self.stage(client, server_round) + 1
        if self.settings.classification.stage_schedule == "cyclic":
            reached = min(server_round, len(client.stages))  # after the first cycle, all stages
        tests = [number for number, stage in enumerate(client.stages, 1) if len(stage.test)]
        validations = [n for n, stage in enumerate(client.stages, 1) if len(stage.validation)]
        return max(reached, tests[0], *validations[:1])

    def steps(self, client: ClientImages, server_round: int) -> int:
        images = len(client.training(self.stage(client, server_round)))
        return -(-images // self.batch_size)

    def gather(self, clients: Sequence[ClientImages], server_round: int) -> CohortImages:
        steps = [self.steps(client, server_round) for client in clients]
        assert steps == sorted(steps, reverse=True), "cohort out of order"
        stages = [self.stage(client, server_round) for client in clients]
        train = [client.training(stage) for client, stage in zip(clients, stages, strict=True)]
        reached = [self._tested_stages(client, server_round) for client in clients]
        parts = [  # of each client: validation and test images of its first stage, its second, …
            [part for stage in client.stages[:upto] for part in (stage.validation, stage.test)]
            for client, upto in zip(clients, reached, strict=True)
        ]
        tested = [_joined(client_parts) for client_parts in parts]
        places = [
            np.repeat(np.arange(len(client_parts)), [len(part) for part in client_parts])
            for client_parts in parts
        ]
        return CohortImages(
            names=[client.name for client in clients],
            stages=stages,
            trained_stages=[
                client.trained_stage(stage) for client, stage in zip(clients, stages, strict=True)
            ],
            tested_stages=max(reached),
            train_samples=[len(images) for images in train],
            batch_counts=steps,
            values=self._stacked([images.pixels for images in train]),
            targets=self._stacked([images.labels for images in train]),
            test_values=self._stacked([images.pixels for images in tested]),
            test_targets=self._stacked([images.labels for images in tested]),
            test_stages=self._stacked([place // 2 for place in places]),
            is_validation=self._stacked([(place % 2 == 0).astype(np.float32) for place in places]),
            is_test=self._stacked([(place % 2 == 1).astype(np.float32) for place in places]),
        )

    def read(self, path: Path) -> tuple[Sequence[str], NewSamples]:
        if path.is_dir() or path.suffix.lower() != ".npz":
            channels, height, width = self.shape.inputs
            shape = None if are_vectors(self.shape) else (channels, height, width)
            return load_unlabelled_images(path, shape, self.settings.data.image_size)
        pixels = load_unlabelled_pixels(path)
        return numbered(pixels), pixels

    def stored(self, scale: Mapping[str, float], samples: NewSamples) -> tuple[Tensor, None]:
        pixels = as_array(samples, "the images")
        if not pixels.size:
            raise DataError("there is no image to predict for")
        if pixels.dtype.kind in "iu" and pixels.min() >= 0 and pixels.max() <= 255:
            pixels = pixels.astype(np.uint8)
        fits = pixels.ndim == 4 and pixels.shape[1] in (1, 3)
        expected = "1 or 3, height, width"
        if side := self.settings.data.image_size:  # images in files were scaled to it in training
            fits, expected = fits and pixels.shape[2:] == (side, side), f"1 or 3, {side}, {side}"
        if not are_vectors(self.shape):
            fits = pixels.shape[1:] == self.shape.inputs
            expected = ", ".join(map(str, self.shape.inputs))
        if pixels.dtype != np.uint8 or not fits:
            raise DataError(
                f"the images are {pixels.dtype} {list(pixels.shape)}, expected uint8 from 0 to "
                f"255, [n, {expected}] (n images, channels, height, width)"
            )
        if are_vectors(self.shape):
            pixels = self._vectors_of(pixels)
        return self._stacked([pixels]), None

    def _vectors_of(self, pixels: Pixels) -> Pixels:
        """Return the vectors [n, D, 1, 1] of new images."""
        path = self.settings.data.pretrained_encoder
        encoder = pretrained_encoder(path)
        if vectors_name(encoder.digest) not in self.shape.columns:
            raise DataError(
                f"data.pretrained-encoder = {path!r}: the file has changed since the model was "
                "trained on its vectors"
            )
        vectors = encoder.vectors(torch.from_numpy(pixels)).numpy()
        if not np.isfinite(vectors).all():
            raise DataError("the pretrained encoder turns an image into NaN or infinite values")
        return vectors[:, :, None, None]

    @property
    def batch_size(self) -> int:
        return self.settings.classification.batch_size

    @property
    def augments(self) -> bool:
        """Whether images are cropped, and perhaps mirrored, at random. Vectors are not."""
        augment = self.settings.classification.augment
        return augment != "none" and not are_vectors(self.shape)

    @property
    def mirrors(self) -> bool:
        """Whether images are mirrored at random."""
        return self.augments and self.settings.classification.augment == "crop-and-mirror"

    def inputs_of(
        self, samples: CohortImages, order: Tensor, generators: Sequence[torch.Generator]
    ) -> Callable[[Tensor, slice], Tensor]:
        """Return the function that normalises images, and crops and mirrors them at random."""
        if not self.augments:
            return lambda pixels, _: self.normalised(pixels)
        moves = torch.zeros(*order.shape, 3, dtype=torch.int64)
        for row, generator in enumerate(generators):
            count, sides = samples.train_samples[row], samples.values.shape[-2:]
            moves[row, :count] = draw_moves(count, sides, self.mirrors, generator)
        moves = moves.to(self.device)
        return lambda pixels, columns: self.normalised(moved(pixels, moves[: len(pixels), columns]))

    def normalised(self, values: Tensor) -> Tensor:
        return normalised(values)

    def evaluate(
        self, parameters: Mapping[str, Tensor], samples: CohortImages
    ) -> dict[Metric, list[float]]:
        return self.judge(parameters, samples, {"": self.by_head(parameters)})

    def judge_scores(
        self,
        parameters: Mapping[str, Tensor],
        samples: CohortImages,
        scores: Callable[[Tensor], Tensor],
    ) -> dict[Metric, list[float]]:
        """Return the metrics of predicting the class with the highest score, and by the head.

        scores: a function of representations [K, n, D] with results [K, n, C].
        """
        rules = {"": lambda r: scores(r).argmax(dim=2), "head": self.by_head(parameters)}
        return self.judge(parameters, samples, rules)

    def by_head(self, parameters: Mapping[str, Tensor]) -> Rule:
        """Return the rule that predicts the class with the head's largest logit."""
        return lambda representation: self.predict(parameters, representation).argmax(dim=2)

    @torch.no_grad()
    def judge(
        self,
        parameters: Mapping[str, Tensor],
        samples: CohortImages,
        rules: Mapping[str, Rule],
    ) -> dict[Metric, list[float]]:
        """Return each client's metrics, for one encoder and several rules of inference.

        Every rule gives ``accuracy`` on the test images of all stages so far. The run's rule, "",
        also gives ``validation-error`` (if there are validation images) and, for each stage and
        class, the numbers of right and of all test images.
        """
        representation = self.test_vectors(parameters, samples)
        hits = {
            name: (rule(representation) == samples.test_targets).double()
            for name, rule in rules.items()
        }
        metrics = {
            replace(ACCURACY, rule=name): masked_mean(hit, samples.is_test)
            for name, hit in hits.items()
        }
        if self.settings.data.partition.validation_share > 0:
            shares = masked_mean(hits[""], samples.is_validation)
            metrics[ERROR] = [1 - share for share in shares]
        right = hits[""] * samples.is_test
        for of_group, groups, number in (
            (stage_metric, samples.test_stages, samples.tested_stages),
            (class_metric, samples.test_targets, len(self.shape.classes)),
        ):
            sums = right.new_zeros(2, len(right), number)
            sums[0].scatter_add_(1, groups, right)
            sums[1].scatter_add_(1, groups, samples.is_test.double())
            for group in range(number):
                metrics[of_group(CORRECT, group)] = sums[0, :, group].tolist()
                metrics[of_group(COUNT, group)] = sums[1, :, group].tolist()
        return metrics

    def _stacked(self, arrays: Sequence[NDArray[np.generic]]) -> Tensor:
        """Stack arrays on the device, [K, n, …], padded with zeros."""
        longest = max(arrays, key=len)
        stacked = np.zeros((len(arrays), *longest.shape), dtype=longest.dtype)
        for row, array in enumerate(arrays):
            stacked[row, : len(array)] = array
        return torch.from_numpy(stacked).to(self.device)


def _joined(parts: Sequence[LabelledImages]) -> LabelledImages:
    return LabelledImages(
        np.concatenate([part.pixels for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )


def normalised(pixels: Tensor) -> Tensor:
    """Map uint8 0 … 255 to float −2 … 2, the same scale for every client. Vectors stay."""
    return pixels if pixels.is_floating_point() else (pixels.float() / 255 - 0.5) / 0.25


TASK_CLASSES = {"classification": ClassificationTask}
