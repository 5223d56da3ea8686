"""``[aggregation]``: how the server combines the clients' models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedproto_app.core.section import Count, Section, setting

Rule = Literal["mean", "clipped-mean", "median", "trimmed-mean", "krum", "multi-krum"]


class AggregationSettings(Section):
    """``[aggregation]``, for methods that combine the clients' values (docs: robust.md)."""

    rule: Rule = setting(
        "mean",
        "how clients' models, prototypes, heads or sums are combined; all but `mean` "
        "[withstand hostile clients](robust.md) and need each client's model",
    )
    hostile_share: Annotated[float, Field(ge=0, lt=0.5)] = setting(
        0.2,
        "share of a round's clients that may be hostile: `trimmed-mean` drops these values at "
        "both ends, `krum` and `multi-krum` these clients",
        "0 ≤ … < 0.5",
    )
    most_megabytes: Count = setting(
        4096, "memory for the models of a round's clients at the server; above it the run stops"
    )
    secure: bool = setting(
        False,
        "nodes send [masked sums](secure-sum.md), so that the server learns only the total",
    )
    secure_minimum: Annotated[int, Field(ge=2)] = setting(
        3, "nodes that a masked sum needs; with two, each learns the other's part", "≥ 2"
    )
    secure_share: Annotated[float, Field(ge=0.5, lt=1)] = setting(
        0.5,
        "more than this share of a sum's nodes must stay to its end; 0.67 also withstands a "
        "server that lies",
        "0.5 ≤ … < 1",
    )
    secure_bits: Annotated[int, Field(ge=8, le=40)] = setting(
        24, "fractional bits of a masked value; N nodes may send up to ±2^(63 − bits)/N"
    )
