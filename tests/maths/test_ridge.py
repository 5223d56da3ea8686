"""Ridge regression from sums: by hand, against scikit-learn, and what sums cannot be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from fedproto_app.maths.ridge import (
    Eliminated,
    clipped_samples,
    definite,
    solve,
    sums,
    sums_fault,
    symmetric,
    triangle,
    triangle_size,
)


def draws(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_one_regressor_by_hand() -> None:
    regressors, targets = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([[1.0], [3.0], [9.0]])
    gram, moment = sums(regressors, targets, torch.tensor([1.0, 1.0, 0.0]))
    assert (gram.tolist(), moment.tolist()) == ([[5]], [[7]])  # 1 + 4, 1 · 1 + 2 · 3
    assert solve(gram, moment, 1.0).item() == pytest.approx(7 / 6)
    assert solve(gram, moment, 1.0, 2.0).item() == pytest.approx(9 / 6)  # (7 + 1 · 2) / (5 + 1)
    assert solve(gram, moment, 1e12, 2.0).item() == pytest.approx(2)
    assert solve(-gram, moment, 1.0).isnan().all()


def test_it_is_scikit_learns_and_sums_add_up() -> None:
    regressors, targets, weights = draws(2, 30, 5), draws(2, 30, 2), torch.ones(2, 30)
    weights[:, 20:] = 0
    gram, moment = sums(regressors, targets, weights)
    for client in range(2):
        oracle = Ridge(alpha=0.7, fit_intercept=False)
        oracle.fit(regressors[client, :20].double(), targets[client, :20].double())
        solution = solve(gram, moment, 0.7)[client]
        np.testing.assert_allclose(solution.T, oracle.coef_, rtol=1e-9)
    first = sums(regressors[:, :7], targets[:, :7], weights[:, :7])
    later = sums(regressors[:, 7:], targets[:, 7:], weights[:, 7:])
    torch.testing.assert_close(first[0] + later[0], gram)
    torch.testing.assert_close(first[1] + later[1], moment)


def test_each_regressor_may_have_its_penalty_and_target() -> None:
    gram, moment = torch.eye(2), torch.tensor([[3.0], [3.0]])
    solution = solve(gram, moment, torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [6.0]]))
    # (3 + 1 · 1) / (1 + 1) and (3 + 2 · 6) / (1 + 2)
    assert solution.flatten().tolist() == pytest.approx([2, 5])


@pytest.mark.parametrize("penalty", [1e-3, 2.0, math.inf])
def test_eliminating_the_last_regressors_first_gives_the_same(penalty: float) -> None:
    """Two problems with 4 + 3 regressors, two pairs of penalties and two targets."""
    gram, moment = sums(draws(2, 30, 7), draws(2, 30, 2), torch.ones(2, 30))
    penalties, targets = torch.tensor([[0.1] * 4, [0.1, 2, 3, 4]]).double(), draws(2, 4, 2).double()
    solution = Eliminated(gram, moment, 4, penalty).solve(penalties, targets)
    assert solution.shape == (2, 2, 2, 7, 2)
    used = 4 if math.isinf(penalty) else 7
    for pair, of_first in enumerate(penalties):
        for number, target in enumerate(targets):
            all_penalties = torch.cat([of_first, of_first.new_full((3,), penalty)])[:used]
            toward = torch.cat([target, target.new_zeros(3, 2)])[:used]
            expected = solve(gram[:, :used, :used], moment[:, :used], all_penalties, toward)
            torch.testing.assert_close(solution[:, pair, number, :used], expected)
            assert not solution[:, pair, number, used:].any()


def test_what_is_not_positive_fails_and_not_its_neighbours() -> None:
    gram, moment = torch.stack([torch.eye(3), -torch.eye(3)]).double(), draws(2, 3, 1).double()
    solution = Eliminated(gram, moment, 2, 0.5).solve(
        torch.ones(1, 2).double(), torch.zeros(1, 2, 1)
    )
    assert solution[0].isfinite().all()
    assert solution[1].isnan().any()


def test_the_triangle_says_all_of_a_symmetric_matrix() -> None:
    matrix = torch.tensor([[1.0, 2, 3], [2, 4, 5], [3, 5, 6]])
    assert triangle(matrix).tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(symmetric(triangle(matrix), 3), matrix)
    assert triangle_size(30) + 30 == 495


def test_true_sums_have_no_fault_and_others_do() -> None:
    targets = draws(30, 1)
    gram, moment = sums(draws(30, 5), targets, torch.ones(30))
    squares = float(targets.square().sum())

    def fault(gram: torch.Tensor, moment: torch.Tensor) -> str:
        return str(sums_fault(gram, moment, 30, 3.0, squares))

    assert fault(gram.float().double(), moment.float().double()) == "None"  # as they travel
    wrong = gram.clone()
    wrong[0, 0] = -1
    assert "negative" in fault(wrong, moment)
    wrong = gram.clone()
    wrong[0, 1] = wrong[1, 0] = 1e3
    assert "no samples" in fault(wrong, moment)
    assert "mean square is" in fault(gram * 1e20, moment)
    assert "products with the targets" in fault(gram, moment * 1e6)
    zeros = torch.zeros_like(gram)
    assert "products with the targets" in fault(zeros, torch.full_like(moment, 1e-9))
    zeros[0, 1] = zeros[1, 0] = 1e-9
    assert "no samples" in fault(zeros, moment * 0)


@pytest.mark.parametrize(
    ("gram", "moment"),
    [
        # Two regressors that are always equal, and a target that only one of them explains.
        ([[1.0, 1.0], [1.0, 1.0]], [1.0, -1.0]),
        # Squares 1 ± 0.99 along the diagonals: (1, −1) explains 2 · 0.5² / 0.01 = 50 of 1.
        ([[1.0, 0.99], [0.99, 1.0]], [0.5, -0.5]),
        # Each product alone is possible, all together explain three times the target.
        ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [1.0, 1.0, 1.0]),
        # Values of a second, small scale.
        ([[1.0, 1e-6], [1e-6, 1e-12]], [1.0, -1e-6]),
    ],
)
def test_products_that_only_pairs_allow_are_refused(
    gram: list[list[float]], moment: list[float]
) -> None:
    """Each product with the target is at most as large as the two squares allow."""
    products, with_target = torch.tensor(gram).double(), torch.tensor(moment).double()
    assert (with_target.square() <= products.diagonal() * (1 + 1e-6)).all()
    fault = sums_fault(products, with_target[:, None], 1, 1.0, 1.0)
    assert "explain a sum of squares of" in str(fault)
    equal_to_the_first = products[:, :1]
    assert sums_fault(products, equal_to_the_first, 1, 1.0, 1.0) is None


@given(
    st.integers(0, 10_000),
    st.integers(1, 40),
    st.integers(1, 60),
    st.sampled_from(["plain", "constant", "equal", "nearly equal", "scales", "missing"]),
    st.sampled_from([1.0, 1 / 3]),
)
def test_no_true_sums_are_refused(
    seed: int, samples: int, width: int, kind: str, share: float
) -> None:
    """Also of fewer samples than regressors, and of targets that the regressors explain."""
    rng = np.random.default_rng(seed)
    regressors, mask = rng.normal(size=(samples, width)), np.ones(samples)
    match kind:
        case "constant":
            regressors[:, : width // 2 + 1] = rng.choice([0.0, 1.0, -3.0])
        case "equal":
            regressors[:] = regressors[:, :1]
        case "nearly equal":
            regressors = regressors[:, :1] + 1e-4 * regressors
        case "scales":
            regressors *= 10.0 ** rng.integers(-12, 4, width)
        case "missing":
            mask = rng.integers(0, 2, samples).astype(float)
    weights = (
        rng.normal(size=(width, 2)) / np.maximum(np.abs(regressors).max(axis=0), 1e-30)[:, None]
    )
    targets = regressors @ weights + rng.choice([0.0, 1.0]) * rng.normal(size=(samples, 2))
    x, y = torch.from_numpy(regressors).float(), torch.from_numpy(targets).float()
    used = torch.from_numpy(mask)
    gram, moment = (np.float32(share) * value.float() for value in sums(x, y, used))
    largest = float(x.square().max())
    squares = share * float((y.double().square() * used[:, None]).sum(dim=0).max())
    assert sums_fault(gram.double(), moment.double(), samples, largest, squares) is None


def test_a_step_without_any_sample_has_true_sums() -> None:
    gram, moment = sums(
        draws(2, 30, 5), draws(2, 30, 1), torch.tensor([[1.0], [0.0]]).expand(2, 30)
    )
    assert not gram[1].any()
    assert sums_fault(gram, moment, 30, 3.0, 30.0) is None


@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_a_sample_adds_no_more_to_regressions_sums_than_its_bound(seed: int, clip: float) -> None:
    """Samples have lengths up to some thousand, and weights 0 or 1."""
    torch.manual_seed(seed)
    x, y = torch.randn(1, 5) * 10 ** (seed % 4), torch.randn(1, 1) * 10 ** (seed % 3)
    gram, moment = sums(*clipped_samples(x, y, clip), torch.ones(1))
    length = torch.cat([triangle(gram), moment.flatten()]).norm()
    assert float(length) <= clip**2 * (1 + 1e-6)


def test_what_may_be_noise_alone_is_raised_to_the_noise() -> None:
    """Eigenvalues 100 and 1 of two entries. Noise of 1 has eigenvalues up to 2·√2 = 2.83."""
    turned = torch.tensor([[0.6, -0.8], [0.8, 0.6]]).double()
    gram = turned @ torch.diag(torch.tensor([100.0, 1.0]).double()) @ turned.T
    values = torch.linalg.eigvalsh(definite(gram, 1.0))
    assert values.tolist() == pytest.approx([8**0.5, 100.0])
