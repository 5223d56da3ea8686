"""FEDIC (Shang, Lu, Cheung, Wang, ICME 2022), server half.

The server averages its clients' models as FedAvg does. On its own labelled images, it then learns
how far to trust each model (calibration). With all models together it trains a student, which is
the next global model (distillation).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedproto_app.core.messages import Arrays
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.round import Round, SentModel
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.augmentation import draw_moves, moved
from fedproto_app.maths.optim import CohortAdam
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.images.task import ClassificationTask, normalised
from fedproto_app.trust.outliers import largest, root_mean_square
from fedproto_compared.common.server_training import arrays_of, restore_arrays
from fedproto_compared.fedic import FedicSettings
from fedproto_compared.fedic.auxiliary import ServerImages, server_images

# FEDIC's teacher (Shang, Lu, Cheung, Wang, "FEDIC: Federated learning on non-IID and long-tailed
# data via calibrated distillation", ICME 2022).
#
# K models give logits z_k and features for the same n images. Another model, fine-tuned on balanced
# data, gives logits too. There are C classes and features of width d.
#
# The teacher's calibration and its Adam continue over the rounds. The fine-tuned model and the
# student start from the averaged model each round, so their Adam starts afresh.

# The calibration's parameters, [1, …] each: a and a₀, g and h, v and v₀.
SCORE, SCORE_BIAS, SCALE, SHIFT, GATE, GATE_BIAS = (
    *("score", "score-bias", "scale", "shift", "gate", "gate-bias"),
)


def neutral(classes: int, width: int) -> dict[str, Tensor]:
    """Return the calibration with equal weights, unchanged logits and the mean of both teachers."""
    return {
        SCORE: torch.zeros(1, classes),
        SCORE_BIAS: torch.zeros(1),
        SCALE: torch.ones(1, classes),
        SHIFT: torch.zeros(1, classes),
        GATE: torch.zeros(1, width),
        GATE_BIAS: torch.zeros(1),
    }


def model_weights(net: Mapping[str, Tensor], logits: Tensor) -> Tensor:
    """Return π_k = s_k / Σ s, s_k = σ(aᵀz_k + a₀), for each image: logits [K, n, C] → [K, n]."""
    scores = logits @ net[SCORE][0] + net[SCORE_BIAS]
    return functional.logsigmoid(scores).softmax(dim=0)  # all s may round to 0


def teacher(
    net: Mapping[str, Tensor], logits: Tensor, features: Tensor, fine_tuned: Tensor
) -> Tensor:
    """Return z_T = γ·ẑ + (1 − γ)·z, [n, C], where z is from the fine-tuned model.

    ẑ = g ⊙ Σ π_k z_k + h. γ = σ(vᵀ·mean feature + v₀). logits: [K, n, C]. features: [K, n, d].
    fine_tuned: [n, C].
    """
    mean = (model_weights(net, logits).unsqueeze(2) * logits).sum(dim=0)
    calibrated = net[SCALE] * mean + net[SHIFT]
    share = torch.sigmoid(features.mean(dim=0) @ net[GATE][0] + net[GATE_BIAS]).unsqueeze(1)
    return share * calibrated + (1 - share) * fine_tuned


def distillation(target: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Return KL(softmax(z_T / T) ‖ softmax(z_S / T)), averaged over the images.

    target, student: logits [n, C]. The target has no gradient. As in the authors' code, nothing is
    multiplied by T².
    """
    target_log = (target.detach() / temperature).log_softmax(dim=1)
    student_log = (student / temperature).log_softmax(dim=1)
    return (target_log.exp() * (target_log - student_log)).sum(dim=1).mean()


LARGEST_LOGIT = 1e4  # of a client's model. Larger logits would dominate every mean

