"""The closed forms (ours): ridge regression of series, the discriminant of classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.method import Method
from fedproto_app.core.section import CountOrZero, Positive, Section, setting

if TYPE_CHECKING:
    from fedproto_app.settings import Settings


# 500 filters are 4,000 features: 32 MB a message and client, 128 MB where a covariance is made.
MOST_FEATURES = 500


Prior = Literal["own", "even"]  # of classes


class AnalyticSettings(Section):
    """``[analytic]``: ridge regression, or the discriminant of classes, in closed form."""

    sharing: Literal["none", "federated", "shrunk", "clustered"] = setting(
        "shrunk",
        "each client's own solution, one of all clients' samples, its own pulled towards that, or "
        "of classes also towards [those that mean the same](closed-form-classes.md#clusters)",
    )
    penalty: Positive = setting(
        1.0,
        "of the solution of all clients' samples; of classes in 3 r/n of their mean variance "
        "([why](closed-form-classes.md))",
    )
    weakest: Positive = setting(
        0.01,
        "of the penalties that a client tries; they draw its coefficients to a naive forecast, to "
        "0 or to the solution of all clients' samples",
    )
    strongest: Positive = setting(1e4, "of these", "≥ `weakest`")
    eta: Positive = setting(0.2, "as `kindred.eta`")
    features: Annotated[int, Field(ge=1, le=MOST_FEATURES)] = setting(
        100,
        "random filters of images (8 values each), or random kernels of sequences (2 each)",
        f"1 … {MOST_FEATURES}",
    )
    prior: Prior = setting(
        "own",
        "of classes: their frequencies, at the client itself if it has its own solution; or all "
        "alike, which finds rare classes more often",
    )

    guess_rounds: CountOrZero = setting(
        0,
        "further rounds, in which clients guess the classes of their sequences "
        "[without a label](closed-form-classes.md#sequences-without-a-label) and add them to their "
        "sums",
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
        """Two for each power of ten, from the strongest on."""
        count = 1 + math.floor(2 * math.log10(self.strongest / self.weakest) + 1e-9)
        return [self.strongest * 10 ** (-number / 2) for number in range(count)]


def a_stage_and_guesses(settings: Settings) -> int:
    """The closed form's: each stage once, and rounds in which clients guess classes."""
    if settings.task != "classification":
        stages = 1
    elif settings.data.partition.scheme == "given":
        stages = settings.rounds
    else:
        stages = settings.data.partition.stages
    return stages + settings.method_table(AnalyticSettings).guess_rounds


def classes_are_guessed(settings: Settings) -> bool:
    return settings.method_table(AnalyticSettings).guess_rounds > 0


def closed_form_can_be_had(settings: Settings) -> None:
    clusters_of_classes_can_be_found(settings)
    classes_can_be_guessed(settings)


def classes_can_be_guessed(settings: Settings) -> None:
    """Each guess is by what the round before gave, and tells of the same sequences again."""
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
            "aggregation.secure = true adds up the same sequences in every round, so that the sums "
            "of a node that misses one could be told by difference; set 0"
        )
    elif settings.evaluate_every != 1:
        reason = f"evaluate-every = {settings.evaluate_every}: it must be 1"
    elif settings.keep != "last" or settings.patience:
        wrong = (
            f"patience = {settings.patience}: set 0"
            if settings.keep == "last"
            else f"keep = {settings.keep!r}: set 'last'"
        )
        reason = f"{wrong}; the few validation sequences with a label cannot choose a round"
    if reason:
        raise SettingsError(f"analytic.guess-rounds = {rounds}: {reason}")


def clusters_of_classes_can_be_found(settings: Settings) -> None:
    """The closed form's: nothing may stand between the server and each client's sums."""
    if settings.method_table(AnalyticSettings).sharing != "clustered":
        return
    reason = ""
    if settings.task == "forecasting":
        reason = "task = 'forecasting' has no classes; method = 'kindred' leans to similar clients"
    elif settings.aggregation.secure:
        reason = "aggregation.secure = true hides the sums of a client by which it finds clusters"
    elif settings.privacy.is_on:
        reason = f"the noise of privacy.mechanism = {settings.privacy.mechanism!r} hides clusters"
    elif settings.aggregation.rule != "mean":
        reason = (
            f"aggregation.rule = {settings.aggregation.rule!r} makes the sums of all alone; set "
            "'mean'"
        )
    if reason:
        raise SettingsError(f"analytic.sharing = 'clustered': {reason}")


METHOD = Method(
    name="analytic",
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
        "forecasting": "fedproto_app.tasks.forecasting.own_models:linear",
        "classification": f"{__name__}.classes_learner:random_patches",
        "sequence-classification": f"{__name__}.classes_learner:random_kernels",
    },
    rounds=a_stage_and_guesses,
    learns_without_labels=classes_are_guessed,
    check=closed_form_can_be_had,
)
