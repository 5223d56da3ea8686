"""Ridge regression from sums over samples. The sums of several clients can be added.

Shapes: any axes in front (clients, steps ahead), d regressors. Everything is float64. In float32,
sums over a thousand samples lose the digits that small penalties need.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROUNDING = 2.0**-24  # relative, because sums travel in float32
_SLACK = 1e-3  # relative, the most that rounding can add to sums of squares and to bᵀA⁻¹b
_NONE = 1e-30  # absolute, for sums over no samples


def sums(regressors: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return XᵀX [..., d, d] and XᵀY [..., d, t] of X [..., n, d] and Y [..., n, t].

    weights: the samples' weights [..., n]. A weight of 0 leaves a sample out.
    """
    regressors = regressors.double()
    weighed = (regressors * weights.double().unsqueeze(-1)).transpose(-1, -2)
    return weighed @ regressors, weighed @ targets.double()


def clipped_samples(regressors: Tensor, targets: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """Return X [..., n, d] and Y [..., n, t] with each sample (x, y) shortened to `length`.

    Then one sample changes XᵀX and Xᵀy together by at most length²: ‖x‖⁴ + ‖x‖²y² ≤ length⁴.
    """
    norms = torch.cat([regressors, targets], dim=-1).double().norm(dim=-1, keepdim=True)
    factor = (length / norms.clamp(min=1e-30)).clamp(max=1.0)
    return regressors * factor, targets * factor


def definite(gram: Tensor, deviation: float) -> Tensor:
    """Return the symmetric matrix [..., d, d] with small eigenvalues raised to the noise level.

    deviation: the standard deviation of independent Gaussian noise on every entry of the upper
    triangle. The eigenvalues of such noise reach 2·deviation·√d (Wigner, 1958). Smaller eigenvalues
    of the matrix therefore carry no information and are raised to that bound.
    """
    values, vectors = torch.linalg.eigh(gram)
    least = 2 * deviation * math.sqrt(gram.shape[-1])
    raised: Tensor = vectors @ (values.clamp(min=least).unsqueeze(-1) * vectors.transpose(-1, -2))
    return raised


def solve(
    gram: Tensor, moment: Tensor, penalty: Tensor | float, toward: Tensor | float = 0.0
) -> Tensor:
    """Return the W [..., d, t] that minimises ‖Y − XW‖² + Σ_i penalty_i · ‖W_i − toward_i‖².

    gram: XᵀX [..., d, d]. moment: XᵀY [..., d, t]. penalty: > 0, one for all regressors or one for
    each [..., d]. toward: has the shape of moment. Solves (XᵀX + P) W = XᵀY + P · toward, where P
    is the diagonal matrix of the penalties. W is NaN if XᵀX + P is not positive definite. For true
    sums it always is.
    """
    penalties = torch.as_tensor(penalty, dtype=gram.dtype, device=gram.device)[..., None]
    penalties = penalties.expand(*penalties.shape[:-2], gram.shape[-1], 1)
    ridge = gram + torch.diag_embed(penalties.squeeze(-1))
    right = moment + penalties * toward
    factor, failed = torch.linalg.cholesky_ex(ridge)
    solved = torch.cholesky_solve(right, factor)
    return torch.where((failed > 0)[..., None, None], torch.nan, solved)


class Eliminated:
    """A ridge problem whose last regressors share one penalty and have been eliminated.

    The Schur complement leaves a smaller problem in the first p regressors, so it is cheap to try
    many penalties for these. gram: XᵀX [..., d, d]. moment: XᵀY [..., d, t]. first: p. penalty: the
    penalty of the eliminated regressors. If it is infinite, they are left out.
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
        """Return the solutions [..., c, k, d, t] for each pair of penalties and targets.

        penalties: c penalties of the first regressors [c, p]. toward: k targets for their
        coefficients [k, p, t]. The coefficients of the eliminated regressors are drawn to 0.
        """
        targets, steps = len(toward), toward.shape[2]
        side_by_side = toward.transpose(0, 1).flatten(start_dim=1)  # (p, k·t)
        repeats = [1] * (self.moment.ndim - 1)
        moment = self.moment.repeat(*repeats, targets).unsqueeze(-3)
        first = solve(self._gram.unsqueeze(-3), moment, penalties, side_by_side)
        eliminated = self._without.repeat(*repeats, targets).unsqueeze(-3)
        solutions = torch.cat([first, eliminated - self._by_first.unsqueeze(-3) @ first], dim=-2)
        return solutions.view(*solutions.shape[:-1], targets, steps).movedim(-2, -3)


def triangle_size(width: int) -> int:
    """Return the number of entries in the upper triangle of a matrix [d, d]."""
    return width * (width + 1) // 2


def triangle(symmetric: Tensor) -> Tensor:
    """Return the rows of the upper triangle joined together: [..., d, d] → [..., d(d + 1)/2]."""
    row, column = torch.triu_indices(*symmetric.shape[-2:])
    return symmetric[..., row, column]


def symmetric(triangle: Tensor, width: int) -> Tensor:
    """Invert `triangle`: [..., d(d + 1)/2] → [..., d, d]."""
    row, column = torch.triu_indices(width, width)
    matrix = triangle.new_zeros(*triangle.shape[:-1], width, width)
    matrix[..., row, column] = triangle
    matrix[..., column, row] = triangle
    return matrix


def sums_fault(
    gram: Tensor, moment: Tensor, samples: int, largest: float, target_squares: float
) -> str | None:
    """Return why these cannot be sums over so many samples, or None if they can.

    gram: A = XᵀX [..., d, d]. moment: B = XᵀY [..., d, t]. Both are float64 but were sent in
    float32. largest: the largest possible mean square of a regressor. target_squares: the largest
    possible sum of squares of one target.

    For true sums, bᵀA⁻¹b ≤ Σ y² for each column b of B, because a fit cannot explain more than
    there is. This bounds all products with the targets together. If A is scaled to have the
    diagonal 1, rounding to float32 moves its eigenvalues by less than d·2⁻²⁴. Four times this is
    added to them, so no true sums are refused, however small the squares of some regressors are.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1)
    if squares.min() < 0:
        return "a sum of squares is negative"
    if squares.max() > samples * largest * (1 + _SLACK):
        return f"a mean square is {squares.max() / samples:g}, more than {largest:g}"
    scale = (squares + _NONE).rsqrt().unsqueeze(-1)
    width = gram.shape[-1]
    rounding = 4 * width * _ROUNDING * torch.eye(width, dtype=gram.dtype)
    factor, failed = torch.linalg.cholesky_ex(gram * scale * scale.mT + rounding)
    if failed.any():
        return "no samples have such products"
    whitened = torch.linalg.solve_triangular(factor, moment * scale, upper=False)
    explained = float(whitened.square().sum(dim=-2).max())
    if explained > target_squares * (1 + _SLACK):
        return (
            f"its products with the targets explain a sum of squares of {explained:.3g}, but such "
            f"targets have at most {target_squares:.3g}"
        )
    return None
