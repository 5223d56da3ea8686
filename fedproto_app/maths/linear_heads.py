"""Task heads: linear models of vectors that a frozen encoder made, fitted by scikit-learn.

A head is [outputs, D + 1]; its last column is the bias. All heads of a run have one shape, whatever
classes a client has, so that they can be compared and averaged (Fed-REACT, section 2).
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

Head = NDArray[np.float32]
Vectors = NDArray[np.float32]

_MOST_ITERATIONS = 2000  # liblinear's; heads average, so the last digits do not matter


def fit_classifier(
    vectors: Vectors, labels: NDArray[np.int64], classes: int, penalty: float, seed: int
) -> Head:
    """A linear support vector machine, one class against the rest: [n, D], [n] → [C, D + 1].

    minimises ½(‖w‖² + b²) + penalty · Σ max(0, 1 − y·(w·x + b))²: liblinear's bias is the weight
    of an input that is always 1. A class without a vector has weights 0 and bias −1, the only class
    of all has weights 0 and bias 1: what a free bias finds where all labels are equal.
    """
    from sklearn.exceptions import ConvergenceWarning  # slow to import, and seldom used
    from sklearn.svm import LinearSVC

    head = np.zeros((classes, vectors.shape[1] + 1), dtype=np.float32)
    head[:, -1] = -1.0
    present = np.unique(labels)
    if len(present) == 1:
        head[present[0], -1] = 1.0
        return head
    machine = LinearSVC(C=penalty, random_state=seed, max_iter=_MOST_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine.fit(vectors, labels)
    fitted = np.concatenate([machine.coef_, machine.intercept_[:, None]], axis=1)
    # Of two classes scikit-learn keeps one machine, the second one's; the first's is its mirror.
    head[present] = fitted if len(present) > 2 else np.concatenate([-fitted, fitted])
    return head


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
