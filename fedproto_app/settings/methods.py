"""The tables of single methods; Greek letters of the papers are spelled out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from fedproto_app.settings.section import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Section,
    ShareOrEither,
    ShareOrOne,
    setting,
)

# What ``fed-react.similarity`` compares heads by.
Cosine = Literal["cosine", "centred-cosine"]
HeadSimilarity = Literal[Cosine, "class-norms", "predictions"]
EstimatedForgetting = Literal["adaptive", "toolbox", "all-rounds"]
Forgetting = EstimatedForgetting | float
Prior = Literal["own", "even"]  # of classes
# 500 filters are 4,000 features: 32 MB a message and client, 128 MB where a covariance is made.
MOST_FEATURES = 500
# Beside learned ones: a node has the sums of a whole cohort in memory, twice, and in its state.
MOST_BESIDE_LEARNED = 200


class FuelsSettings(Section):
    """``[fuels]``."""

    prototype_dim: CountOrZero = setting(32, "d_p; 0: no projector, the representation itself")
    temperature: Positive = setting(0.02, "τ")
    prediction_weight: Positive = setting(1.0, "of L_pred; 5 where both algorithms print ρ")
    intra_weight: NonNegative = setting(1.0, "of L_intra")
    inter_weight: NonNegative = setting(5.0, "ρ, of L_inter; 1 as both algorithms print it")
    negatives: Literal["filtered", "similarity"] = setting("filtered", "P, eq. 6 or A, eq. 2")
    augmentation_low: ShareOrOne = setting(0.8, "lower end of the temporal shift")
    threshold: Literal["percentile", "absolute"] = setting("percentile", "how β is meant")
    beta: NonNegative = setting(
        50.0, "β, of the off-diagonal JSDs: a percentile, or nats", "≥ 0, a percentile ≤ 100"
    )
    intra: bool = setting(True, 'false: ablation "w/o intra"')
    inter: bool = setting(True, 'false: ablation "w/o inter"')
    periodicity_aware: bool = setting(True, 'false: ablation "w/o p-aware"')
    learn_filter: bool = setting(True, 'false: ablation "w/o W"')
    filter_start: Positive = setting(1.0, "every entry of W before the first step")
    filter_rate: Positive = setting(1.0, "W's learning rate, as a factor of the optimiser's")
    comparison: Literal["jsd", "random"] = setting(
        "jsd",
        "whose prototypes are positive: by JSD and β; or, as a control, as many clients drawn once "
        "from the seed",
    )
    renew_optimizer: bool = setting(
        False, "forget a client's optimiser state once, after its first round with guidance"
    )
    diagnostics: bool = setting(
        False,
        "measure W and each loss's gradient every round; [where](artefacts.md#roundsjsonl)",
    )
    noise: Literal["none", "laplace", "gaussian", "exponential"] = setting(
        "none",
        "added to the prototypes sent, drawn of the run's seed: no guarantee "
        "([one that is](privacy.md))",
    )
    noise_scale: Positive = setting(
        1.0, "its scale; standard deviation, Laplace's b, the exponential's mean"
    )

    @model_validator(mode="after")
    def _percentile_in_range(self) -> FuelsSettings:
        if self.threshold == "percentile" and self.beta > 100:
            raise ValueError(
                f'fuels.beta = {self.beta} is no percentile: with fuels.threshold = "percentile" '
                "it must lie in 0 ... 100"
            )
        return self


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


class CensusSettings(Section):
    """``[census]``: our own method for images (docs: census.md)."""

    logit_adjustment: NonNegative = setting(
        1.0, "τ, of the client's class frequencies in the loss; 0: plain cross-entropy"
    )
    features: Annotated[int, Field(ge=0, le=MOST_BESIDE_LEARNED)] = setting(
        100,
        "random filters whose 8 values each stand beside the learned ones; 0: none",
        f"0 … {MOST_BESIDE_LEARNED}",
    )
    penalty: Positive = setting(1.0, "as `analytic.penalty`")
    prior: Prior = setting("own", "as `analytic.prior`")


class KindredSettings(Section):
    """``[kindred]``: our own method (docs: forecasting.md)."""

    sharing: Literal["kin", "common", "random", "none"] = setting(
        "kin",
        "whose data stand behind a client's: mostly those of clients like it, all others' alike, "
        "as `kin` of clients at random (a control), or nobody's",
    )
    features: CountOrZero = setting(
        100, "random waves of each of two scales; 0: linear in what is known"
    )
    temperature: Positive = setting(
        0.5, "how far kinship reaches, in medians of the divergence; all others alike stand beside"
    )
    eta: Positive = setting(
        0.2, "η, how much a client trusts its validation samples; 1: as independent ones"
    )
    smallest_penalty: Positive = setting(1e-4, "of the penalties λ that are tried")
    largest_penalty: Positive = setting(1.0, "of these", "> `smallest-penalty`")
    penalty_steps: Annotated[int, Field(ge=2, le=10)] = setting(
        3, "how many of each block of features, from the smallest to the largest", "2 … 10"
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
    def temperatures(self) -> tuple[float, ...]:
        """Of the priors that a client gets."""
        return (self.temperature, math.inf)

    @property
    def strengths(self) -> tuple[float, ...]:
        """s: so much a prior weighs against the client's own data."""
        return (0.5, 10.0, 50.0)

    @property
    def penalties(self) -> list[float]:
        """λ, in equal ratios, the smallest first."""
        return self.finer_penalties[::2]

    @property
    def finer_penalties(self) -> list[float]:
        """These, and the geometric mean of every two."""
        steps = 2 * (self.penalty_steps - 1)
        ratio = self.largest_penalty / self.smallest_penalty
        return [self.smallest_penalty * ratio ** (step / steps) for step in range(steps + 1)]


