"""FUELS (Liu et al., AAAI 2025): prototypes of periodic series, compared at the server."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.method import Method, RunSettings
from fedproto_app.core.section import (
    CountOrZero,
    NonNegative,
    Positive,
    Section,
    ShareOrOne,
    setting,
)


class FuelsSettings(Section):
    """``[fuels]``."""

    prototype_dim: CountOrZero = setting(
        32,
        "length of a prototype (d_p). With 0, representations serve as prototypes",
    )
    temperature: Positive = setting(0.02, "the contrast's temperature (τ)")
    prediction_weight: Positive = setting(
        1.0, "weight of L_pred. Both printed algorithms have ρ here"
    )
    intra_weight: NonNegative = setting(1.0, "weight of L_intra")
    inter_weight: NonNegative = setting(
        5.0, "weight of L_inter (ρ). Both printed algorithms have 1"
    )
    negatives: Literal["filtered", "similarity"] = setting(
        "filtered", "loss terms as in [P, eq. 6 or A, eq. 2](fuels.md)"
    )
    augmentation_low: ShareOrOne = setting(0.8, "lower end of the temporal shift")
    threshold: Literal["percentile", "absolute"] = setting(
        "percentile", "whether β is a percentile or a value in nats"
    )
    beta: NonNegative = setting(
        50.0, "threshold of the off-diagonal JSDs (β)", "≥ 0, a percentile ≤ 100"
    )
    intra: bool = setting(True, 'if false, ablation "w/o intra"')
    inter: bool = setting(True, 'if false, ablation "w/o inter"')
    periodicity_aware: bool = setting(True, 'if false, ablation "w/o p-aware"')
    learn_filter: bool = setting(True, 'if false, ablation "w/o W"')
    filter_start: Positive = setting(1.0, "initial value of W's entries")
    filter_rate: Positive = setting(1.0, "learning rate of W, relative to the optimiser's")
    comparison: Literal["jsd", "random"] = setting(
        "jsd",
        "whether positive clients are chosen by JSD and β, or at random as a control",
    )
    renew_optimizer: bool = setting(
        False, "reset a client's optimiser after its first round with guidance"
    )
    diagnostics: bool = setting(
        False,
        "[measure](artefacts.md#diagnostics) W and the gradient of each loss in every round",
    )
    noise: Literal["none", "laplace", "gaussian", "exponential"] = setting(
        "none",
        "noise on the prototypes that are sent. It guarantees no [privacy](privacy.md)",
    )
    noise_scale: Positive = setting(
        1.0, "the noise's standard deviation, Laplace's b or the exponential's mean"
    )

    @model_validator(mode="after")
    def _percentile_in_range(self) -> FuelsSettings:
        if self.threshold == "percentile" and self.beta > 100:
            raise ValueError(
                f'fuels.beta = {self.beta} is no percentile: with fuels.threshold = "percentile" '
                "it must lie in 0 ... 100"
            )
        return self


def check_noise(settings: RunSettings) -> None:
    """Raise `SettingsError` if FUELS's unprotected noise is combined with ``[privacy]``."""
    noise, mechanism = settings.method_table(FuelsSettings).noise, settings.privacy.mechanism
    if noise != "none" and settings.privacy.is_on:
        raise SettingsError(
            f"fuels.noise = {noise!r}: is no protection; with privacy.mechanism = {mechanism!r} it "
            "must be 'none'"
        )


METHOD = Method(
    name="fuels",
    title="FUELS",
    strategy=f"{__name__}.strategy:JSDPrototypeStrategy",
    learner=f"{__name__}.learner:JSDPrototypeLearner",
    settings=FuelsSettings,
    tasks=("forecasting",),
    check=check_noise,
)
