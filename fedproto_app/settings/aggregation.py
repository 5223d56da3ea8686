"""How a shared model is made of the clients' ones."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedproto_app.settings.section import Count, Section, setting

Rule = Literal["mean", "clipped-mean", "median", "trimmed-mean", "krum", "multi-krum"]


class AggregationSettings(Section):
    """``[aggregation]``, of the methods that make one of what clients send (docs: robust.md)."""

    rule: Rule = setting(
        "mean",
        "of the clients' models, prototypes, heads or sums; all others [bear hostile "
        "clients](robust.md), and make nodes send each client's own model",
    )
    hostile_share: Annotated[float, Field(ge=0, lt=0.5)] = setting(
        0.2,
        "of a round's clients that may be hostile: so many values `trimmed-mean` leaves out at "
        "either end, and so many clients `krum` and `multi-krum`",
        "0 ≤ … < 0.5",
    )
    most_megabytes: Count = setting(
        4096, "that the models of a round's clients may take at the server; beyond, the run stops"
    )
