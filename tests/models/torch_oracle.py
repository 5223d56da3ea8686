"""Comparisons with torch's modules, which compute one client at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from fedproto_app.models.model import Model

Close = Callable[[Tensor, Tensor], None]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=seeded(seed))


def stacked(
    clients: Sequence[dict[str, Tensor]], prefix: str = "", dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Return leaves with a first axis of clients, whose names begin with the prefix."""
    values = {name: torch.stack([client[name] for client in clients]) for name in clients[0]}
    return {prefix + name: value.to(dtype).requires_grad_() for name, value in values.items()}


def clients_encoders(
    clients: int, model: Model, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Encoders whose scales, shifts and biases are moved, so that a mix-up of clients shows."""
    drawn = []
    for k in range(clients):
        generator = seeded(k)
        drawn.append(model.encoder_parameters(generator))
        for value in drawn[-1].values():
            if value.dim() == 1:
                value += 0.3 * torch.randn(value.shape, generator=generator)
    return stacked(drawn, dtype=dtype)


def as_torch(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a client's value as torch stores it: matrices and kernels over time are turned."""
    turned = value.permute(*reversed(range(value.dim()))) if value.dim() in (2, 3) else value
    return turned.reshape(parameter.shape)


def require_torchs(
    outputs: Tensor,
    inputs: Tensor,
    parameters: Iterable[Tensor],
    make_module: Callable[[], nn.Module],
    *,
    torchs: Callable[[nn.Module], Iterable[Tensor]] = nn.Module.parameters,
    call: Callable[[nn.Module, Tensor, int], Tensor] = lambda module, inputs, _: module(inputs),
    close: Close = torch.testing.assert_close,
    gradients_close: Close | None = None,
) -> None:
    """Compare outputs and gradients with torch's module, client by client.

    outputs: computed from the inputs and parameters, which are leaves with a first axis of clients.
    torchs: the module's parameters in the same order. call: gives a client's outputs.
    """
    parameters, compare = list(parameters), gradients_close or close
    upstream = normal(*outputs.shape, seed=7, dtype=outputs.dtype)
    of_inputs, *gradients = torch.autograd.grad(
        outputs, [inputs, *parameters], upstream, materialize_grads=True
    )
    for k, client_inputs in enumerate(inputs):
        module = make_module().to(inputs.dtype)
        expected_parameters = list(torchs(module))
        with torch.no_grad():
            for parameter, value in zip(expected_parameters, parameters, strict=True):
                parameter.copy_(as_torch(value[k], parameter))
        leaf = client_inputs.detach().requires_grad_()
        expected = call(module, leaf, k)
        expected.backward(upstream[k])
        close(outputs[k], expected)
        compare(of_inputs[k], leaf.grad)
        for gradient, parameter in zip(gradients, expected_parameters, strict=True):
            compare(as_torch(gradient[k], parameter), parameter.grad)


def require_close_in_bfloat16(
    encode: Callable[[], Tensor], parameters: dict[str, Tensor], bound: float
) -> None:
    """Compare the outputs under autocast with exact outputs. Gradients must stay float32."""
    exact = encode()
    with torch.autocast("cpu", torch.bfloat16):
        rough = encode()
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).norm() < bound * exact.norm()
    gradients = torch.autograd.grad(rough.float().sum(), list(parameters.values()))
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)
