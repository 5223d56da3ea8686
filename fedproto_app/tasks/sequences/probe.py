"""A vector at which the server compares heads: made of the encoder alone, so of nobody's data."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Arrays
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.tasks.sequences.task import SequenceTask

_WALKS, _STEPS = 32, 100  # made-up sequences, and the steps of each


def probe_vector(encoder: Arrays, task: SequenceTask) -> NDArray[np.float64]:
    """[D]: the mean of what the encoder makes of random walks.

    Each dimension of a walk is standardised, as data mostly are. Walks, because neighbouring steps
    of real sequences are alike. Raises `FederationError` if the vector is not finite.
    """
    generator = numpy_stream(task.settings.seed, "probe")
    walks = generator.normal(size=(_WALKS, _STEPS, *task.shape.inputs)).cumsum(axis=1)
    walks -= walks.mean(axis=1, keepdims=True)
    walks /= walks.std(axis=1, keepdims=True)
    values = torch.from_numpy(walks.astype(np.float32)).unsqueeze(0)
    lengths = torch.full((1, _WALKS), _STEPS)
    stacked = {name: torch.from_numpy(array).unsqueeze(0) for name, array in encoder.items()}
    vector = task.encode_all(stacked, values, lengths)[0].double().mean(dim=0)
    if not vector.isfinite().all():
        raise FederationError(
            "fed-react.similarity = 'predictions': the encoder makes NaN or infinite values of "
            "random walks, so heads cannot be compared"
        )
    found: NDArray[np.float64] = vector.numpy()
    return found
