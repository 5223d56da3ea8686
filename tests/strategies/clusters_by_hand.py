"""Four clients in two pairs, and what a strategy makes of them."""

from __future__ import annotations

from fedproto_app.strategies.fed_react.clustered_heads import ClusteredHeadStrategy
from tests.strategies.heads_by_hand import at

APART = dict(zip("abcd", at(0, 10, 90, 100), strict=True))
PAIRS = {"a": "east", "b": "east", "c": "north", "d": "north"}


def clusters(strategy: ClusteredHeadStrategy) -> dict[str, int]:
    state = strategy.state()
    return dict(zip(state["names"].tolist(), state["labels"].tolist(), strict=True))


def together(strategy: ClusteredHeadStrategy) -> set[str]:
    """The clients of each cluster, as a word."""
    labels = clusters(strategy)
    return {"".join(sorted(n for n in labels if labels[n] == c)) for c in set(labels.values())}


def figures(strategy: ClusteredHeadStrategy) -> dict[str, float | None]:
    return strategy.federation.history.log.figures
