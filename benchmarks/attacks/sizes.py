"""How many honest clients `aggregation.weight-limit` cuts, by how their numbers of samples are
drawn: the mean over draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import table_texts
from fedproto_app.settings import AggregationSettings

Sizes = NDArray[np.int64]
CLIENTS = (5, 20, 100)
DRAWS = 200
CLASSES, IMAGES = 10, 5000  # and so many images of each
NOTE = "Share of honest clients that the limit of weights cuts (of samples). {command}."


def _by_class(alpha: float) -> Callable[[np.random.Generator, int], Sizes]:
    """Each class's images are shared out by a Dirichlet distribution."""
    return lambda rng, clients: (
        (rng.dirichlet(np.full(clients, alpha), CLASSES) * IMAGES).astype(np.int64).sum(axis=0)
    )


def _log_normal(sigma: float) -> Callable[[np.random.Generator, int], Sizes]:
    return lambda rng, clients: np.exp(rng.normal(6, sigma, clients)).astype(np.int64)


def _hourly(rng: np.random.Generator, clients: int) -> Sizes:
    return 24 * rng.integers(10, 366, clients)


KINDS: Mapping[str, Callable[[np.random.Generator, int], Sizes]] = {
    "images of a class by Dirichlet, α = 0.5": _by_class(0.5),
    "images of a class by Dirichlet, α = 0.1": _by_class(0.1),
    "hourly series of 10 to 365 days": _hourly,
    "log-normal, σ = 1": _log_normal(1.0),
    "log-normal, σ = 2": _log_normal(2.0),
}


def table() -> list[str]:
    """Return a line for each kind: the share of clients that the default cuts, and of samples."""
    titles = ["honest clients' samples", *(f"{clients} clients" for clients in CLIENTS)]
    rows = [[kind, *(_cell(draw, clients) for clients in CLIENTS)] for kind, draw in KINDS.items()]
    return table_texts([titles, *rows])


def _cell(draw: Callable[[np.random.Generator, int], Sizes], clients: int) -> str:
    cut, lost = [], []
    for seed in range(DRAWS):
        sizes = np.maximum(draw(np.random.default_rng([seed, clients]), clients), 1)
        limit = AggregationSettings().most_samples(sizes.tolist())
        cut.append((sizes > limit).mean())
        lost.append(1 - np.minimum(sizes, limit).sum() / sizes.sum())
    return f"{100 * np.mean(cut):.1f}% ({100 * np.mean(lost):.1f}%)"
