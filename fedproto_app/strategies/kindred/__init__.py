"""Kindred, our own method: a linear forecast in closed form that borrows from similar clients."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.method import Method, RunSettings
from fedproto_app.core.section import CountOrZero, Positive, Section, setting


class KindredSettings(Section):
    """``[kindred]``: our own method (docs: closed-forms.md)."""

    sharing: Literal["kin", "common", "groups", "random", "none"] = setting(
        "kin",
        "whose data support a client's own: similar clients' (`kin`), everybody's (`common`), "
        "everybody's and [its group's](closed-forms.md#groups) (`groups`), random clients' as a "
        "control, or nobody's",
    )
    features: CountOrZero = setting(100, "random waves at each of two scales (0: linear)")
    temperature: Positive = setting(
        0.5,
        "how far similarity reaches, as a multiple of the median divergence",
    )
    eta: Positive = setting(0.2, "trust in validation samples (η). 1 takes them as independent")
    smallest_penalty: Positive = setting(1e-4, "smallest penalty λ tried")
    largest_penalty: Positive = setting(1.0, "largest penalty λ tried", "> `smallest-penalty`")
    penalty_steps: Annotated[int, Field(ge=2, le=10)] = setting(
        3, "penalties tried for each block of features", "2 … 10"
    )

    @model_validator(mode="after")
    def _penalties_in_order(self) -> KindredSettings:
        if self.largest_penalty <= self.smallest_penalty:
            raise ValueError(
                f"kindred.largest-penalty = {self.largest_penalty:g}: must be above "
                f"kindred.smallest-penalty = {self.smallest_penalty:g}"
            )
        return self

    @property
    def needs_totals(self) -> bool:
        """Whether the server needs only totals over clients, and no client's prototype."""
        return self.sharing in ("common", "groups")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Temperatures of the priors that a client gets."""
        return (self.temperature, math.inf)

    @property
    def penalties(self) -> list[float]:
        """λ in equal ratios, the smallest first."""
        return self.finer_penalties[::2]

    @property
    def finer_penalties(self) -> list[float]:
        """The penalties, with the geometric mean of each pair of neighbours between them."""
        steps = 2 * (self.penalty_steps - 1)
        ratio = self.largest_penalty / self.smallest_penalty
        return [self.smallest_penalty * ratio ** (step / steps) for step in range(steps + 1)]


def check_settings(settings: RunSettings) -> None:
    """Raise `SettingsError` for noise, and for a robust rule, because a client could not subtract
    its own part from a robust total."""
    sharing, rule = settings.method_table(KindredSettings).sharing, settings.aggregation.rule
    if settings.privacy.is_on and sharing != "none":
        raise SettingsError(
            f"privacy.mechanism = {settings.privacy.mechanism!r}: noise would leave nothing of the "
            f"products that kindred.sharing = {sharing!r} sends; set kindred.sharing = 'none', and "
            "share the response to columns known in advance (data.known), which noise leaves usable"
        )
    if rule != "mean":
        raise SettingsError(
            f"kindred.sharing = {sharing!r}: aggregation.rule = {rule!r} gives no total that a "
            "client could subtract its own part from; set 'mean'"
        )


METHOD = Method(
    name="kindred",
    title="Kindred",
    strategy=f"{__name__}.strategy:KindredStrategy",
    learner=f"{__name__}.learner:KindredLearner",
    settings=KindredSettings,
    tasks=("forecasting",),
    model=f"{__name__}.learner:random_features",
    rounds=lambda settings: 1,
    check=check_settings,
)
