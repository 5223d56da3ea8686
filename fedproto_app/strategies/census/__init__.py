"""Census, of this project: learned and fixed features of images, and a classifier of class sums."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedproto_app.core.method import Method
from fedproto_app.core.section import NonNegative, Positive, Section, setting
from fedproto_app.strategies.analytic import Prior

# Beside learned ones: a node has the sums of a whole cohort in memory, twice, and in its state.
MOST_BESIDE_LEARNED = 200


class CensusSettings(Section):
    """``[census]``: our own method for images (docs: census.md)."""

    logit_adjustment: NonNegative = setting(
        1.0, "weight of the client's class frequencies in the loss (τ); 0: plain cross-entropy"
    )
    features: Annotated[int, Field(ge=0, le=MOST_BESIDE_LEARNED)] = setting(
        100,
        "random filters, 8 values each, beside the learned features; 0: none",
        f"0 … {MOST_BESIDE_LEARNED}",
    )
    penalty: Positive = setting(1.0, "as `analytic.penalty`")
    prior: Prior = setting("own", "as `analytic.prior`")


METHOD = Method(
    name="census",
    strategy=f"{__name__}.strategy:CensusStrategy",
    learner=f"{__name__}.learner:CensusLearner",
    settings=CensusSettings,
    tasks=("classification",),
    model=f"{__name__}.learner:learned_and_random_patches",
    small={"census.features": 2},
)