Parameters = dict[str, Tensor]  # [1, …] or [K, …] each
Loss = Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Judgement:
    """The outputs of K models for n images: logits [K, n, C], features [K, n, d]."""

    logits: Tensor
    features: Tensor

    def select(self, images: Tensor) -> Judgement:
        """Return the outputs for these images only, [m] positions."""
        return Judgement(self.logits[:, images], self.features[:, images])

    def bounded(self) -> Judgement:
        """Replace NaN by 0 and clamp to ±`LARGEST_LOGIT`, so that no model dominates the means."""
        logits, features = (
            values.nan_to_num().clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
            for values in (self.logits, self.features)
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
        """Return these models' outputs for the labelled images, without augmentation."""
        return self._judged(models, self._pixels)

    def student(
        self, models: Parameters, judgement: Judgement, mean: Parameters, server_round: int
    ) -> tuple[Parameters, dict[str, float | None]]:
        """Return the next global model [1, …], and each model's accuracy on the labelled images.

        models: the clients' models [K, …]. judgement: their outputs. mean: their average [1, …].
        """
        fine_tuned = self._fine_tuned(mean, self._stream(server_round, "fine-tuned"))
        fine_tuned_logits = self.judged(fine_tuned).logits[0]
        self._calibrate(judgement, fine_tuned_logits, self._stream(server_round, "calibration"))
        student = self._distilled(models, fine_tuned, mean, self._stream(server_round, "student"))
        by_teacher = teacher(self._net, judgement.logits, judgement.features, fine_tuned_logits)
        return student, {
            "auxiliary_accuracy_mean": self._accuracy(self.judged(mean).logits[0]),
            "auxiliary_accuracy_fine_tuned": self._accuracy(fine_tuned_logits),
            "auxiliary_accuracy_teacher": self._accuracy(by_teacher),
            "auxiliary_accuracy_student": self._accuracy(self.judged(student).logits[0]),
        }

    def state(self) -> dict[str, AnyArray]:
        return arrays_of(self._net, self._adam)

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        restore_arrays(state, self._net, self._adam)

    def _fine_tuned(self, mean: Parameters, generator: torch.Generator) -> Parameters:
        """Return the averaged model after steps on the labelled images."""
        parameters = {name: value.clone() for name, value in mean.items()}
        adam = CohortAdam(parameters, self._section.adam_rate)
        for _ in range(self._section.tuning_steps):
            inputs, labels = self._labelled_batch(generator)

            def loss(leaves: Mapping[str, Tensor]) -> Tensor:
                return functional.cross_entropy(self._logits(leaves, inputs), labels)  # noqa: B023

            _step(parameters, adam, loss)
        return parameters

    def _calibrate(
        self, judgement: Judgement, fine_tuned: Tensor, generator: torch.Generator
    ) -> None:
        """Learn to weigh the models, on the labelled images without augmentation."""
        for _ in range(self._section.calibration_steps):
            chosen = self._chosen(len(self._labels), self._section.labelled_batch_size, generator)
            part, tuned_logits, labels = (
                judgement.select(chosen),
                fine_tuned[chosen],
                self._labels[chosen],
            )

            def loss(net: Mapping[str, Tensor]) -> Tensor:
                target = teacher(net, part.logits, part.features, tuned_logits)  # noqa: B023
                return functional.cross_entropy(target, labels)  # noqa: B023

            _step(self._net, self._adam, loss)

    def _distilled(
        self,
        models: Parameters,
        fine_tuned: Parameters,
        mean: Parameters,
        generator: torch.Generator,
    ) -> Parameters:
        """Return the averaged model after steps towards the teacher and on the labelled images."""
        section = self._section
        parameters = {name: value.clone() for name, value in mean.items()}
        adam = CohortAdam(parameters, section.adam_rate)
        for _ in range(section.student_steps):
            size = section.unlabelled_batch_size
            pixels = self._unlabelled[self._chosen(len(self._unlabelled), size, generator)]
            pixels = self._augmented(pixels, generator)
            # A model accepted on the labelled images may give any values for other images.
            judgement = self._judged(models, pixels).bounded()
            fine_tuned_logits = self._judged(fine_tuned, pixels).logits[0]
            target = teacher(self._net, judgement.logits, judgement.features, fine_tuned_logits)
            inputs, labels = self._labelled_batch(generator)

            def loss(leaves: Mapping[str, Tensor]) -> Tensor:
                far = distillation(target, self._logits(leaves, pixels), section.temperature)  # noqa: B023
                wrong = functional.cross_entropy(self._logits(leaves, inputs), labels)  # noqa: B023
                return section.distillation * far + (1 - section.distillation) * wrong

            _step(parameters, adam, loss, section.student_decay)
        return parameters

    def _labelled_batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = self._chosen(len(self._labels), self._section.labelled_batch_size, generator)
        return self._augmented(self._pixels[chosen], generator), self._labels[chosen]

    def _chosen(self, images: int, size: int, generator: torch.Generator) -> Tensor:
        return torch.randperm(images, generator=generator)[:size]

    def _augmented(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images cropped and mirrored as clients do: [m, …] uint8."""
        if not self._task.augments:
            return pixels
        moves = draw_moves(len(pixels), pixels.shape[-2:], self._task.mirrors, generator)
        return moved(pixels.unsqueeze(0), moves.unsqueeze(0))[0]

    def _logits(self, model: Mapping[str, Tensor], pixels: Tensor) -> Tensor:
        """Return one model's logits for images, with gradient: [m, …] uint8 → [m, C]."""
        features = self._task.encode(model, normalised(pixels.unsqueeze(0)))
        return self._task.predict(model, features)[0]

    @torch.no_grad()
    def _judged(self, models: Parameters, pixels: Tensor) -> Judgement:
        """Return the models' outputs, with as many models at a time as a cohort has clients."""
        count, size = len(next(iter(models.values()))), self._task.settings.cohort_on_cpu
        parts = []
        for first in range(0, count, size):
            chunk = {name: value[first : first + size] for name, value in models.items()}
            shared = pixels.expand(min(size, count - first), *pixels.shape)
            features = self._task.encode_all(chunk, shared)
            parts.append(Judgement(self._task.predict(chunk, features), features))
        return Judgement(
            torch.cat([part.logits for part in parts]), torch.cat([p.features for p in parts])
        )

    def _accuracy(self, logits: Tensor) -> float:
        return float((logits.argmax(dim=1) == self._labels).float().mean())

    def _stream(self, server_round: int, purpose: str) -> torch.Generator:
        return torch_stream(self._task.settings.seed, "fedic", purpose, server_round)


def _step(parameters: Parameters, adam: CohortAdam, loss: Loss, weight_decay: float = 0.0) -> None:
    """Take one step of Adam on a loss of all parameters, in place."""
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    slopes = torch.autograd.grad(loss(leaves), list(leaves.values()), materialize_grads=True)
    named_slopes = zip(leaves, slopes, strict=True)
    adam.step(
        parameters, {name: slope + weight_decay * parameters[name] for name, slope in named_slopes}
    )


class FedicStrategy(FedAvgStrategy):
    """FEDIC's server. State: the state of `EnsembleDistillation`."""

    section: FedicSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        images = server_images(settings, federation)
        self._learning = EnsembleDistillation(self.learner.task, self.section, images)
        self.saved = [self._learning]
        self._models: Parameters = {}  # of the round's accepted clients
        self._judgement: Judgement | None = None

    def average(self, models: Sequence[SentModel], round_: Round) -> Arrays | None:
        """Average the models, without those whose outputs are too large to be used."""
        self._judgement = None
        if not models:
            return None
        in_order = sorted(models, key=lambda sent_model: sent_model.key)
        stacked = _stacked([sent_model.arrays for sent_model in in_order])
        judgement = self._learning.judged(stacked)
        logits = judgement.logits.abs().amax(dim=(1, 2)).tolist()
        round_.refused |= {
            sent_model.key: f"its model is not used: the server's images get logits of {value:g}"
            for sent_model, value in zip(in_order, logits, strict=True)
            if not value <= LARGEST_LOGIT
        }
        good = [row for row, value in enumerate(logits) if value <= LARGEST_LOGIT]
        # Adam scales the gate's steps by past gradients, so one outlier would stall the gate.
        keys = [sent_model.key for sent_model in in_order]
        sizes = {keys[row]: root_mean_square([judgement.features[row].numpy()]) for row in good}
        reason = "its model is not used: the server's images get features of size"
        beyond = largest(sizes, reason)
        round_.refused |= beyond
        good = [row for row in good if keys[row] not in beyond]
        self._models = {name: value[good] for name, value in stacked.items()}
        self._judgement = Judgement(judgement.logits[good], judgement.features[good])
        return super().average([in_order[row] for row in good], round_)

    def renewed(self, mean: Arrays, round_: Round) -> Arrays:
        """Return the student of all models."""
        assert self._judgement is not None
        start = _stacked([mean])
        student, figures = self._learning.student(
            self._models, self._judgement, start, round_.number
        )
        self._models, self._judgement = {}, None
        round_.figures |= figures
        return {name: value[0].numpy() for name, value in student.items()}


def _stacked(models: list[Arrays]) -> Parameters:
    return {
        name: torch.from_numpy(np.stack([model[name] for model in models])) for name in models[0]
    }
