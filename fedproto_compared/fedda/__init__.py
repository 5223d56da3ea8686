"""FedDA: clients clustered by traffic and place, and a quasi-global model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedproto_app.core.method import Method
from fedproto_app.core.section import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Section,
    ShareOrOne,
    setting,
)


class FedDaSettings(Section):
    """``[fedda]`` (docs: compared.md)."""

    week: Annotated[int, Field(ge=2)] = setting(
        7, "periods per week. A client sends the mean day of each week"
    )
    clusters: CountOrZero = setting(
        0, "clusters of clients (0: one for every four clients, at most 16)"
    )
    attention_step: Positive = setting(1.0, "step of the dual attention (ε)")
    quasi_global_pull: Annotated[float, Field(ge=-1, le=1)] = setting(
        0.2,
        "pull towards the quasi-global model (ρ). Negative values push away from it",
    )
    statistics_noise: NonNegative = setting(
        0.0, "deviation of the noise that a client adds to its statistics"
    )
    warm_up_epochs: CountOrZero = setting(
        150, "how many epochs the server trains the quasi-global model"
    )
    warm_up_share: ShareOrOne = setting(1.0, "share of the windows that this training uses (φ)")
    warm_up_batch_size: Count = setting(64, "windows per step")
    warm_up_rate: Positive = setting(
        0.001,
        "Adam's learning rate at the start",
    )


METHOD = Method(
    name="fedda",
    strategy=f"{__name__}.strategy:FedDaStrategy",
    learner=f"{__name__}.learner:FedDaLearner",
    settings=FedDaSettings,
    tasks=("forecasting",),
    small={"data.periodic-window": 1, "data.synthetic.days": 24, "fedda.warm-up-epochs": 2},
)
