"""The peers of the divergence matrix compute the same."""

from __future__ import annotations

import torch

from benchmarks.jsd import by_scipy, by_torch
from fedproto_app.maths.divergence import pairwise_divergence


def test_the_peers_agree_with_the_app() -> None:
    prototypes = torch.randn(40, 24, 32, generator=torch.Generator().manual_seed(0))
    ours = pairwise_divergence(prototypes).double()
    torch.testing.assert_close(by_scipy(prototypes), ours, rtol=0, atol=1e-6)
    torch.testing.assert_close(by_torch(prototypes).double(), ours, rtol=0, atol=1e-6)
