"""Models of images: chosen by the settings, or special models of some methods."""

from __future__ import annotations

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.randomness import torch_stream
from fedproto_app.data.shape import DataShape
from fedproto_app.models.constant import ConstantModel
from fedproto_app.models.image_classifier import ResNetClassifier, SmallCnnClassifier
from fedproto_app.models.model import Model
from fedproto_app.models.random_patches import RandomPatchClassifier
from fedproto_app.models.remembering import Remembering
from fedproto_app.models.small_cnn import GROUPS
from fedproto_app.settings import ModelSettings, Settings


def image_classifier(settings: ModelSettings, shape: DataShape) -> Model:
    """Return the classifier that the settings name."""
    classes = len(shape.classes)
    if settings.image_encoder == "resnet18":
        if settings.factors != (1.0,):
            raise SettingsError(
                f"model.width-factors = {settings.width_factors!r}: model.image-encoder = "
                "'resnet18' has one width; 'small-cnn' can have others"
            )
        return ResNetClassifier(shape.inputs, classes)
    width = settings.scaled(settings.width, GROUPS)
    return SmallCnnClassifier(shape.inputs, classes, width, settings.representation_dim)


def constant(settings: Settings, shape: DataShape) -> ConstantModel:
    """Return a model whose predictions do not depend on the input."""
    return ConstantModel(len(shape.classes))


def remembering(settings: Settings, shape: DataShape) -> Remembering:
    """Return the model of kNN-Per: the classifier of the settings with an optional memory."""
    return Remembering(image_classifier(settings.model, shape), len(shape.classes))


def fixed_patches(settings: Settings, shape: DataShape, filters: int) -> RandomPatchClassifier:
    """Return a classifier on random filters, which are the same in every process."""
    draws, section = torch_stream(settings.seed, "random filters"), settings.classification
    mirrored = section.augment and section.flip
    return RandomPatchClassifier(shape.inputs, len(shape.classes), filters, draws, mirrored)
