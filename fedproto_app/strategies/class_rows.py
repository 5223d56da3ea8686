"""What clients sent for each of their classes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedproto_app.server.federation import NodeReply
from fedproto_app.server.roster import ClientKey

ClassRows = dict[ClientKey, dict[int, NDArray[np.float32]]]  # client → class → its array


def rows_by_class(answers: Iterable[NodeReply], name: str) -> ClassRows:
    """The array of this name of every client and class; a client may have none."""
    found: ClassRows = {}
    for answer in answers:
        rows = iter(answer.reply.arrays[name])
        for key, classes in zip(answer.keys(), answer.reply.classes, strict=True):
            found[key] = {one: next(rows) for one in classes}
    return found
