"""Fixed features of sequences: random kernels, and shares of positive responses by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedproto_app.data.sequences.clients import scaled_by_itself
from fedproto_app.models.sequence_kernels import (
    RandomKernels,
    SequenceKernelClassifier,
    positive_shares,
    responses,
    scaled_by_themselves,
)


def test_responses_and_shares_by_hand() -> None:
    """The first kernel weighs taps 0 to 2 by 2 and the others by −1, so a 1 at step 1 answers with
    w₅, w₄, w₃, w₂ = −1, −1, −1, 2. The root mean square is √(7/4) = 1.32."""
    sequence, used = torch.tensor([[[0.0, 1.0, 0.0, 0.0]]]), torch.ones(84, 1)
    response = responses(sequence, used, dilation=1)
    assert response.shape == (1, 84, 4)
    assert response[0, 0].tolist() == [-1, -1, -1, 2]
    # With dilation 2 the taps are two steps apart, and the 1 meets no tap at steps 0 and 2.
    assert responses(sequence, used, dilation=2)[0, 0].tolist() == [0, -1, 0, -1]
    inside = torch.ones(1, 1, 4, dtype=torch.bool)
    first = response[:, :1]
    for z, share in ((1.6, 0), (1, 0.25), (-0.7, 0.25), (-0.8, 1)):  # b = 2.1, 1.3, −0.9, −1.1
        assert positive_shares(first, torch.tensor([z]), inside).item() == share
    # Of the first three steps alone the root mean square is 1.
    inside[..., 3] = False
    assert positive_shares(first, torch.tensor([-1.1]), inside).item() == 1.0
    assert positive_shares(first, torch.tensor([-0.9]), inside).item() == 0.0


@pytest.mark.parametrize("features", [2, 60])
def test_padding_and_company_change_nothing(features: int) -> None:
    draws = torch.Generator().manual_seed(1)
    sequences = torch.randn(1, 3, 20, 2, generator=draws)
    lengths = torch.tensor([[20, 9, 1]])
    for row, length in enumerate(lengths[0].tolist()):
        sequences[0, row, length:] = 0
    model = SequenceKernelClassifier(2, 4, features, 20, torch.Generator().manual_seed(0))
    together = model.encode({}, sequences, lengths)
    assert together.shape == (1, 3, features)
    assert torch.isfinite(together).all()
    for row, length in enumerate(lengths[0].tolist()):
        alone = model.encode({}, sequences[:, row : row + 1, :length], lengths[:, row : row + 1])
        torch.testing.assert_close(together[:, row : row + 1], alone, rtol=1e-4, atol=1e-5)


def test_shares_and_maxima_of_a_constant() -> None:
    # Kernels have mean 0, so inside a long constant the response is the bias alone.
    kernels = RandomKernels(1, 30, 20, torch.Generator().manual_seed(0))
    parts = kernels.features(torch.full((1, 1, 400), 3.0), torch.ones(1, 1, 400, dtype=torch.bool))
    shares, maxima = torch.cat(parts, dim=1)[0].split(30)
    assert ((shares - shares.sign()).abs() < 0.25).all()  # only the ends differ
    assert (maxima >= -1).all()


def test_scaled_by_themselves_as_the_data_are() -> None:
    draws, lengths = np.random.default_rng(0), (7, 4, 5)
    sequences = [draws.normal(100, 3, (length, 2)).astype(np.float32) for length in lengths]
    sequences[2][:] = 0.1  # constant
    padded = torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, sequences)), True)
    inside = (torch.arange(7) < torch.tensor(lengths)[:, None])[..., None]
    scaled = scaled_by_themselves(padded, inside)
    for row, sequence in enumerate(sequences):
        ours = scaled[row, : len(sequence)].numpy()
        np.testing.assert_allclose(ours, scaled_by_itself(sequence), rtol=1e-5, atol=1e-6)
        assert not scaled[row, len(sequence) :].any()
