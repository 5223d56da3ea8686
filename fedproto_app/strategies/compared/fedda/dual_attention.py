"""FedDA's dual attention (Zhang, Dang, Shihada, Alouini, INFOCOM 2021): the next server model.

Tensor by tensor the model moves to the models that came, most to those that are farthest away, and
to the quasi-global model, most in the tensors that are farthest from it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def attended(
    models: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor],
    quasi_global: Mapping[str, Tensor],
    step: float,
    pull: float,
) -> dict[str, Tensor]:
    """One step of dual attention from the anchor, tensor k by tensor:
        w_k − ε·( Σ_i α_ik·(w_k − w_i,k) + ρ·ω_k·(w_k − q_k) )
    with α_k = softmax over i of ‖w_k − w_i,k‖ and ω = softmax over k of ‖w_k − q_k‖.

    models: [n, …] each, w_i; anchor: w; quasi_global: q; step: ε; pull: ρ.
    """
    far = torch.stack([(anchor[name] - quasi_global[name]).norm() for name in anchor])
    made = {}
    for (name, start), share in zip(anchor.items(), far.softmax(dim=0), strict=True):
        apart = start - models[name]  # (n, …)
        attention = apart.flatten(start_dim=1).norm(dim=1).softmax(dim=0)  # (n,)
        toward = torch.tensordot(attention, apart, dims=1)
        made[name] = start - step * (toward + pull * share * (start - quasi_global[name]))
    return made
