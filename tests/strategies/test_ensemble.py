"""Several models as one."""

from __future__ import annotations

import torch

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.strategies.compared.fedgru import CHOICE, Ensemble, StackedGru, member, of_member

MEMBER = StackedGru(2, 3, WindowLayout(close=2, distances=2, horizon=1, period=4, times=0))


def test_its_forecast_is_the_weighted_mean_of_its_members() -> None:
    """Two clients; what a member of weight 0 says does not matter, not even to the gradient."""
    ensemble, draw = Ensemble(MEMBER, 2), torch.Generator().manual_seed(0)
    initial = ensemble.initial_parameters(draw)
    assert set(initial) == {of_member(n, c) for n in member(initial, 0) for c in (0, 1)}
    assert all(torch.equal(member(initial, 0)[n], v) for n, v in member(initial, 1).items())
    parameters = {n: torch.randn(2, *v.shape, generator=draw) for n, v in initial.items()}
    parameters["decoder.1.weight"][1] = 1e38
    parameters[CHOICE] = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    samples = torch.randn(2, 5, 4, generator=draw) * 100
    alone = []
    for number in (0, 1):
        member_parameters = member(parameters, number)
        alone.append(MEMBER.predict(member_parameters, MEMBER.encode(member_parameters, samples)))
    assert not alone[1][1].isfinite().all() or alone[1][1].abs().max() > 1e37
    weight = parameters["decoder.1.weight"].requires_grad_()
    prediction = ensemble.predict(parameters, ensemble.encode(parameters, samples))
    torch.testing.assert_close(prediction[0], 0.25 * alone[0][0] + 0.75 * alone[1][0])
    assert torch.equal(prediction[1], alone[0][1])
    [gradient] = torch.autograd.grad(prediction.sum(), [weight])
    assert gradient[0].any()
    assert not gradient[1].any()
