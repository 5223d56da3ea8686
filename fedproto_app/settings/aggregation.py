"""How a shared model is made of the clients' ones."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedproto_app.core.section import Count, Section, setting

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
    secure: bool = setting(
        False,
        "nodes send masked sums, of which the server learns the total alone "
        "([what it takes](secure-sum.md))",
    )
    secure_minimum: Annotated[int, Field(ge=2)] = setting(
        3, "nodes that a masked sum must have; of two, each knows the other's part", "≥ 2"
    )
    secure_share: Annotated[float, Field(ge=0.5, lt=1)] = setting(
        0.5,
        "of a sum's nodes, more than which must live to its end; 0.67 holds against a server that "
        "lies, too",
        "0.5 ≤ … < 1",
    )
    secure_bits: Annotated[int, Field(ge=8, le=40)] = setting(
        24, "of a masked value behind the binary point; N nodes may send up to ±2^(63 − bits)/N"
    )
