"""``divergence.npz``: pairwise differences between clients, for methods that compare prototypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientFacts, ClientKey, key_arrays
from fedproto_app.maths.even_choice import evenly

# This many clients have a matrix of 16 MB; 10,000 would have 400 MB. The matrix can be recomputed
# from the prototypes.
MOST_CLIENTS = 2000


def divergence_findings(
    keys: Sequence[ClientKey],
    facts: Mapping[ClientKey, ClientFacts],
    prototypes: NDArray[np.float32],
    divergence_of: Callable[[NDArray[np.intp]], NDArray[np.float32]],
) -> dict[str, dict[str, NDArray[Any]]]:
    """Return the artefact of N clients and their prototypes [N, …], in the same order.

    divergence_of: returns the matrix [n, n] of the clients at n places. With more than MOST_CLIENTS
    clients, the artefact has the matrix of MOST_CLIENTS, each true group by its share, and their
    places ``divergence_of`` [n].
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
