"""GLDP: global and local prototypes of long-tailed, growing classes."""

from __future__ import annotations

from typing import Literal

from fedproto_app.core.method import Method
from fedproto_app.core.section import Count, Section, ShareOrEither, setting


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


METHOD = Method(
    name="gldp",
    strategy=f"{__name__}.strategy:GlobalLocalPrototypeStrategy",
    learner=f"{__name__}.learner:GlobalLocalPrototypeLearner",
    settings=GldpSettings,
    tasks=("classification",),
)
