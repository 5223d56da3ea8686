"""The models of methods that bring their own, for images."""

from __future__ import annotations

from fedproto_app.data.shape import DataShape
from fedproto_app.models.random_patches import RandomPatchClassifier
from fedproto_app.randomness import torch_stream
from fedproto_app.settings import Settings


def random_patches(settings: Settings, shape: DataShape) -> RandomPatchClassifier:
    """For the closed form: every process draws the same filters."""
    draws = torch_stream(settings.seed, "random filters")
    features, section = settings.analytic.features, settings.classification
    mirrored = section.augment and section.flip
    return RandomPatchClassifier(shape.inputs, len(shape.classes), features, draws, mirrored)
