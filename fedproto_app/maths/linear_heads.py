"""Task heads: linear models whose inputs are a frozen encoder's vectors.

A head is [outputs, D + 1]. Its last column is the bias. All heads of a run have one shape,
whatever classes a client has, so that they can be compared and averaged (Fed-REACT, section 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Head = NDArray[np.float32]
Vectors = NDArray[np.float32]
Exact = NDArray[np.float64]

_MOST_ITERATIONS = 100  # steps of Newton's method. About five are usual
_SHORTEST_STEP = 2.0**-20  # if no longer step lowers the objective, only rounding prevents it


def fit_classifier(
    vectors: Vectors, labels: NDArray[np.int64], classes: int, penalty: float
) -> Head:
    """Fit linear support vector machines, each class against the rest: [n, D], [n] → [C, D + 1].

    Minimises ½(‖w‖² + b²) + penalty · Σ max(0, 1 − y·(w·x + b))² for each class. As in liblinear,
    the bias is the weight of an input that is always 1. A class without vectors gets weights 0 and
    bias −1. If there is only one class, it gets weights 0 and bias 1. An unpenalised bias would
    have these values too if all labels are equal.
    """
    head = np.zeros((classes, vectors.shape[1] + 1), dtype=np.float32)
    head[:, -1] = -1.0
    present = np.unique(labels)
    if len(present) == 1:
        head[present[0], -1] = 1.0
        return head
    inputs = np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1, dtype=np.float64)
    # The minimum is a linear combination of the inputs. If these are fewer than the weights, we
    # search in a basis of their span, which has n unknowns as in the kernel form.
    basis = np.linalg.qr(inputs.T)[0] if len(inputs) < inputs.shape[1] else None
    reduced = inputs if basis is None else inputs @ basis
    signs = np.where(labels[:, None] == present, 1.0, -1.0)
    starts = _ridge(reduced, signs, penalty)  # at weights 0 all vectors count as errors
    for column, label in enumerate(present):
        weights = _minimise_squared_hinge(reduced, signs[:, column], penalty, starts[:, column])
        head[label] = weights if basis is None else basis @ weights
    return head


def _minimise_squared_hinge(inputs: Exact, signs: Exact, penalty: float, minimum: Exact) -> Exact:
    """Return the v that minimises ½‖v‖² + penalty · Σ max(0, 1 − y·(v·x))²: [n, p], [n] → [p].

    This is Newton's method (Mangasarian 2002, "A finite Newton method for classification"). While
    the same vectors are errors, the objective is quadratic, and a linear system gives its minimum.
    A step that would not lower the objective is halved. minimum: where the first step from 0 leads,
    the `_ridge` solution for all vectors.
    """

    def objective(weights: Exact) -> float:
        errors = np.maximum(0.0, 1.0 - signs * (inputs @ weights))
        return float(0.5 * weights @ weights + penalty * errors @ errors)

    weights = np.zeros(inputs.shape[1])
    reached = penalty * len(inputs)
    wrong = np.ones(len(inputs), dtype=bool)
    for _ in range(_MOST_ITERATIONS):
        step = 1.0
        while not (lowered := objective(weights + step * (minimum - weights))) < reached:
            step /= 2
            if step < _SHORTEST_STEP:
                return weights
        weights, reached = weights + step * (minimum - weights), lowered
        before, wrong = wrong, signs * (inputs @ weights) < 1.0
        if step == 1.0 and np.array_equal(before, wrong):
            break
        minimum = _ridge(inputs[wrong], signs[wrong], penalty)
    return weights


def _ridge(inputs: Exact, targets: Exact, penalty: float) -> Exact:
    """Return the v that minimises ½‖v‖² + penalty · Σ (y − v·x)²: [m, p], [m, …] → [p, …].

    Solves a system over inputs (with the Gram matrix) or over weights, whichever is smaller.
    """
    fewer_inputs = len(inputs) < inputs.shape[1]
    products = inputs @ inputs.T if fewer_inputs else inputs.T @ inputs
    # If rounding errors of huge inputs hide the penalty, take the smallest one that has an effect.
    felt = len(products) * np.finfo(np.float64).eps * products.diagonal().max(initial=0.0)
    products[np.diag_indices_from(products)] += max(0.5 / penalty, felt)
    if fewer_inputs:
        return np.asarray(inputs.T @ np.linalg.solve(products, targets), np.float64)
    return np.asarray(np.linalg.solve(products, inputs.T @ targets), np.float64)


def fit_regressor(vectors: Vectors, targets: NDArray[np.float64], penalty: float) -> Head:
    """Fit a linear layer by ridge regression: [n, D], [n] → [1, D + 1].

    Minimises ½‖w‖² + penalty · Σ (y − w·x − b)² in closed form.
    """
    from sklearn.linear_model import Ridge  # slow to import, and rarely needed

    ridge = Ridge(alpha=0.5 / penalty).fit(vectors.astype(np.float64), targets)
    return np.append(ridge.coef_, ridge.intercept_)[None].astype(np.float32)


def scores(head: Head, vectors: Vectors) -> NDArray[np.float64]:
    """Return a head's outputs for vectors: [outputs, D + 1], [n, D] → [n, outputs].

    Computed in float64, where no product of float32 numbers overflows.
    """
    exact = head.astype(np.float64)
    outputs: NDArray[np.float64] = vectors.astype(np.float64) @ exact[:, :-1].T + exact[:, -1]
    return outputs


def classifier_loss(head: Head, vectors: Vectors, labels: NDArray[np.int64]) -> float:
    """Return the mean squared hinge loss over vectors, summed over the classes."""
    signs = np.where(np.arange(len(head)) == labels[:, None], 1.0, -1.0)
    gaps = np.maximum(0.0, 1.0 - signs * scores(head, vectors))
    return float((gaps**2).sum(axis=1).mean())


def regressor_loss(head: Head, vectors: Vectors, targets: NDArray[np.float64]) -> float:
    """Return the mean squared error."""
    errors = scores(head, vectors)[:, 0] - targets
    return float((errors**2).mean())
