"""``[encoder]``: an encoder of sequences that is learned without labels (docs: fed-react.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedproto_app.core.section import Count, CountOrZero, Section, setting


class EncoderSettings(Section):
    """``[encoder]``: the causal CNN and how it learns without labels (Fed-REACT, phase 1)."""

    path: str = setting(
        "",
        "a trained encoder, its file or the folder of its run, instead of phase 1",
        "a path",
    )
    rounds: CountOrZero = setting(
        10, "rounds of phase 1, before `rounds`; 0: the encoder stays random"
    )
    steps: Count = setting(500, "training steps per client and round")
    batch_size: Count = setting(10, "reference series per step")
    negatives: Count = setting(10, "negatives per reference (R)")
    negative_terms: Literal["sum", "mean"] = setting(
        "sum",
        "over the negatives: the sum of Fed-REACT, eq. 1, or the mean of Franceschi et al. 2019",
    )
    blocks: Count = setting(10, "blocks of the causal CNN; the dilation doubles with each")
    channels: Count = setting(40, "channels of all blocks but the last")
    reduced_dim: Count = setting(160, "channels of the last block, pooled over time")
    output_dim: Count = setting(320, "length of a vector (D)")

    @property
    def file(self) -> Path:
        """The encoder's file: `path` itself, or the model's file if `path` is a run's folder."""
        path = Path(self.path).expanduser()
        return path / "model" / "global.safetensors" if path.is_dir() else path
