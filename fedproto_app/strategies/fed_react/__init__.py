"""Fed-REACT: an encoder trained without labels, then heads for clusters that change over time."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import field_validator

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.method import SEQUENCE_TASKS, Method, Pretraining, RunSettings
from fedproto_app.core.methods import METHODS
from fedproto_app.core.section import Count, CountOrZero, Positive, Section, setting
from fedproto_app.maths.clustering import HeadSimilarity

EstimatedForgetting = Literal["adaptive", "toolbox", "all-rounds"]
Forgetting = EstimatedForgetting | float


class FedReactSettings(Section):
    """``[fed-react]``: the second phase. IFCA and FLSC share its heads."""

    clusters: CountOrZero = setting(
        3,
        "number of clusters (C). With 0, each round chooses it by silhouette, except for `ifca` "
        "and `flsc`",
    )
    samples: CountOrZero = setting(64, "labelled samples per client and round (|M_t|, 0: all)")
    penalty: Positive = setting(1.0, "weight of errors relative to the head's norm (C of the SVM)")
    clustering: Literal["evolutionary", "snapshot"] = setting(
        "evolutionary",
        "whether clusters remember the past (Fed-REACT, Algorithm 2) or not "
        "(Fed-REACT, Algorithm 3)",
    )
    similarity: HeadSimilarity = setting(
        "cosine",
        "[how heads are compared](fed-react.md#clusters)",
    )
    forgetting: Forgetting = setting(
        "adaptive",
        "weight of the past [in similarities](fed-react.md#clusters) (α_t)",
        "`adaptive toolbox all-rounds`, or 0 … 1",
    )
    overlap: Count = setting(2, "how many clusters a client of `flsc` belongs to", "1 … `clusters`")
    affect_iterations: Count = setting(5, "most iterations of AFFECT")
    smoothing: Literal["none", "mean", "forgetting", "kalman"] = setting(
        "kalman",
        "[smoothing of a cluster's head](fed-react.md#the-head-of-a-cluster) over the rounds",
    )
    process_variance: Positive = setting(0.01, "initial q of EM")
    measurement_variance: Positive = setting(0.1, "initial r of EM")
    em_iterations: CountOrZero = setting(5, "steps of EM per round (0: q and r stay as set)")
    history: Literal["unchanged", "all"] = setting(
        "unchanged",
        "when a cluster's head is smoothed and sent: while its members are unchanged, or always",
    )

    @property
    def choices(self) -> int:
        """The number of clusters that a client of `ifca` chooses. `flsc` overrides it."""
        return 1

    @field_validator("forgetting", mode="before")
    @classmethod
    def _forgetting_is_known(cls, value: object) -> object:
        """Raise an error of one line, because pydantic would list every type that it tried."""
        if value in get_args(EstimatedForgetting):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        raise ValueError(
            f"fed-react.forgetting = {value!r}: must be "
            f"{', '.join(map(repr, get_args(EstimatedForgetting)))} or a number from 0 to 1"
        )


def check_similarity(settings: RunSettings) -> None:
    """Raise `SettingsError` for a similarity that the task's heads do not have."""
    similarity = settings.method_table(FedReactSettings).similarity
    if settings.task == "sequence-regression" and similarity == "class-norms":
        raise SettingsError(
            "fed-react.similarity = 'class-norms': a head of task = 'sequence-regression' has "
            "no classes; set 'cosine', 'centred-cosine' or 'predictions'"
        )


def check_number_of_clients(settings: RunSettings, clients: int) -> None:
    """Raise `SettingsError` if there are more clusters than clients that can take part."""
    clusters = settings.method_table(FedReactSettings).clusters
    if clusters > clients:
        raise SettingsError(
            f"fed-react.clusters = {clusters}: must be at most {clients}, the number of clients "
            "that can take part"
        )


def encoder_is_learned(settings: RunSettings) -> bool:
    """Return whether phase 1 has rounds."""
    return ENCODER.rounds(settings) > 0


def check_encoder(settings: RunSettings) -> None:
    """Raise `SettingsError` if the encoder's file is missing."""
    encoder = settings.encoder
    if encoder.path and not encoder.file.is_file():
        learners = [name for name, method in METHODS.items() if method.pretraining == ENCODER]
        raise SettingsError(
            f"encoder.path = {encoder.path!r}: there is no {encoder.file}; it must be a file of "
            f"an encoder, or the folder of a run of {', '.join(learners)}"
        )


# Phase 1: an encoder of sequences, trained without labels. Its vectors are the samples of phase 2.
ENCODER = Pretraining(
    table="encoder",
    rounds=lambda settings: 0 if settings.encoder.path else settings.encoder.rounds,
    check=check_encoder,
    model="fedproto_app.tasks.sequences.task:causal_cnn_model",
    strategy=f"{__name__}.encoder:PretrainedStrategy",
    learner=f"{__name__}.encoder:ContrastiveEncoderLearner",
    samples=f"{__name__}.encoder:represented",
)
METHOD = Method(
    name="fed-react",
    title="Fed-REACT",
    strategy=f"{__name__}.strategy:EvolutionaryClusterStrategy",
    learner=f"{__name__}.learner:EvolutionaryClusterLearner",
    settings=FedReactSettings,
    tasks=SEQUENCE_TASKS,
    pretraining=ENCODER,
    learns_without_labels=encoder_is_learned,
    check=check_similarity,
    check_clients=check_number_of_clients,
)
