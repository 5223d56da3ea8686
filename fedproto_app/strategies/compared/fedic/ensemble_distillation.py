"""How FEDIC's server learns from its clients' models: a calibrated teacher, distilled.

The teacher's calibration goes on over the rounds, with its Adam. The fine-tuned model and the
student start from the averaged model each round, so their Adam starts afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedproto_app.core.randomness import torch_stream
from fedproto_app.maths.augmentation import draw_moves, moved
from fedproto_app.maths.optim import CohortAdam
from fedproto_app.strategies.compared.fedic import FedicSettings
from fedproto_app.strategies.compared.fedic.auxiliary import ServerImages
from fedproto_app.strategies.compared.fedic.ensemble_distillation import (
    distillation,
    neutral,
    teacher,
)
from fedproto_app.tasks.images.task import ClassificationTask, normalised

LARGEST_LOGIT = 1e4  # of a client's model; beyond, it would own every mean

Parameters = dict[str, Tensor]  # [1, …] or [K, …] each
Loss = Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Judgement:
    """What K models make of n images: logits [K, n, C], features [K, n, d]."""

    logits: Tensor
    features: Tensor

    def of(self, images: Tensor) -> Judgement:
        """Of these images alone, [m] positions."""
        return Judgement(self.logits[:, images], self.features[:, images])

    def bounded(self) -> Judgement:
        """Without what would own every mean: beyond `LARGEST_LOGIT`, or NaN."""
        logits, features = (
            one.nan_to_num().clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
            for one in (self.logits, self.features)
        )
        return Judgement(logits, features)


class EnsembleDistillation:
    """State: the calibration, and its Adam's moments."""

    def __init__(
        self, task: ClassificationTask, section: FedicSettings, images: ServerImages
    ) -> None:
        self._task, self._section = task, section
        self._pixels = torch.from_numpy(images.labelled.pixels)
        self._labels = torch.from_numpy(images.labelled.labels)
        self._unlabelled = torch.from_numpy(images.unlabelled)
        self._net = neutral(len(task.shape.classes), task.representation_dim)
        self._adam = CohortAdam(self._net, section.adam_rate)

    def judged(self, models: Parameters) -> Judgement:
        """What these models make of the labelled images as they are."""
        return self._judged(models, self._pixels)

    def student(
        self, models: Parameters, judgement: Judgement, mean: Parameters, server_round: int
    ) -> tuple[Parameters, dict[str, float | None]]:
        """The next global model [1, …], and the labelled images' accuracy by each model.

        models: the clients' [K, …], which have made the judgement. mean: their average [1, …].
        """
        fine_tuned = self._fine_tuned(mean, self._stream(server_round, "fine-tuned"))
        own = self.judged(fine_tuned).logits[0]
        self._calibrate(judgement, own, self._stream(server_round, "calibration"))
        student = self._distilled(models, fine_tuned, mean, self._stream(server_round, "student"))
        by_teacher = teacher(self._net, judgement.logits, judgement.features, own)
        return student, {
            "auxiliary_accuracy_mean": self._accuracy(self.judged(mean).logits[0]),
            "auxiliary_accuracy_fine_tuned": self._accuracy(own),
            "auxiliary_accuracy_teacher": self._accuracy(by_teacher),
            "auxiliary_accuracy_student": self._accuracy(self.judged(student).logits[0]),
        }

    def state(self) -> dict[str, NDArray[Any]]:
        """``<kind>.<parameter>``: the calibration's "value", its Adam's moments and steps."""
        kinds = {"value": self._net, **self._adam.state}
        return {
            f"{kind}.{name}": value.numpy()
            for kind, named in kinds.items()
            for name, value in named.items()
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        kinds = {"value": self._net, **self._adam.state}
        for key, array in state.items():
            kind, name = key.split(".")
            kinds[kind][name].copy_(torch.from_numpy(array))

    def _fine_tuned(self, mean: Parameters, generator: torch.Generator) -> Parameters:
        """The averaged model after steps on the labelled images."""
        found = {name: value.clone() for name, value in mean.items()}
        adam = CohortAdam(found, self._section.adam_rate)
        for _ in range(self._section.tuning_steps):
            inputs, labels = self._labelled_batch(generator)

            def loss(leaves: Mapping[str, Tensor]) -> Tensor:
                return functional.cross_entropy(self._logits(leaves, inputs), labels)  # noqa: B023

            _step(found, adam, loss)
        return found

    def _calibrate(
        self, judgement: Judgement, fine_tuned: Tensor, generator: torch.Generator
    ) -> None:
        """Learn to weigh the models, on the labelled images as they are."""
        for _ in range(self._section.calibration_steps):
            chosen = self._chosen(len(self._labels), self._section.labelled_batch_size, generator)
            part, own, labels = judgement.of(chosen), fine_tuned[chosen], self._labels[chosen]

            def loss(net: Mapping[str, Tensor]) -> Tensor:
                target = teacher(net, part.logits, part.features, own)  # noqa: B023
                return functional.cross_entropy(target, labels)  # noqa: B023

            _step(self._net, self._adam, loss)

    def _distilled(
        self,
        models: Parameters,
        fine_tuned: Parameters,
        mean: Parameters,
        generator: torch.Generator,
    ) -> Parameters:
        """The averaged model after steps towards the teacher, and on the labelled images."""
        section = self._section
        found = {name: value.clone() for name, value in mean.items()}
        adam = CohortAdam(found, section.adam_rate)
        for _ in range(section.student_steps):
            size = section.unlabelled_batch_size
            some = self._unlabelled[self._chosen(len(self._unlabelled), size, generator)]
            some = self._augmented(some, generator)
            # A model that was believed by the labelled images may give anything for other ones.
            judgement = self._judged(models, some).bounded()
            own = self._judged(fine_tuned, some).logits[0]
            target = teacher(self._net, judgement.logits, judgement.features, own)
            inputs, labels = self._labelled_batch(generator)

            def loss(leaves: Mapping[str, Tensor]) -> Tensor:
                far = distillation(target, self._logits(leaves, some), section.temperature)  # noqa: B023
                wrong = functional.cross_entropy(self._logits(leaves, inputs), labels)  # noqa: B023
                return section.distillation * far + (1 - section.distillation) * wrong

            _step(found, adam, loss, section.student_decay)
        return found

    def _labelled_batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = self._chosen(len(self._labels), self._section.labelled_batch_size, generator)
        return self._augmented(self._pixels[chosen], generator), self._labels[chosen]

    def _chosen(self, images: int, size: int, generator: torch.Generator) -> Tensor:
        return torch.randperm(images, generator=generator)[:size]

    def _augmented(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Cropped and mirrored as clients do it: [m, …] uint8."""
        chosen = self._task.settings.classification
        if not chosen.augment:
            return pixels
        moves = draw_moves(len(pixels), pixels.shape[-2:], chosen.flip, generator)
        return moved(pixels.unsqueeze(0), moves.unsqueeze(0))[0]

    def _logits(self, model: Mapping[str, Tensor], pixels: Tensor) -> Tensor:
        """One model's, [1, …], of images [m, …] uint8, with gradient: [m, C]."""
        features = self._task.encode(model, normalised(pixels.unsqueeze(0)))
        return self._task.predict(model, features)[0]

    @torch.no_grad()
    def _judged(self, models: Parameters, pixels: Tensor) -> Judgement:
        """A few models at a time, as many as a cohort has clients."""
        count, size = len(next(iter(models.values()))), self._task.settings.cohort_on_cpu
        parts = []
        for first in range(0, count, size):
            some = {name: value[first : first + size] for name, value in models.items()}
            shared = pixels.expand(min(size, count - first), *pixels.shape)
            features = self._task.encode_all(some, shared)
            parts.append(Judgement(self._task.predict(some, features), features))
        return Judgement(
            torch.cat([part.logits for part in parts]), torch.cat([p.features for p in parts])
        )

    def _accuracy(self, logits: Tensor) -> float:
        return float((logits.argmax(dim=1) == self._labels).float().mean())

    def _stream(self, server_round: int, purpose: str) -> torch.Generator:
        return torch_stream(self._task.settings.seed, "fedic", purpose, server_round)


def _step(parameters: Parameters, adam: CohortAdam, loss: Loss, weight_decay: float = 0.0) -> None:
    """One step of Adam on a loss of all parameters, in place."""
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    slopes = torch.autograd.grad(loss(leaves), list(leaves.values()), materialize_grads=True)
    named = zip(leaves, slopes, strict=True)
    adam.step(parameters, {name: slope + weight_decay * parameters[name] for name, slope in named})
