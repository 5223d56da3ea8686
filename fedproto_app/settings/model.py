"""Models, their optimiser and their batches: what all methods share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedproto_app.core.section import (
    Count,
    NonNegative,
    Positive,
    Section,
    ShareOrOne,
    ShareOrZero,
    setting,
)


class ModelSettings(Section):
    """``[model]``: the forecaster, the image classifier, the model of sequences."""

    representation_dim: Annotated[int, Field(ge=2, multiple_of=2)] = setting(
        256, "d_r, d of the small CNN; ResNet-18 has 512"
    )
    image_encoder: Literal["small-cnn", "resnet18"] = setting(
        "small-cnn", "the classifier's encoder"
    )
    width: Annotated[int, Field(ge=4, multiple_of=4)] = setting(
        16, "channels of the small CNN's first layer"
    )
    sequence_encoder: Literal["lstm", "causal-cnn"] = setting(
        "lstm",
        "of sequences; `fed-react`, `ifca` and `flsc` always have the CNN, whose sizes stand in "
        "`[encoder]`",
    )
    embedding_dim: Count = setting(128, "the linear layer in front of the LSTM")
    hidden_dim: Count = setting(256, "the LSTM's state")
    module: str = setting(
        "",
        "your own `torch.nn.Module` in place of these; [how](extending.md#your-own-model)",
        "`package.module:factory`",
    )


class OptimizerSettings(Section):
    """``[optimizer]``."""

    name: Literal["adam", "sgd"] = setting("adam", "what takes the steps")
    learning_rate: Positive = setting(1e-3, "of a step")
    momentum: ShareOrZero = setting(0.9, "SGD's")
    weight_decay: NonNegative = setting(0.0, "SGD's")
    smoothing_window: Count = setting(
        1,
        "w, gradients whose weighted mean a step takes (DTSSGD), in every method; 1: the newest "
        "alone",
    )
    smoothing_factor: ShareOrOne = setting(
        0.9, "γ, the weight of each older gradient over the next newer one"
    )


class ClassificationSettings(Section):
    """``[classification]``: batches of labelled images."""

    batch_size: Count = setting(32, "images; the last batch of an epoch may be smaller")
    augment: bool = setting(True, "crop each image of a batch at random, and mirror it if `flip`")
    flip: bool = setting(True, "false for digits and letters")
    stage_schedule: Literal["sequential", "cyclic"] = setting(
        "sequential",
        "the rounds are cut into M parts, one a stage; or the stages take turns, round by round",
    )


class SequenceModelSettings(Section):
    """``[sequence]``: batches of labelled sequences."""

    batch_size: Count = setting(
        50,
        "sequences, of the methods that train with labels; the last batch of an epoch may be "
        "smaller",
    )
