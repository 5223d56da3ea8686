"""Models of sequences: chosen by the settings, or special models of some methods."""

from __future__ import annotations

from fedproto_app.data.shape import DataShape
from fedproto_app.models.causal_cnn import CausalCnnSize
from fedproto_app.models.constant import ConstantModel
from fedproto_app.models.model import Model
from fedproto_app.models.remembering import Remembering
from fedproto_app.models.sequence_model import CausalCnnModel, LstmModel
from fedproto_app.settings import Settings


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


def remembering(settings: Settings, shape: DataShape) -> Remembering:
    """Return the model of kNN-Per: the model of the settings with an optional memory."""
    return Remembering(sequence_model(settings, shape), len(shape.classes))


def constant(settings: Settings, shape: DataShape) -> ConstantModel:
    """Return a model whose predictions do not depend on the input."""
    return ConstantModel(_outputs(shape))


def _outputs(shape: DataShape) -> int:
    """Return the number of outputs of a head: one per class, or 1 for a real number."""
    return len(shape.classes) or 1
