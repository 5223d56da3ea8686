"""GLDP: global and local prototypes of long-tailed, growing classes."""

from __future__ import annotations

from typing import Literal

from fedproto_app.core.method import Method
from fedproto_app.core.section import Count, Section, ShareOrEither, setting


class GldpSettings(Section):
    """``[gldp]``."""

    encoder_epochs: Count = setting(10, "epochs on µ with ν frozen (t), instead of `local-epochs`")
    head_epochs: Count = setting(20, "then epochs on ν with µ frozen (s)")
    balance: ShareOrEither = setting(0.5, "λ: 1 uses only local prototypes, 0 only global ones")
    memory: ShareOrEither = setting(
        0.5, "share of the old prototypes in the moving averages of clients and server (β)"
    )
    relations: bool = setting(True, "false: ablation without both prototype losses")
    local_relation: Literal["embedding", "prediction"] = setting(
        "embedding", "GLDP, eq. 7 or GLDP, eq. 8"
    )
    prototype_encoder: Literal["own", "shared"] = setting(
        "own",
        "of the prototypes kept and sent: the client's after training (GLDP, eq. 6), or the "
        "shared one as received",
    )
    inference: Literal["local-prototypes", "global-prototypes", "head"] = setting(
        "local-prototypes", "what the main accuracies use; all three are reported"
    )


METHOD = Method(
    name="gldp",
    strategy=f"{__name__}.strategy:GlobalLocalPrototypeStrategy",
    learner=f"{__name__}.learner:GlobalLocalPrototypeLearner",
    settings=GldpSettings,
    tasks=("classification",),
)
