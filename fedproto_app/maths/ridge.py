"""Ridge regression from sums over samples, which add up over clients.

Shapes: any leading axes (clients, steps ahead), d regressors. Everything is float64: the sums of a
thousand samples lose in float32 what small penalties need.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SLACK = 1e-4  # relative; sums travel in float32
_NONE = 1e-30  # absolute, for the sums of no sample


def sums(regressors: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """XᵀX [..., d, d] and XᵀY [..., d, t] of X [..., n, d] and Y [..., n, t].

    weights: [..., n] of the samples; 0: it does not count.
    """
    regressors = regressors.double()
    weighed = (regressors * weights.double().unsqueeze(-1)).transpose(-1, -2)
    return weighed @ regressors, weighed @ targets.double()


def clipped_samples(regressors: Tensor, targets: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """X [..., n, d] and Y [..., n, t] with each sample (x, y) shortened to this length at most.

    Then one sample adds to XᵀX and Xᵀy together no more than length²: ‖x‖⁴ + ‖x‖²y² ≤ length⁴.
    """
    norms = torch.cat([regressors, targets], dim=-1).double().norm(dim=-1, keepdim=True)
    factor = (length / norms.clamp(min=1e-30)).clamp(max=1.0)
    return regressors * factor, targets * factor


def definite(gram: Tensor, deviation: float) -> Tensor:
    """The symmetric matrix [..., d, d] without what may be noise alone.

    deviation: of independent Gaussian noise on every entry of the upper triangle. Such noise has
    eigenvalues up to 2·deviation·√d (Wigner, 1958), so smaller ones of the sum say nothing: they
    are raised to that.
    """
    values, vectors = torch.linalg.eigh(gram)
    least = 2 * deviation * math.sqrt(gram.shape[-1])
    raised: Tensor = vectors @ (values.clamp(min=least).unsqueeze(-1) * vectors.transpose(-1, -2))
    return raised


def solve(
    gram: Tensor, moment: Tensor, penalty: Tensor | float, toward: Tensor | float = 0.0
) -> Tensor:
    """[..., d, t] the W with the least ‖Y − XW‖² + Σ_i penalty_i · ‖W_i − toward_i‖².

    gram: XᵀX [..., d, d]; moment: XᵀY [..., d, t]; penalty > 0, of all regressors or of each,
    [..., d]; toward: as moment. It solves (XᵀX + P) W = XᵀY + P · toward with the diagonal matrix P
    of the penalties; where that matrix is not positive definite, which true sums are, the solution
    is NaN.
    """
    penalties = torch.as_tensor(penalty, dtype=gram.dtype, device=gram.device)[..., None]
    penalties = penalties.expand(*penalties.shape[:-2], gram.shape[-1], 1)
    ridge = gram + torch.diag_embed(penalties.squeeze(-1))
    right = moment + penalties * toward
    factor, failed = torch.linalg.cholesky_ex(ridge)
    solved = torch.cholesky_solve(right, factor)
    return torch.where((failed > 0)[..., None, None], torch.nan, solved)


class Eliminated:
    """A ridge problem whose last regressors have one penalty and are solved for already.

    What is left is a smaller problem of the first p regressors, the Schur complement, so that many
    penalties of these cost little. gram: XᵀX [..., d, d]; moment: XᵀY [..., d, t]; first: p;
    penalty: of the others, infinite to leave them out.
    """

    def __init__(self, gram: Tensor, moment: Tensor, first: int, penalty: float) -> None:
        corner, side = gram[..., :first, :first], gram[..., first:, :first]
        self._gram, self.moment = corner, moment[..., :first, :]
        self._without = torch.zeros_like(moment[..., first:, :])
        self._by_first = torch.zeros_like(side)
        if not math.isinf(penalty):
            right = torch.cat([side, moment[..., first:, :]], dim=-1)
            solved = solve(gram[..., first:, first:], right, penalty)
            self._by_first, self._without = solved[..., :first], solved[..., first:]
            self._gram = corner - side.mT @ self._by_first
            self.moment = self.moment - side.mT @ self._without

    def solve(self, penalties: Tensor, toward: Tensor) -> Tensor:
        """[..., c, k, d, t] the solutions with the penalties of the first regressors, [c, p], each
        drawn to each of the k targets [k, p, t]; the others are drawn to 0."""
        targets, steps = len(toward), toward.shape[2]
        side_by_side = toward.transpose(0, 1).flatten(start_dim=1)  # (p, k·t)
        repeats = [1] * (self.moment.ndim - 1)
        moment = self.moment.repeat(*repeats, targets).unsqueeze(-3)
        first = solve(self._gram.unsqueeze(-3), moment, penalties, side_by_side)
        rest = self._without.repeat(*repeats, targets).unsqueeze(-3)
        both = torch.cat([first, rest - self._by_first.unsqueeze(-3) @ first], dim=-2)
        return both.view(*both.shape[:-1], targets, steps).movedim(-2, -3)


def triangle_size(width: int) -> int:
    """Entries of a symmetric matrix [d, d] that the others follow from."""
    return width * (width + 1) // 2


def triangle(symmetric: Tensor) -> Tensor:
    """[..., d, d] → [..., d(d + 1)/2], the rows of its upper triangle one after the other."""
    row, column = torch.triu_indices(*symmetric.shape[-2:])
    return symmetric[..., row, column]


def symmetric(triangle: Tensor, width: int) -> Tensor:
    """[..., d(d + 1)/2] → [..., d, d], the inverse of `triangle`."""
    row, column = torch.triu_indices(width, width)
    matrix = triangle.new_zeros(*triangle.shape[:-1], width, width)
    matrix[..., row, column] = triangle
    matrix[..., column, row] = triangle
    return matrix


def sums_fault(gram: Tensor, moment: Tensor, samples: int, largest: float) -> str | None:
    """Why these cannot be sums over so many samples of values with mean square ≤ largest, or None.

    gram: [..., d, d]; moment: [..., d, t].
    """
    squares = gram.diagonal(dim1=-2, dim2=-1)
    bound = samples * largest * (1 + _SLACK)
    if squares.min() < 0:
        return "a sum of squares is negative"
    if squares.max() > bound:
        return f"a mean square is {squares.max() / samples:g}, more than {largest:g}"
    products = squares.unsqueeze(-1) * squares.unsqueeze(-2)
    if (gram.square() > products * (1 + _SLACK) + _NONE).any():
        return "a sum of products is larger than the squares allow"
    some = squares.amax(dim=-1)[..., None, None] * _SLACK + _NONE
    definite = gram + some * torch.eye(gram.shape[-1], dtype=gram.dtype)
    if torch.linalg.cholesky_ex(definite).info.any():
        return "no samples have such products"
    if (moment.square() > squares.unsqueeze(-1) * bound + _NONE).any():
        return "a product with the targets is larger than the squares allow"
    return None
