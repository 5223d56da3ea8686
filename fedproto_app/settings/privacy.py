"""``[privacy]``: noise that hides a client, and the limit of its loss (docs: privacy.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedproto_app.core.section import NonNegative, Section, Share, setting

Unit = Literal["client", "sample"]
Neighbours = Literal["remove", "replace"]
# Of sensitivities: a contribution is no longer than the bound, two are no further apart than twice.
FACTOR: dict[str, float] = {"remove": 1.0, "replace": 2.0}
Length = Annotated[float, Field(gt=0, le=1e6)]


class PrivacySettings(Section):
    """``[privacy]``: differential privacy of the clients' arrays."""

    mechanism: Literal["none", "gaussian"] = setting(
        "none",
        "[Gaussian noise](privacy.md) that a node adds to all arrays of a client, after "
        "clipping; for [some methods](privacy.md#what-is-protected)",
    )
    unit: Unit = setting(
        "client", "what ε protects: all data of a client, or one sample (`analytic` only)"
    )
    neighbours: Neighbours = setting(
        "remove",
        "what cannot be distinguished: the unit's data from none, or from any other data, "
        "which takes twice the noise",
    )
    noise_multiplier: NonNegative = setting(
        0.0,
        "σ, the noise's standard deviation over the most that the unit can change; 0: from "
        "`epsilon`",
    )
    epsilon: NonNegative = setting(
        0.0, "ε that all planned rounds together spend, which determines σ; 0: σ is given"
    )
    delta: Share = setting(
        1e-5, "δ; choose it below 1 over the number of clients there may ever be"
    )
    clip: Length = setting(
        1.0,
        "largest norm of a row of a prototype or head, and of a sample that is summed (C)",
    )
    step_clip: Length = setting(1.0, "largest norm of a model update (C)")
    max_epsilon: NonNegative = setting(
        0.0, "stop before the ε of any client exceeds this; 0: never"
    )

    @property
    def is_on(self) -> bool:
        """Whether noise protects the clients' values."""
        return self.mechanism != "none"

    @model_validator(mode="after")
    def _has_one_noise(self) -> Self:
        noise_settings = [self.noise_multiplier > 0, self.epsilon > 0]
        if self.is_on and sum(noise_settings) != 1:
            raise ValueError(
                f"privacy.mechanism = {self.mechanism!r}: needs privacy.noise-multiplier or "
                "privacy.epsilon, and not both"
            )
        if self.is_on and (self.unit, self.neighbours) == ("sample", "remove"):
            raise ValueError(
                "privacy.neighbours = 'remove': for privacy.unit = 'sample' it must be 'replace', "
                "because clients tell how many samples they have"
            )
        return self


@dataclass(frozen=True)
class PrivacyPlan:
    """The noise of a run, and the number of releases that a round takes from each client.

    noise_multiplier: σ. releases: drafts of noise of a client that a round takes, in the rounds of
    a first phase and in the method's own. pretraining_rounds: how many of the former there are.
    """

    settings: PrivacySettings
    noise_multiplier: float
    releases: tuple[int, int]
    pretraining_rounds: int

    def releases_in(self, server_round: int) -> int:
        """Return the number of noised releases of a client with an order in this round."""
        return self.releases[server_round > self.pretraining_rounds]

    @property
    def loss(self) -> float:
        """µ² of one release; the values of several releases add up."""
        return self.noise_multiplier**-2
