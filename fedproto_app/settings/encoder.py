"""``[encoder]``: an encoder of sequences that is learned without labels (docs: fed-react.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedproto_app.core.section import Count, CountOrZero, Section, setting


class EncoderSettings(Section):
    """``[encoder]``: the causal CNN and how it learns without labels (Fed-REACT, phase 1)."""

    path: str = setting(
        "",
        "a trained encoder: its file, or the folder of its run; then there is no phase 1",
        "a path",
    )
    rounds: CountOrZero = setting(
        10, "of phase 1, in addition to `rounds`; 0: the encoder as it is drawn"
    )
    steps: Count = setting(500, "training steps of a client and round")
    batch_size: Count = setting(10, "reference series of a step")
    negatives: Count = setting(10, "R, for each reference")
    negative_terms: Literal["sum", "mean"] = setting(
        "sum", "over the R negatives: Fed-REACT, eq. 1, or as Franceschi et al. 2019 train"
    )
    blocks: Count = setting(10, "of the causal CNN; the dilation doubles from one to the next")
    channels: Count = setting(40, "of all blocks but the last")
    reduced_dim: Count = setting(160, "channels of the last block, pooled over time")
    output_dim: Count = setting(320, "D, the length of a vector")

    @property
    def file(self) -> Path:
        """The file that `path` means: an encoder's own, or that of a run by the run's folder."""
        path = Path(self.path).expanduser()
        return path / "model" / "global.safetensors" if path.is_dir() else path
