"""Task heads: linear models of vectors that a frozen encoder made.

A head is [outputs, D + 1]; its last column is the bias. All heads of a run have one shape, whatever
classes a client has, so that they can be compared and averaged (Fed-REACT, section 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Head = NDArray[np.float32]
Vectors = NDArray[np.float32]
Exact = NDArray[np.float64]

_MOST_ITERATIONS = 100  # Newton's steps; some five are the rule
_SHORTEST_STEP = 2.0**-20  # below, only rounding keeps the objective from falling


def fit_classifier(
    vectors: Vectors, labels: NDArray[np.int64], classes: int, penalty: float
) -> Head:
    """A linear support vector machine, one class against the rest: [n, D], [n] → [C, D + 1].

    minimises ½(‖w‖² + b²) + penalty · Σ max(0, 1 − y·(w·x + b))² for each class, as liblinear does:
    the bias is the weight of an input that is always 1. A class without a vector has weights 0 and
    bias −1, the only class of all has weights 0 and bias 1: what a free bias finds where all labels
    are equal.
    """
    head = np.zeros((classes, vectors.shape[1] + 1), dtype=np.float32)
    head[:, -1] = -1.0
    present = np.unique(labels)
    if len(present) == 1:
        head[present[0], -1] = 1.0
        return head
    inputs = np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1, dtype=np.float64)
    # A minimum is a sum of inputs. With fewer of them than weights we look for it in a basis of
    # their span: n unknowns, as in the kernel form.
    basis = np.linalg.qr(inputs.T)[0] if len(inputs) < inputs.shape[1] else None
    reduced = inputs if basis is None else inputs @ basis
    signs = np.where(labels[:, None] == present, 1.0, -1.0)
    starts = _ridge(reduced, signs, penalty)  # of weights of 0 all vectors are errors
    for column, label in enumerate(present):
        weights = _minimise_squared_hinge(reduced, signs[:, column], penalty, starts[:, column])
        head[label] = weights if basis is None else basis @ weights
    return head


def _minimise_squared_hinge(inputs: Exact, signs: Exact, penalty: float, minimum: Exact) -> Exact:
    """The v that minimises ½‖v‖² + penalty · Σ max(0, 1 − y·(v·x))²: [n, p], [n] → [p].

    minimum: where the first step goes from 0, the `_ridge` of all vectors. Newton's method as
    Mangasarian 2002 has it ("A finite Newton method for classification"): while the same vectors
    are errors, the objective is a square whose minimum one linear system gives. A step that would
    not let the objective fall is halved.
    """

    def objective(weights: Exact) -> float:
        errors = np.maximum(0.0, 1.0 - signs * (inputs @ weights))
        return float(0.5 * weights @ weights + penalty * errors @ errors)

    weights = np.zeros(inputs.shape[1])
    reached = penalty * len(inputs)
    wrong = np.ones(len(inputs), dtype=bool)
    for _ in range(_MOST_ITERATIONS):
        step = 1.0
        while not (found := objective(weights + step * (minimum - weights))) < reached:
            step /= 2
            if step < _SHORTEST_STEP:
                return weights
        weights, reached = weights + step * (minimum - weights), found
        before, wrong = wrong, signs * (inputs @ weights) < 1.0
        if step == 1.0 and np.array_equal(before, wrong):
            break
        minimum = _ridge(inputs[wrong], signs[wrong], penalty)
    return weights


def _ridge(inputs: Exact, targets: Exact, penalty: float) -> Exact:
    """The v that minimises ½‖v‖² + penalty · Σ (y − v·x)²: [m, p], [m, …] → [p, …].

    By the smaller system: of the inputs' products with each other (the Gram matrix), or of the
    weights'.
    """
    few = len(inputs) < inputs.shape[1]
    products = inputs @ inputs.T if few else inputs.T @ inputs
    # Where the pull drowns in the rounding of huge inputs, the smallest that can be felt.
    felt = len(products) * np.finfo(np.float64).eps * products.diagonal().max(initial=0.0)
    products[np.diag_indices_from(products)] += max(0.5 / penalty, felt)
    if few:
        return np.asarray(inputs.T @ np.linalg.solve(products, targets), np.float64)
    return np.asarray(np.linalg.solve(products, inputs.T @ targets), np.float64)


def fit_regressor(vectors: Vectors, targets: NDArray[np.float64], penalty: float) -> Head:
    """A linear layer by least squares: [n, D], [n] → [1, D + 1].

    minimises ½‖w‖² + penalty · Σ (y − w·x − b)², in closed form (ridge regression).
    """
    from sklearn.linear_model import Ridge  # slow to import, and seldom used

    ridge = Ridge(alpha=0.5 / penalty).fit(vectors.astype(np.float64), targets)
    return np.append(ridge.coef_, ridge.intercept_)[None].astype(np.float32)


def scores(head: Head, vectors: Vectors) -> NDArray[np.float64]:
    """What a head makes of vectors: [outputs, D + 1], [n, D] → [n, outputs].

    In float64, where no product of float32 numbers overflows.
    """
    exact = head.astype(np.float64)
    made: NDArray[np.float64] = vectors.astype(np.float64) @ exact[:, :-1].T + exact[:, -1]
    return made


def classifier_loss(head: Head, vectors: Vectors, labels: NDArray[np.int64]) -> float:
    """Mean squared hinge loss over vectors, summed over the classes."""
    signs = np.where(np.arange(len(head)) == labels[:, None], 1.0, -1.0)
    gaps = np.maximum(0.0, 1.0 - signs * scores(head, vectors))
    return float((gaps**2).sum(axis=1).mean())


def regressor_loss(head: Head, vectors: Vectors, targets: NDArray[np.float64]) -> float:
    """Mean squared error."""
    errors = scores(head, vectors)[:, 0] - targets
    return float((errors**2).mean())
