"""Gradient norms: how strongly each term of a loss acts on a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def gradient_norms(terms: Mapping[str, Tensor], parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return each client's ‖∂ term / ∂ parameters‖ over all parameters.

    terms: [k] each, of clients that share no parameter. parameters: [k, …] each, leaves of the
    terms' graph, which is retained.
    Returns [k] each, by the terms' names; 0 if a term does not depend on the parameters.
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


def clipped_to_median(gradients: Tensor, longest: float) -> tuple[Tensor, int]:
    """Clip the gradients [N, …] to `longest` × the median norm; return the number of clipped too.

    The median is over norms above 0. No gradient can then dominate the mean.
    """
    norms = gradients.flatten(start_dim=1).double().norm(dim=1)
    lengths = norms[norms > 0]
    if not len(lengths):
        return gradients, 0
    limit = longest * float(lengths.quantile(0.5))
    factors = torch.where(norms > limit, limit / norms, 1.0)
    shape = (-1, *[1] * (gradients.dim() - 1))
    shortened = (gradients.double() * factors.reshape(shape)).to(gradients.dtype)
    return shortened, int((norms > limit).sum())
