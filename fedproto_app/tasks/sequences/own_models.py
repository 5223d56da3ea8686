"""The models of methods that bring their own, for sequences."""

from __future__ import annotations

from fedproto_app.data.shape import DataShape
from fedproto_app.models.constant import ConstantModel
from fedproto_app.models.random_kernels import RandomKernelClassifier
from fedproto_app.randomness import torch_stream
from fedproto_app.settings import Settings

STEPS = 32  # that kernels reach over where the settings do not say how long sequences are


def random_kernels(settings: Settings, shape: DataShape) -> RandomKernelClassifier:
    """For the closed form: every process draws the same kernels."""
    draws = torch_stream(settings.seed, "random kernels")
    steps = settings.data.sequences.steps or STEPS
    classes, kernels = len(shape.classes), settings.analytic.features
    return RandomKernelClassifier(shape.inputs[0], classes, kernels, steps, draws)


def constant(settings: Settings, shape: DataShape) -> ConstantModel:
    """For answers that look at nothing."""
    return ConstantModel(len(shape.classes) or 1)
