"""The models of methods that bring their own, for sequences."""

from __future__ import annotations

from fedproto_app.data.shape import DataShape
from fedproto_app.models.causal_cnn import CausalCnnSize
from fedproto_app.models.constant import ConstantModel
from fedproto_app.models.model import Model
from fedproto_app.models.remembering import Remembering
from fedproto_app.models.sequence_model import CausalCnnModel, LstmModel
from fedproto_app.settings import Settings


def causal_cnn_model(settings: Settings, shape: DataShape) -> CausalCnnModel:
    """The encoder that can also learn without labels, and a head."""
    cnn, scaled = settings.encoder, settings.model.scaled
    size = CausalCnnSize(cnn.blocks, scaled(cnn.channels), scaled(cnn.reduced_dim), cnn.output_dim)
    return CausalCnnModel(shape.inputs[0], _outputs(shape), size)


def sequence_model(settings: Settings, shape: DataShape) -> Model:
    """The one that the settings name."""
    model = settings.model
    if model.sequence_encoder == "causal-cnn":
        return causal_cnn_model(settings, shape)
    embedding = model.scaled(model.embedding_dim)
    return LstmModel(shape.inputs[0], _outputs(shape), embedding, model.hidden_dim)


def remembering(settings: Settings, shape: DataShape) -> Remembering:
    """For kNN-Per: the model of the settings, which may have a memory."""
    return Remembering(sequence_model(settings, shape), len(shape.classes))


def constant(settings: Settings, shape: DataShape) -> ConstantModel:
    """For answers that look at nothing."""
    return ConstantModel(_outputs(shape))


def _outputs(shape: DataShape) -> int:
    """Numbers that a head gives: one a class, or the one that is asked for."""
    return len(shape.classes) or 1
