"""Checkpoints of parameters that the server trains with Adam."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.optim import CohortAdam


def arrays_of(parameters: Mapping[str, Tensor], adam: CohortAdam) -> dict[str, AnyArray]:
    """Return the parameters and Adam's state as arrays, named ``<kind>/<parameter>``."""
    return {
        f"{kind}/{name}": value.numpy()
        for kind, tensors in {"value": parameters, **adam.state}.items()
        for name, value in tensors.items()
    }


def restore_arrays(
    state: Mapping[str, AnyArray], parameters: Mapping[str, Tensor], adam: CohortAdam
) -> None:
    """Restore in place what `arrays_of` returned."""
    kinds = {"value": parameters, **adam.state}
    for key, array in state.items():
        kind, name = key.split("/")
        kinds[kind][name].copy_(torch.from_numpy(array))
