"""How strongly each term of a loss pulls at a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def gradient_norms(terms: Mapping[str, Tensor], parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """Each client's ‖∂ term / ∂ parameters‖ over all the parameters together.

    terms: [k] each, of clients that share no parameter. parameters: [k, …] each, leaves of the
    terms' graph, which is kept.
    Returns [k] each, by the terms' names; 0 where a term does not depend on the parameters.
    """
    norms = {}
    for name, term in terms.items():
        gradients = torch.autograd.grad(
            term.sum(), parameters, retain_graph=True, materialize_grads=True
        )
        squares = [
            gradient.reshape(len(gradient), -1).square().sum(dim=1) for gradient in gradients
        ]
        norms[name] = torch.stack(squares).sum(dim=0).sqrt()
    return norms


def held_to_the_others(gradients: Tensor, longest: float) -> tuple[Tensor, int]:
    """[N, …] with none longer than so many times the median of those that are not 0, and how many
    were shortened: none may drown the others in a mean."""
    norms = gradients.flatten(start_dim=1).double().norm(dim=1)
    lengths = norms[norms > 0]
    if not len(lengths):
        return gradients, 0
    limit = longest * float(lengths.quantile(0.5))
    factors = torch.where(norms > limit, limit / norms, 1.0)
    shape = (-1, *[1] * (gradients.dim() - 1))
    held = (gradients.double() * factors.reshape(shape)).to(gradients.dtype)
    return held, int((norms > limit).sum())