class GldpSettings(Section):
    """``[gldp]``."""

    encoder_epochs: Count = setting(10, "t, on µ with ν frozen; GLDP ignores `local-epochs`")
    head_epochs: Count = setting(20, "s, then on ν with µ frozen")
    balance: ShareOrEither = setting(0.5, "λ: 1 local prototypes alone, 0 global ones alone")
    memory: ShareOrEither = setting(
        0.5, "β, the old prototypes' share in the moving averages, here and at the server"
    )
    relations: bool = setting(True, "false: the ablation with neither loss of prototypes")
    local_relation: Literal["embedding", "prediction"] = setting(
        "embedding", "GLDP, eq. 7 or GLDP, eq. 8"
    )
    prototype_encoder: Literal["own", "shared"] = setting(
        "own",
        "the encoder of the prototypes that are kept and sent: the client's own after training "
        "(GLDP, eq. 6), or the shared one as received",
    )
    inference: Literal["local-prototypes", "global-prototypes", "head"] = setting(
        "local-prototypes", "what the main accuracies are of; all three are reported"
    )


class CreffSettings(Section):
    """``[creff]``: FedAvg, and a classifier re-trained at the server (docs: creff-fedic.md)."""

    features_per_class: Count = setting(100, "m, federated features of a class at the server")
    match_steps: Count = setting(100, "a round, that move them towards the clients' gradients")
    match_rate: Positive = setting(0.1, "of such a step")
    classifier_epochs: Count = setting(300, "of the fresh classifier on them, every round")
    classifier_batch_size: Count = setting(32, "features of a step")
    classifier_rate: Positive = setting(0.01, "of such a step")
    gradient_batches: Count = setting(
        10, "random batches of a class whose mean gradient a client sends"
    )
    gradient_batch_size: Count = setting(32, "images of such a batch, at most")


class FedicSettings(Section):
    """``[fedic]``: FedAvg, and a student of a calibrated ensemble (docs: creff-fedic.md)."""

    tuning_steps: CountOrZero = setting(
        100, "a round, of the averaged model on the server's labelled images"
    )
    calibration_steps: CountOrZero = setting(100, "a round, that learn how to weigh the models")
    student_steps: CountOrZero = setting(100, "a round, of the averaged model towards the teacher")
    labelled_batch_size: Count = setting(20, "labelled images of a step")
    unlabelled_batch_size: Count = setting(128, "images of a step that the teacher judges")
    adam_rate: Positive = setting(1e-3, "of all three kinds of steps")
    student_decay: NonNegative = setting(2e-4, "the student's weight decay")
    temperature: Positive = setting(2.0, "T, that teacher and student are compared at")
    distillation: ShareOrEither = setting(
        0.5, "λ, the teacher's share in the student's loss; the rest is of labelled images"
    )


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


class FedReactSettings(Section):
    """``[fed-react]``: the second phase; IFCA and FLSC share its heads."""

    clusters: CountOrZero = setting(
        3, "C; 0: as the silhouette of each round has it, not for `ifca` and `flsc`"
    )
    samples: CountOrZero = setting(64, "|M_t|, labelled samples of a client and round; 0: all")
    penalty: Positive = setting(1.0, "weight of errors against the head's norm: the SVM's C")
    clustering: Literal["evolutionary", "snapshot"] = setting(
        "evolutionary",
        "with the past (Fed-REACT, Algorithm 2) or of the round alone (Fed-REACT, Algorithm 3)",
    )
    similarity: HeadSimilarity = setting(
        "cosine",
        "of heads; centred: after the mean head is subtracted; norms: of the sizes of their "
        "classes' rows, centred; predictions: of what heads make of random walks",
    )
    forgetting: Forgetting = setting(
        "adaptive",
        "α_t, the past's share in similarities (Fed-REACT, eq. 3): by AFFECT as Fed-REACT prints "
        "it, or as AFFECT's toolbox does it; (t − 1)/t, the mean of all rounds; or a fixed one",
        "`adaptive toolbox all-rounds`, or 0 … 1",
    )
    affect_iterations: Count = setting(5, "at most (Fed-REACT, Algorithm 4)")
    smoothing: Literal["none", "mean", "forgetting", "kalman"] = setting(
        "kalman", "of a cluster's head over the rounds: no past, A1, A2, A3"
    )
    process_variance: Positive = setting(0.01, "q, where EM starts")
    measurement_variance: Positive = setting(0.1, "r, where EM starts")
    em_iterations: CountOrZero = setting(5, "0: q and r stay as set")
    history: Literal["unchanged", "all"] = setting(
        "unchanged",
        "rounds whose head of a cluster is remembered and sent: those in which it has the clients "
        "of the round before (Fed-REACT, Algorithm 2, line 10), or all",
    )

    @field_validator("forgetting", mode="before")
    @classmethod
    def _forgetting_is_known(cls, value: object) -> object:
        """In one line, where pydantic would tell of each type that it might have been."""
        if value in get_args(EstimatedForgetting):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        raise ValueError(
            f"fed-react.forgetting = {value!r}: must be "
            f"{', '.join(map(repr, get_args(EstimatedForgetting)))} or a number from 0 to 1"
        )

    def choosing(self, overlap: int) -> ChoiceSettings:
        """These, for clients that choose so many clusters themselves."""
        return ChoiceSettings(**dict(self), overlap=overlap)


class ChoiceSettings(FedReactSettings):
    """What IFCA and FLSC go by: Fed-REACT's heads, and how many clusters a client chooses."""

    overlap: Count


class FlscSettings(Section):
    """``[flsc]``."""

    overlap: Count = setting(2, "clusters that a client belongs to", "1 … `fed-react.clusters`")
