"""Fed-REACT: an encoder learned without labels, then heads in clusters that evolve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from pydantic import field_validator

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.method import SEQUENCE_TASKS, Method, Pretraining
from fedproto_app.core.methods import METHODS
from fedproto_app.core.section import Count, CountOrZero, Positive, Section, setting
from fedproto_app.maths.clustering import HeadSimilarity

if TYPE_CHECKING:
    from fedproto_app.settings import Settings


EstimatedForgetting = Literal["adaptive", "toolbox", "all-rounds"]
Forgetting = EstimatedForgetting | float


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
    overlap: Count = setting(2, "clusters that a client of `flsc` belongs to", "1 … `clusters`")
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

    @property
    def choices(self) -> int:
        """Clusters that a client of `ifca` chooses; `flsc` has its own number."""
        return 1

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


def heads_can_be_compared(settings: Settings) -> None:
    """Raises `SettingsError` for a similarity that the task's heads do not have."""
    similarity = settings.method_table(FedReactSettings).similarity
    if settings.task == "sequence-regression" and similarity == "class-norms":
        raise SettingsError(
            "fed-react.similarity = 'class-norms': a head of task = 'sequence-regression' has "
            "no classes; set 'cosine', 'centred-cosine' or 'predictions'"
        )


def clients_fill_the_clusters(settings: Settings, clients: int) -> None:
    """Raises `SettingsError` for more clusters than clients that can take part."""
    clusters = settings.method_table(FedReactSettings).clusters
    if clusters > clients:
        raise SettingsError(
            f"fed-react.clusters = {clusters}: must be at most {clients}, the number of clients "
            "that can take part"
        )


def encoder_is_learned(settings: Settings) -> bool:
    """Whether phase 1 has rounds."""
    return ENCODER.rounds(settings) > 0


def encoder_can_be_read(settings: Settings) -> None:
    """Raises `SettingsError` for an encoder that is given and not there."""
    encoder = settings.encoder
    if encoder.path and not encoder.file.is_file():
        learners = [name for name, method in METHODS.items() if method.pretraining == ENCODER]
        raise SettingsError(
            f"encoder.path = {encoder.path!r}: there is no {encoder.file}; it must be a file of "
            f"an encoder, or the folder of a run of {', '.join(learners)}"
        )


# Phase 1: an encoder of sequences, learned without labels; its vectors are the samples of phase 2.
ENCODER = Pretraining(
    table="encoder",
    rounds=lambda settings: 0 if settings.encoder.path else settings.encoder.rounds,
    check=encoder_can_be_read,
    model="fedproto_app.tasks.sequences.own_models:causal_cnn_model",
    strategy=f"{__name__}.encoder:PretrainedStrategy",
    learner=f"{__name__}.encoder_learner:ContrastiveEncoderLearner",
    samples=f"{__name__}.vectors:represented",
)
METHOD = Method(
    name="fed-react",
    strategy=f"{__name__}.strategy:EvolutionaryClusterStrategy",
    learner=f"{__name__}.learner:EvolutionaryClusterLearner",
    settings=FedReactSettings,
    tasks=SEQUENCE_TASKS,
    pretraining=ENCODER,
    learns_without_labels=encoder_is_learned,
    check=heads_can_be_compared,
    check_clients=clients_fill_the_clusters,
)
