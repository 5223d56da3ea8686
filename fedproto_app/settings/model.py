"""Models, their optimiser and their batches: what all methods share."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from fedproto_app.core.section import (
    Count,
    NonNegative,
    Positive,
    Section,
    ShareOrOne,
    ShareOrZero,
    setting,
)


def _factors_of(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _factor_list(given: object) -> str:
    """The numbers in a text or list, or one number, as one text."""
    listed = given if isinstance(given, list | tuple) else [given]
    text = ",".join(f"{part}".replace(" ", "") for part in listed)
    try:
        factors = _factors_of(text)
    except ValueError:
        factors = ()
    if not factors or not all(0 < factor < math.inf for factor in factors):
        raise ValueError(f"model.width-factors = {given!r}: expected numbers > 0 between commas")
    if len(set(factors)) < len(factors):
        raise ValueError(f"model.width-factors = {given!r}: a number stands there twice")
    return text


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
    width_factors: Annotated[str, BeforeValidator(_factor_list)] = setting(
        "1",
        "what the widths in front of the representation are multiplied by; with several numbers "
        "every client draws one, [how](personalised.md#models-of-different-widths)",
        "numbers > 0 between commas",
    )
    module: str = setting(
        "",
        "your own `torch.nn.Module` in place of these; [how](extending.md#your-own-model)",
        "`package.module:factory`",
    )

    @property
    def factors(self) -> tuple[float, ...]:
        """The numbers of `width_factors`."""
        return _factors_of(self.width_factors)

    def scaled(self, width: int, multiple: int = 1) -> int:
        """The width times the first factor, rounded to a multiple ≥ 1 of `multiple`."""
        return multiple * max(1, round(width * self.factors[0] / multiple))


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
