"""Closed-form methods of this project: ridge regression for series, a discriminant for classes."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.method import Method, RunSettings
from fedproto_app.core.section import CountOrZero, Positive, Section, setting

# 500 filters are 4,000 features: 32 MB for each message and client, 128 MB for a covariance.
MOST_FEATURES = 500


Prior = Literal["own", "even"]  # class frequencies


class AnalyticSettings(Section):
    """``[analytic]``: ridge regression, or the discriminant of classes, in closed form."""

    sharing: Literal["none", "federated", "shrunk", "clustered"] = setting(
        "shrunk",
        "which solution a client gets: its own (`none`), all clients' (`federated`), or "
        "its own pulled towards the latter (`shrunk`). `clustered` also pulls towards [its "
        "cluster's](closed-forms.md#clusters)",
    )
    penalty: Positive = setting(
        1.0,
        "penalty of the solution for all clients. For classes it is "
        "[scaled](closed-forms.md#classifier)",
    )
    weakest: Positive = setting(
        0.01,
        "weakest penalty that a client tries",
    )
    strongest: Positive = setting(1e4, "strongest penalty that a client tries", "≥ `weakest`")
    eta: Positive = setting(0.2, "as `kindred.eta`")
    features: Annotated[int, Field(ge=1, le=MOST_FEATURES)] = setting(
        100,
        "random filters for images, with 8 values each. Sequences get [six times as many "
        "features](closed-forms.md#classes)",
        f"1 … {MOST_FEATURES}",
    )
    prior: Prior = setting(
        "own",
        "class frequencies that a solution assumes: the client's own, or equal ones. Equal ones "
        "find rare classes more often",
    )

    guess_rounds: CountOrZero = setting(
        0,
        "further rounds where clients guess the classes of [unlabelled "
        "sequences](closed-forms.md#sequences-without-a-label)",
    )

    @model_validator(mode="after")
    def _strengths_in_order(self) -> AnalyticSettings:
        if self.strongest < self.weakest:
            raise ValueError(
                f"analytic.strongest = {self.strongest}: less than analytic.weakest = "
                f"{self.weakest}"
            )
        return self

    @property
    def strengths(self) -> list[float]:
        """Penalties from the strongest on, two for each power of ten."""
        count = 1 + math.floor(2 * math.log10(self.strongest / self.weakest) + 1e-9)
        return [self.strongest * 10 ** (-number / 2) for number in range(count)]


def rounds_with_guesses(settings: RunSettings) -> int:
    """Return the number of rounds: one for each stage, plus those that guess classes."""
    if settings.task != "classification":
        stages = 1
    elif settings.data.partition.scheme == "given":
        stages = settings.rounds
    else:
        stages = settings.data.partition.stages
    return stages + settings.method_table(AnalyticSettings).guess_rounds


def guesses_classes(settings: RunSettings) -> bool:
    """Return whether clients guess the classes of unlabelled sequences."""
    return settings.method_table(AnalyticSettings).guess_rounds > 0


def learns_from_validation(settings: RunSettings) -> bool:
    """Return whether the sums of classes also hold validation samples.

    A client judges classifiers without these samples, so it must subtract them from the totals.
    That needs plain totals: with noise or a robust rule, totals are not sums of clients' sums.
    """
    plain = settings.aggregation.rule == "mean" and not settings.privacy.is_on
    return plain and settings.task != "forecasting"


def check_settings(settings: RunSettings) -> None:
    """Raise `SettingsError` for clusters or guesses that other settings rule out."""
    check_clusters(settings)
    check_guesses(settings)


def check_guesses(settings: RunSettings) -> None:
    """Raise `SettingsError` if classes cannot be guessed.

    A guess uses the last round's model, and in every round a client sends sums of the same
    sequences again.
    """
    rounds, reason = settings.method_table(AnalyticSettings).guess_rounds, ""
    if not rounds:
        return
    if settings.task != "sequence-classification":
        reason = f"task = {settings.task!r} has no samples without a label; set 0"
    elif settings.privacy.is_on:
        reason = (
            f"privacy.mechanism = {settings.privacy.mechanism!r} counts each sequence once; set 0"
        )
    elif settings.aggregation.secure:
        reason = (
            "aggregation.secure = true adds up the same sequences in every round, so the sums of a "
            "node that misses a round could be found by subtraction; set 0"
        )
    elif settings.evaluate_every != 1:
        reason = f"evaluate-every = {settings.evaluate_every}: it must be 1"
    elif settings.keep != "last" or settings.patience:
        correction = (
            f"patience = {settings.patience}: set 0"
            if settings.keep == "last"
            else f"keep = {settings.keep!r}: set 'last'"
        )
        reason = f"{correction}; the few validation sequences with a label cannot choose a round"
    if reason:
        raise SettingsError(f"analytic.guess-rounds = {rounds}: {reason}")


def check_clusters(settings: RunSettings) -> None:
    """Raise `SettingsError` if clusters are chosen, but the server does not see each client's
    sums."""
    if settings.method_table(AnalyticSettings).sharing != "clustered":
        return
    reason = ""
    if settings.task == "forecasting":
        reason = "task = 'forecasting' has no classes; method = 'kindred' uses similar clients"
    elif settings.privacy.is_on:
        reason = f"the noise of privacy.mechanism = {settings.privacy.mechanism!r} hides clusters"
    elif settings.aggregation.rule != "mean":
        reason = (
            f"aggregation.rule = {settings.aggregation.rule!r} gives only the totals; set 'mean'"
        )
    if reason:
        raise SettingsError(f"analytic.sharing = 'clustered': {reason}")


METHOD = Method(
    name="analytic",
    title={
        "forecasting": "linear regression",
        "classification": "closed form",
        "sequence-classification": "closed form",
    },
    strategy={
        "forecasting": f"{__name__}.strategy:AnalyticStrategy",
        "classification": f"{__name__}.classes_strategy:AnalyticClassesStrategy",
        "sequence-classification": f"{__name__}.classes_strategy:AnalyticClassesStrategy",
    },
    learner={
        "forecasting": f"{__name__}.learner:AnalyticLearner",
        "classification": f"{__name__}.classes_learner:AnalyticClassesLearner",
        "sequence-classification": f"{__name__}.classes_learner:AnalyticClassesLearner",
    },
    settings=AnalyticSettings,
    tasks=("forecasting", "classification", "sequence-classification"),
    model={
        "forecasting": "fedproto_app.tasks.forecasting.task:linear_model",
        "classification": f"{__name__}.classes_learner:features_of_images",
        "sequence-classification": f"{__name__}.classes_learner:sequence_kernels",
    },
    rounds=rounds_with_guesses,
    scaling="client",
    learns_without_labels=guesses_classes,
    learns_from_validation=learns_from_validation,
    check=check_settings,
    small={"analytic.features": 20},
)
