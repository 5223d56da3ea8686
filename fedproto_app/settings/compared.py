"""The tables of the methods that average a model, or whose personal models stay near one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

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

MOST_REMEMBERED = 20_000  # a node compares each of a cohort's samples with all of them


class DittoSettings(Section):
    """``[ditto]``."""

    proximal_lambda: NonNegative = setting(1e-4, "λ, the personal model's pull to the global one")
    personal_epochs: CountOrZero = setting(0, "of the personal model; 0: `local-epochs`")


class ApflSettings(Section):
    """``[apfl]``."""

    alpha: ShareOrEither = setting(0.5, "α, the personal model's share at the start")
    adaptive: bool = setting(True, "learn α")


class FedAvgSettings(Section):
    """``[fedavg]``."""

    fine_tune_epochs: CountOrZero = setting(
        0,
        "epochs on a client's own data that make its model of the shared one; 0: it is that one, "
        "with `fedavg-ft` 1 epoch",
    )

    @property
    def fine_tuned(self) -> FedAvgSettings:
        """These, with at least one epoch."""
        return FedAvgSettings(fine_tune_epochs=max(1, self.fine_tune_epochs))


class PerFedAvgSettings(Section):
    """``[per-fedavg]``."""

    step_size: NonNegative = setting(0.01, "α, of the step on a client's own data; 0: FedAvg")
    gradient: Literal["first-order", "exact"] = setting(
        "first-order", "of the loss after that step; exact: with the Hessian, at twice the cost"
    )


class PFedMeSettings(Section):
    """``[pfedme]``."""

    proximal_lambda: Positive = setting(15.0, "λ, the personal model's pull to the global one")
    inner_steps: Count = setting(5, "K, of the optimiser on each batch, by the personal model")
    outer_step: ShareOrOne = setting(
        0.1, "η·λ, the share of its way to the personal model that w goes after each batch"
    )
    server_step: Positive = setting(
        1.0, "β, the share of the clients' mean in the new shared model; above 1 beyond it"
    )


class FedAlaSettings(Section):
    """``[fedala]`` (docs: personalised.md)."""

    layers: CountOrZero = setting(
        1, "p, the top layers whose parameters a client mixes with its own; 0: all"
    )
    share: ShareOrOne = setting(0.8, "s, of its batches, on which it learns how to mix")
    rate: Positive = setting(1.0, "η, of the steps in which it learns that")
    threshold: Positive = setting(
        0.1, "deviation of ten epochs' losses below which a client's first learning ends"
    )


class FedProxSettings(Section):
    """``[fedprox]``."""

    proximal_mu: NonNegative = setting(0.01, "µ; Li et al. 2020 try 0.001 … 1")


class FedRepSettings(Section):
    """``[fedrep]``."""

    head_epochs: Count = setting(1, "epochs on the head before the encoder's")
    encoder_epochs: CountOrZero = setting(0, "epochs on the encoder; 0: `local-epochs`")


class FedProtoSettings(Section):
    """``[fedproto]``."""

    prototype_weight: NonNegative = setting(1.0, "λ; Tan et al. 2022 take 1")
    inference: Literal["prototypes", "head"] = setting(
        "prototypes",
        "of classes: a client answers with the class of the nearest global prototype, or by its "
        "head; series are always forecast by the head",
    )


class FedPclSettings(Section):
    """``[fedpcl]``: Deng and Yang's, not Tan et al.'s of the same name (docs: fedpcl-fedda.md)."""

    prototypes: Literal["single", "multiple"] = setting(
        "single",
        "what a client contrasts with: the mean of all clients' prototypes, or each of them, which "
        "sends all to all",
    )
    temperature: Positive = setting(0.07, "τ")
    contrast_weight: NonNegative = setting(1.0, "γ, of the contrast beside the prediction")
    supervised: bool = setting(
        True, "false: rounds train by the contrast alone, and only fine-tuning by the targets"
    )
    fine_tune_epochs: CountOrZero = setting(
        1, "epochs of the head on a client's own data, the encoder frozen, before it is judged"
    )


class FedDaSettings(Section):
    """``[fedda]`` (docs: fedpcl-fedda.md)."""

    week: Annotated[int, Field(ge=2)] = setting(
        7, "periods whose mean day is one of the statistics that a client sends"
    )
    clusters: CountOrZero = setting(0, "of clients; 0: one for every four, at most 16")
    attention_step: Positive = setting(1.0, "ε, of the dual attention")
    quasi_global_pull: Annotated[float, Field(ge=-1, le=1)] = setting(
        0.2, "ρ, pull to the quasi-global model; below 0 away from it; the authors try ±0.3"
    )
    cluster_anchor: Literal["last", "quasi-global"] = setting(
        "last",
        "where a cluster's model starts from: its last one, or always the quasi-global one, as in "
        "the authors' program",
    )
    statistics_noise: NonNegative = setting(
        0.0, "standard deviation of the noise that a client adds to its statistics"
    )
    warm_up_epochs: CountOrZero = setting(150, "of the quasi-global model, at the server")
    warm_up_share: ShareOrOne = setting(1.0, "φ, share of the statistics' windows it learns from")
    warm_up_batch_size: Count = setting(64, "of these windows")
    warm_up_rate: Positive = setting(
        0.001, "Adam's learning rate; a tenth after half of the epochs, and again after 3/4"
    )


class FedTgpSettings(Section):
    """``[fedtgp]`` (docs: personalised.md)."""

    prototype_weight: NonNegative = setting(1.0, "λ; the authors' script takes 10")
    margin_threshold: NonNegative = setting(100.0, "τ, the most that the adaptive margin can be")
    server_epochs: Count = setting(100, "S, a round, of the server's training of the prototypes")
    server_batch_size: Count = setting(10, "clients' prototypes of a step of it")
    server_rate: Positive = setting(0.01, "of such a step")


class KnnPerSettings(Section):
    """``[knn-per]`` (docs: personalised.md)."""

    most_samples: Annotated[int, Field(ge=1, le=MOST_REMEMBERED)] = setting(
        1000,
        "train samples that a client remembers, drawn once where it has more",
        f"1 … {MOST_REMEMBERED:,}",
    )


class CnfgnnSettings(Section):
    """``[cnfgnn]``: a graph network over the clients at the server (docs: graph.md)."""

    model: Literal["paper", "fuels"] = setting(
        "paper", "the clients' model: two GRUs, or FUELS's with g beside its representation"
    )
    hidden: Count = setting(
        64, "values of g, and of the paper's encoding; FUELS's is as long as its representation"
    )
    server_epochs: CountOrZero = setting(
        1,
        "R_s, of the graph network over the train time steps, after each round of the clients; "
        "0: none, and g = 0",
    )
    server_batch: Count = setting(48, "time steps of one step of the graph network")
    server_rate: Positive = setting(1e-3, "of its Adam")
