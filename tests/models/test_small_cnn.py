"""The small CNN against torch's modules, one client at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedproto_app.models.image_classifier import _cnn_features, small_cnn, small_cnn_parameters


def clients_parameters(
    clients: int, shape: tuple[int, int, int], width: int, dim: int
) -> dict[str, Tensor]:
    """Stacked; scales and shifts moved off 1 and 0, so that a mix-up of clients shows."""
    all_parameters = []
    for k in range(clients):
        generator = torch.Generator().manual_seed(k)
        values = small_cnn_parameters(shape, width, dim, generator)
        for name, value in values.items():
            if "norm" in name:
                value += 0.3 * torch.randn(value.shape, generator=generator)
        all_parameters.append(values)
    return {
        "encoder." + name: torch.stack(
            [client_parameters[name] for client_parameters in all_parameters]
        ).requires_grad_()
        for name in all_parameters[0]
    }


def images(clients: int, rows: int, shape: tuple[int, int, int]) -> Tensor:
    return torch.randn(clients, rows, *shape, generator=torch.Generator().manual_seed(99))


def reference(shape: tuple[int, int, int], width: int, dim: int) -> nn.Sequential:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [conv, nn.GroupNorm(4, outputs), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]

    convolutions = nn.Sequential(
        *block(shape[0], width), *block(width, 2 * width), *block(2 * width, 4 * width)
    )
    flat = convolutions(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(flat, dim), nn.ReLU())


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 13, 9)])
def test_equals_torch_for_every_client(clients: int, shape: tuple[int, int, int]) -> None:
    parameters = clients_parameters(clients, shape, 8, 6)
    inputs = images(clients, 4, shape)
    ours = small_cnn(parameters, "encoder.", inputs)
    assert ours.shape == (clients, 4, 6)
    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(7))
    gradients = torch.autograd.grad(ours, list(parameters.values()), upstream)
    for k in range(clients):
        model = reference(shape, 8, 6)
        for reference_value, value in zip(model.parameters(), parameters.values(), strict=True):
            value = value[k].T if value.dim() == 3 and reference_value.dim() == 2 else value[k]
            with torch.no_grad():
                reference_value.copy_(value)
        expected = model(inputs[k])
        expected.backward(upstream[k])
        torch.testing.assert_close(ours[k], expected, rtol=1e-5, atol=1e-5)
        for reference_value, gradient in zip(model.parameters(), gradients, strict=True):
            assert reference_value.grad is not None
            expected_gradient = (
                reference_value.grad.T if reference_value.dim() == 2 else reference_value.grad
            )
            torch.testing.assert_close(gradient[k], expected_gradient, rtol=1e-4, atol=1e-5)


def test_the_grouped_path_of_a_gpu_equals_the_loop() -> None:
    parameters = clients_parameters(3, (3, 16, 16), 8, 6)
    inputs = images(3, 4, (3, 16, 16))
    grouped = _cnn_features(parameters, "encoder.blocks.", inputs)
    for k in range(3):
        client_parameters = {name: value[k : k + 1] for name, value in parameters.items()}
        looped = _cnn_features(client_parameters, "encoder.blocks.", inputs[k : k + 1])
        torch.testing.assert_close(grouped[k : k + 1], looped, rtol=1e-5, atol=1e-5)


def test_a_norm_needs_no_batch() -> None:
    parameters = clients_parameters(2, (1, 8, 8), 4, 6)
    inputs = images(2, 5, (1, 8, 8))
    together = small_cnn(parameters, "encoder.", inputs)
    alone = torch.cat([small_cnn(parameters, "encoder.", row) for row in inputs.split(1, 1)], 1)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_close() -> None:
    parameters = clients_parameters(2, (3, 16, 16), 8, 32)
    inputs = images(2, 4, (3, 16, 16))
    exact = small_cnn(parameters, "encoder.", inputs)
    with torch.autocast("cpu", torch.bfloat16):
        rough = small_cnn(parameters, "encoder.", inputs)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).norm() < 0.02 * exact.norm()
    gradients = torch.autograd.grad(rough.float().sum(), list(parameters.values()))
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)
