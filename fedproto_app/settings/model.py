"""Settings of models, of their optimiser and batches, and of the encoder trained without labels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from fedproto_app.core.section import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Section,
    ShareOrOne,
    ShareOrZero,
    setting,
)


def _factors_of(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _factor_list(value: object) -> str:
    """Return the numbers in a text or list, or a single number, as one text."""
    listed = value if isinstance(value, list | tuple) else [value]
    text = ",".join(f"{part}".replace(" ", "") for part in listed)
    try:
        factors = _factors_of(text)
    except ValueError:
        factors = ()
    if not factors or not all(0 < factor < math.inf for factor in factors):
        raise ValueError(f"model.width-factors = {value!r}: expected numbers > 0 between commas")
    if len(set(factors)) < len(factors):
        raise ValueError(f"model.width-factors = {value!r}: duplicate number")
    return text


class ModelSettings(Section):
    """``[model]``: the forecaster, the image classifier, the model of sequences."""

    representation_dim: Annotated[int, Field(ge=2, multiple_of=2)] = setting(
        256,
        "length of the representation (d_r or d). With ResNet-18 a multiple of 16: its stages have "
        "d/8, d/4, d/2 and d channels. He et al. have d = 512",
    )
    image_encoder: Literal["small-cnn", "resnet18"] = setting("small-cnn", "encoder of images")
    width: Annotated[int, Field(ge=4, multiple_of=4)] = setting(
        16, "channels of the small CNN's first layer"
    )
    sequence_encoder: Literal["lstm", "causal-cnn"] = setting(
        "lstm",
        "encoder of sequences. `fed-react`, `ifca` and `flsc` always use the CNN of `[encoder]`",
    )
    embedding_dim: Count = setting(128, "width of the linear layer before the LSTM")
    hidden_dim: Count = setting(256, "size of the LSTM's state")
    width_factors: Annotated[str, BeforeValidator(_factor_list)] = setting(
        "1",
        "[factors](compared.md#models-of-different-widths) for the widths of the layers before "
        "the representation. Each client draws one",
        "numbers > 0 between commas",
    )
    module: str = setting(
        "",
        "[your own `torch.nn.Module`](extending.md#your-own-model) instead of these models",
        "`package.module:factory`",
    )

    @property
    def factors(self) -> tuple[float, ...]:
        """The numbers of `width_factors`."""
        return _factors_of(self.width_factors)

    def scaled(self, width: int, multiple: int = 1) -> int:
        """The width times the first factor, rounded to a multiple of `multiple`, never 0."""
        return multiple * max(1, round(width * self.factors[0] / multiple))


class OptimizerSettings(Section):
    """``[optimizer]``."""

    name: Literal["adam", "sgd"] = setting("adam", "the optimiser")
    learning_rate: Positive = setting(1e-3, "step size")
    momentum: ShareOrZero = setting(0.9, "momentum of SGD")
    weight_decay: NonNegative = setting(0.0, "weight decay of SGD")
    smoothing_window: Count = setting(
        1,
        "over how many gradients a step averages (w of DTSSGD)",
    )
    smoothing_factor: ShareOrOne = setting(
        0.9, "weight of each older gradient relative to the next newer one (γ)"
    )


class ClassificationSettings(Section):
    """``[classification]``: batches of labelled images."""

    batch_size: Count = setting(32, "images per step")
    augment: Literal["crop-and-mirror", "crop", "none"] = setting(
        "crop-and-mirror",
        "what is done to train images at random. Digits and letters must not be mirrored",
    )
    stage_schedule: Literal["sequential", "cyclic"] = setting(
        "sequential",
        "`sequential` trains each stage in turn, for an equal part of the rounds. `cyclic` "
        "changes the stage every round",
    )


class SequenceModelSettings(Section):
    """``[sequence]``: batches of labelled sequences."""

    batch_size: Count = setting(
        50,
        "sequences per step, for methods that train with labels",
    )


class EncoderSettings(Section):
    """``[encoder]``: the causal CNN, and its training without labels (Fed-REACT, phase 1)."""

    path: str = setting(
        "",
        "file or run folder of a trained encoder. Phase 1, which trains one, is then skipped",
        "a path",
    )
    rounds: CountOrZero = setting(
        10,
        "rounds of phase 1, before `rounds` (0: the encoder stays random)",
    )
    steps: Count = setting(500, "training steps per client and round")
    batch_size: Count = setting(10, "reference series per step")
    negatives: Count = setting(10, "negatives per reference series (R)")
    negative_terms: Literal["sum", "mean"] = setting(
        "sum",
        "whether the loss adds the negatives' terms, as Fed-REACT does, or averages them",
    )
    blocks: Count = setting(10, "blocks of the causal CNN")
    channels: Count = setting(40, "channels of all blocks but the last")
    reduced_dim: Count = setting(160, "channels of the last block")
    output_dim: Count = setting(320, "length of a sequence's vector (D)")

    @property
    def file(self) -> Path:
        """The encoder's file: `path` itself, or the model's file if `path` is a run's folder."""
        path = Path(self.path).expanduser()
        return path / "model" / "global.safetensors" if path.is_dir() else path
