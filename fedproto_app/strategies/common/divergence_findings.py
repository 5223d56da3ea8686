"""``divergence.npz``: who is how different from whom, of methods that compare prototypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientFacts, ClientKey, key_arrays
from fedproto_app.maths.even_choice import evenly

# Whose matrix is written whole, 16 MB; that of 10,000 has 400 MB, and follows from the prototypes.
MOST_CLIENTS = 2000


def divergence_findings(
    keys: Sequence[ClientKey],
    facts: Mapping[ClientKey, ClientFacts],
    prototypes: NDArray[np.float32],
    divergence_of: Callable[[NDArray[np.intp]], NDArray[np.float32]],
) -> dict[str, dict[str, NDArray[Any]]]:
    """The artefact of N clients and their prototypes [N, …], in the same order.

    divergence_of: the matrix [n, n] of n of them, by their places. Of more than MOST_CLIENTS it has
    so many, every true group by its share, and ``divergence_of`` [n] says which.
    """
    groups = np.array([facts[key].group for key in keys])
    places = evenly(groups, MOST_CLIENTS)
    chosen = {"divergence_of": places} if len(places) < len(keys) else {}
    return {
        "divergence": {
            **key_arrays(keys),
            "prototypes": prototypes,
            "groups": groups,
            "divergence": divergence_of(places),
            **chosen,
        }
    }
