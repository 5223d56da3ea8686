"""Fixed random kernels of sequences: their shares and maxima, and no trace of the padding."""

from __future__ import annotations

import torch

from fedproto_app.strategies.analytic.classes_learner import RandomKernelClassifier


def model_of(seed: int = 0, kernels: int = 30, dimensions: int = 2) -> RandomKernelClassifier:
    return RandomKernelClassifier(dimensions, 4, kernels, 20, torch.Generator().manual_seed(seed))


def test_padding_and_company_change_nothing() -> None:
    draws = torch.Generator().manual_seed(1)
    sequences = torch.randn(1, 3, 20, 2, generator=draws)
    lengths = torch.tensor([[20, 9, 1]])
    for row, length in enumerate(lengths[0].tolist()):
        sequences[0, row, length:] = 0
    model = model_of()
    together = model.encode({}, sequences, lengths)
    assert together.shape == (1, 3, 60)
    assert torch.isfinite(together).all()
    for row, length in enumerate(lengths[0].tolist()):
        alone = model.encode({}, sequences[:, row : row + 1, :length], lengths[:, row : row + 1])
        torch.testing.assert_close(together[:, row : row + 1], alone)


def test_shares_and_maxima_of_a_constant() -> None:
    # Kernels have mean 0, so inside a long constant the response is the bias alone.
    sequence = torch.full((1, 1, 400, 1), 3.0)
    features = model_of(dimensions=1).encode({}, sequence, torch.tensor([[400]]))[0, 0]
    shares, maxima = features.split(30)
    assert ((shares - shares.sign()).abs() < 0.25).all()  # only the ends differ
    assert (maxima >= -1).all()


def test_the_same_for_all_and_others_for_another_seed() -> None:
    sequences, lengths = torch.randn(1, 2, 20, 2), torch.tensor([[20, 20]])
    first, repeated, other_seed = (
        model_of(seed).encode({}, sequences, lengths) for seed in (0, 0, 1)
    )
    torch.testing.assert_close(first, repeated, atol=0, rtol=0)
    assert not torch.allclose(first, other_seed)
