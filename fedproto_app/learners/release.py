"""What of a learner's messages noise can protect, and how far one client can change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Release:
    """Arrays of one message that are clipped and noised together (docs: privacy.md).

    bound: what is clipped: "step", the whole way from the shared parameters that came to those that
        go; "rows", each row of a client's arrays; "sums", each sample before it is summed, which
        the learner does itself (`Training.sample_clip`, `Learner.sums_bound`).
    arrays: their names in the contribution; of a step none.
    """

    bound: Literal["step", "rows", "sums"]
    arrays: tuple[str, ...] = ()


STEP = Release("step")
