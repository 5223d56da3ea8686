"""Attacks by an observer of the arrays that clients send. Pure functions of arrays.

Reconstruction: a decoder learned from other clients, whose data the attacker has, and a window from
the gradient of one sample. Membership: scores whose area under the curve measures how well members
are distinguished from other windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler
from torch import Tensor

Vectors = NDArray[np.float64]
PENALTIES = np.logspace(-3, 6, 19)
DRAWS = 1000  # of a bootstrap


class Estimate(NamedTuple):
    """A value with a 95% confidence interval by bootstrap over clients."""

    value: float
    low: float
    high: float


def decoded(vectors: Vectors, secrets: Vectors) -> Vectors:
    """Return each client's secret, [N, p], as ridge regression on the others guesses it.

    vectors: [N, d], as sent. secrets: [N, p]. The penalty is chosen by leaving out each of the
    others in turn.
    """
    guesses = np.empty_like(secrets)
    for client in range(len(vectors)):
        rows = np.arange(len(vectors)) != client
        scale = StandardScaler().fit(vectors[rows])
        model = RidgeCV(PENALTIES).fit(scale.transform(vectors[rows]), secrets[rows])
        guesses[client] = model.predict(scale.transform(vectors[[client]]))[0]
    return guesses


def mean_of_others(secrets: Vectors) -> Vectors:
    """Return the guess without any information from the client, [N, p]."""
    return np.asarray((secrets.sum(axis=0) - secrets) / (len(secrets) - 1))


def explained(guesses: Vectors, secrets: Vectors) -> Estimate:
    """Return the share of the squared error of `mean_of_others` that the guesses save.

    1 means that every secret was guessed, 0 that nothing was learned. Below 0 the guesses mislead.
    """
    errors = np.square(guesses - secrets).sum(axis=1)
    blind = np.square(mean_of_others(secrets) - secrets).sum(axis=1)
    return bootstrapped(lambda drawn: 1 - errors[drawn].sum() / blind[drawn].sum(), len(errors))


def correlation(guesses: Vectors, secrets: Vectors) -> float:
    """Return the mean over clients of the correlation of guess and secret."""
    pairs = zip(guesses, secrets, strict=True)
    return float(np.mean([np.corrcoef(guess, secret)[0, 1] for guess, secret in pairs]))


def membership_area(members: Sequence[Vectors], strangers: Sequence[Vectors]) -> Estimate:
    """Return the area under the curve of scores: the chance that a member's score is higher than
    a stranger's. Client by client, then the mean: windows of different clients are not compared.

    members, strangers: for each client the scores of its windows.
    """
    pairs = zip(members, strangers, strict=True)
    areas = np.array([_area(mine, stranger_scores) for mine, stranger_scores in pairs])
    return bootstrapped(lambda drawn: areas[drawn].mean(), len(areas))


def _area(members: Vectors, strangers: Vectors) -> float:
    """Return the Mann-Whitney statistic, where ties count half."""
    ranks = rankdata(np.concatenate([members, strangers]))[: len(members)]
    wins = ranks.sum() - len(members) * (len(members) + 1) / 2
    return float(wins / (len(members) * len(strangers)))


def bootstrapped(figure: Callable[[NDArray[np.int64]], float], clients: int) -> Estimate:
    rng = np.random.default_rng(0)
    draws = [figure(rng.integers(0, clients, clients)) for _ in range(DRAWS)]
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(float(figure(np.arange(clients))), float(low), float(high))


def in_mean(windows: Vectors, mean: Vectors, population: Vectors) -> Vectors:
    """Return how likely each window is a member of a mean, [n]: Σ (x − p)(m − p), the likelihood
    ratio for independent values of equal variance (Dwork et al., FOCS 2015).

    windows: [n, d]. mean: m [d], as sent. population: p [d], the attacker's guess without it.
    """
    return np.asarray((windows - population) @ (mean - population))


def in_products(windows: Vectors, gram: Vectors) -> Vectors:
    """Return how likely each window is a member of XᵀX, [n]: minus its leverage
    xᵀ(XᵀX + λI)⁻¹x, which is lower for members.

    windows: [n, d]. gram: [d, d].
    """
    ridge = 1e-6 * np.trace(gram) / len(gram) * np.eye(len(gram))
    solved = np.linalg.solve(gram + ridge, windows.T).T
    return np.asarray(-(windows * solved).sum(axis=1))


def inverted(
    gradient_of: Callable[[Tensor, Tensor], Sequence[Tensor]],
    observed: Sequence[Tensor],
    inputs: Tensor,
    target: Tensor,
    iterations: int = 300,
) -> Tensor:
    """Return the inputs whose gradient is most like the observed one (Zhu, Liu, Han, NeurIPS 2019).

    gradient_of: (inputs, target) → gradients, differentiable. inputs, target: where to begin.
    Minimises the squared difference of the gradients, relative to the observed ones, by L-BFGS.
    """
    guess = [inputs.clone().requires_grad_(), target.clone().requires_grad_()]
    size = sum(float(gradient.square().sum()) for gradient in observed)
    search = torch.optim.LBFGS(
        guess, max_iter=iterations, history_size=50, line_search_fn="strong_wolfe",
        tolerance_grad=1e-12, tolerance_change=1e-14,
    )  # fmt: skip

    def objective() -> Tensor:
        search.zero_grad()
        gradients = gradient_of(*guess)
        pairs = zip(gradients, observed, strict=True)
        loss = (
            torch.stack(
                [(gradient - target_gradient).square().sum() for gradient, target_gradient in pairs]
            ).sum()
            / size
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    search.step(objective)  # type: ignore[no-untyped-call]
    return guess[0].detach()
