"""The gradient norms of FUELS's diagnostics by hand."""

from __future__ import annotations

import torch

from fedproto_app.strategies.fuels.learner import gradient_norms


def test_norms_of_two_clients_by_hand() -> None:
    """∂(3·Σw + v) is (3, 3, 1), and ∂(Σw²/2) is w itself, for client 1 (3, 4)."""
    w = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    v = torch.tensor([5.0, 6.0], requires_grad=True)
    unused = torch.ones(2, requires_grad=True)
    terms = {
        "linear": 3 * w.sum(dim=1) + v,
        "square": w.square().sum(dim=1) / 2,
        "elsewhere": unused * 7,
    }
    norms = gradient_norms(terms, [w, v])
    torch.testing.assert_close(norms["linear"], torch.full((2,), 19.0).sqrt())
    assert norms["square"].tolist() == [0.0, 5.0]
    assert norms["elsewhere"].tolist() == [0.0, 0.0]
    torch.stack(list(terms.values())).sum().backward()  # the graph is still there
    assert w.grad is not None
