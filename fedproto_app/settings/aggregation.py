"""``[aggregation]`` and ``[privacy]``: how clients' values are combined and protected."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median_low
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedproto_app.core.section import Count, NonNegative, Section, Share, setting

Rule = Literal["mean", "clipped-mean", "median", "trimmed-mean", "krum", "multi-krum"]


class AggregationSettings(Section):
    """``[aggregation]``, for methods that combine the clients' values (docs: robust.md)."""

    rule: Rule = setting(
        "mean",
        "how clients' arrays are combined. All rules but `mean` [withstand hostile "
        "clients](robust.md)",
    )
    hostile_share: Annotated[float, Field(ge=0, lt=0.5)] = setting(
        0.2,
        "for `trimmed-mean` and Krum: share of a round's clients that may be hostile",
        "0 ≤ … < 0.5",
    )
    weight_limit: NonNegative = setting(
        5.0,
        "largest weight of a client, [as a multiple](robust.md#what-nodes-declare) of the median "
        "number of train samples (0: no limit)",
        "0, or ≥ 1",
    )
    step_limit: NonNegative = setting(
        3.0,
        "with `mean`, nodes [shorten updates](robust.md#what-nodes-declare) longer than this "
        "many times the last round's median length (0: never)",
    )
    refuse_opposed: bool = setting(
        False,
        "with `step-limit`, refuse nodes whose step [opposes most "
        "others](robust.md#what-nodes-declare), although they may be honest",
    )
    most_megabytes: Count = setting(
        4096, "limit on the server's memory for the models of a round. A run that needs more stops"
    )
    secure: bool = setting(
        False,
        "nodes send [masked sums](secure-sum.md), so that the server learns only the total",
    )
    secure_minimum: Annotated[int, Field(ge=2)] = setting(
        3, "nodes that a masked sum needs. With two, each learns the other's part", "≥ 2"
    )
    secure_share: Annotated[float, Field(ge=0.5, lt=1)] = setting(
        0.67,
        "more than this share of a sum's nodes must stay until it ends. Below two thirds, [fewer "
        "accomplices](secure-sum.md#who-must-collude) can read a node's part",
        "0.5 ≤ … < 1",
    )
    secure_bits: Annotated[int, Field(ge=8, le=40)] = setting(
        24,
        "fractional bits of a masked value. More bits allow only smaller values",
    )

    @model_validator(mode="after")
    def _cuts_no_median_client(self) -> Self:
        if 0 < self.weight_limit < 1:
            raise ValueError(
                f"aggregation.weight-limit = {self.weight_limit:g}: expected 0 (no limit) or at "
                "least 1, the weight of the median client"
            )
        return self

    def most_samples(self, declared: Collection[int]) -> int:
        """Return the largest number of samples that may count for one client, 0 without a limit.

        declared: the train samples of all clients. The limit is based on their lower median, which
        half of the clients together cannot raise.
        """
        if not (self.weight_limit and declared):
            return 0
        return min(int(self.weight_limit * median_low(declared)), max(declared))


Unit = Literal["client", "sample"]
Neighbours = Literal["remove", "replace"]
# Sensitivity in clips: removing a unit changes a sum by at most one clip, replacing it by two.
FACTOR: dict[str, float] = {"remove": 1.0, "replace": 2.0}
Length = Annotated[float, Field(gt=0, le=1e6)]


class PrivacySettings(Section):
    """``[privacy]``: differential privacy of the clients' arrays."""

    mechanism: Literal["none", "gaussian"] = setting(
        "none",
        "[Gaussian noise](privacy.md) on a client's clipped arrays. Only [some "
        "methods](privacy.md#what-is-protected) allow it",
    )
    unit: Unit = setting(
        "client",
        "whether ε protects all data of a client or one sample (`analytic` only)",
    )
    neighbours: Neighbours = setting(
        "remove",
        "`remove` hides whether the unit's data were sent. `replace` hides which data these are, "
        "with twice the noise",
    )
    noise_multiplier: NonNegative = setting(
        0.0,
        "σ: the noise's deviation, divided by the most that one unit can change (0: computed "
        "from `epsilon`)",
    )
    epsilon: NonNegative = setting(
        0.0, "ε of all planned rounds together. σ is computed from it (0: σ is given)"
    )
    delta: Share = setting(1e-5, "δ, below 1 / (largest number of clients)")
    clip: Length = setting(
        1.0,
        "largest norm of a row of a prototype or head, and of a sample in a sum (C)",
    )
    step_clip: Length = setting(1.0, "largest norm of a model update (C)")
    max_epsilon: NonNegative = setting(
        0.0, "stop the run before any client's ε exceeds this (0: never)"
    )
    metrics: Literal["auto", "none", "noised", "exact"] = setting(
        "auto",
        "which [losses and errors](privacy.md#losses-errors-and-sample-counts) nodes report. "
        "`auto` is `none` with a mechanism and `exact` without",
    )
    error_clip: Length = setting(2.0, "with `metrics = noised`, the largest error that is reported")

    @property
    def is_on(self) -> bool:
        """Whether noise protects the clients' values."""
        return self.mechanism != "none"

    @property
    def reported(self) -> Literal["none", "noised", "exact"]:
        """The losses and errors that nodes report."""
        if self.metrics == "auto":
            return "none" if self.is_on else "exact"
        return self.metrics

    @model_validator(mode="after")
    def _has_one_noise(self) -> Self:
        noise_settings = [self.noise_multiplier > 0, self.epsilon > 0]
        if self.is_on and sum(noise_settings) != 1:
            raise ValueError(
                f"privacy.mechanism = {self.mechanism!r}: needs privacy.noise-multiplier or "
                "privacy.epsilon, and not both"
            )
        if self.metrics == "noised" and not self.is_on:
            raise ValueError(
                "privacy.metrics = 'noised': needs the noise of privacy.mechanism = 'gaussian'"
            )
        if self.is_on and (self.unit, self.neighbours) == ("sample", "remove"):
            raise ValueError(
                "privacy.neighbours = 'remove': for privacy.unit = 'sample' it must be 'replace', "
                "because clients tell how many samples they have"
            )
        return self


@dataclass(frozen=True)
class PrivacyPlan:
    """The noise of a run, and how many noised releases each client makes in a round.

    noise_multiplier: σ. releases: how many releases a client makes in a round of the method.
    first_phases: for each earlier phase, the number of its rounds and of releases per round.
    evaluation: how many releases a client makes in an evaluation.
    """

    settings: PrivacySettings
    noise_multiplier: float
    releases: int
    first_phases: tuple[tuple[int, int], ...] = ()
    evaluation: int = 0

    def releases_in(self, server_round: int) -> int:
        """Return how many noised releases a client makes in this round if it gets an order."""
        end = 0
        for rounds, releases in self.first_phases:
            end += rounds
            if server_round <= end:
                return releases
        return self.releases

    @property
    def loss(self) -> float:
        """µ² of one release. For several releases these values add up."""
        return self.noise_multiplier**-2
