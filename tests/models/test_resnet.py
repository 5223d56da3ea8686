"""ResNet-18 against an independent build of torch's modules, one client at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedproto_app.models.image_classifier import resnet, resnet_parameters


class Block(nn.Module):
    """A basic block with torchvision's names."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(32, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(32, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return torch.relu(y + self.downsample(x))


class Reference(nn.Module):
    def __init__(self, channels: int, stem_stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, stem_stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(32, 64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x)).relu()
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)


def clients_parameters(clients: int, channels: int) -> dict[str, Tensor]:
    all_parameters = []
    for k in range(clients):
        generator = torch.Generator().manual_seed(k)
        values = resnet_parameters(channels, generator)
        for name, value in values.items():
            if value.dim() == 1:  # off 1 and 0, so that a mix-up of clients shows
                value += 0.3 * torch.randn(value.shape, generator=generator)
                assert "norm" in name or "downsample.1" in name
        all_parameters.append(values)
    return {
        "encoder." + name: torch.stack(
            [client_parameters[name] for client_parameters in all_parameters]
        ).requires_grad_()
        for name in all_parameters[0]
    }


def test_size() -> None:
    parameters = resnet_parameters(3, torch.Generator().manual_seed(0))
    assert sum(value.numel() for value in parameters.values()) == 11_168_832
    shapes = {name: value.shape for name, value in Reference(3, 1).named_parameters()}
    assert {name: value.shape for name, value in parameters.items()} == shapes


@pytest.mark.parametrize(
    ("clients", "shape", "stem_stride"),
    [(2, (3, 32, 32), 1), (1, (3, 64, 64), 2), (2, (1, 8, 8), 1)],
)
def test_equals_torch_for_every_client(
    clients: int, shape: tuple[int, int, int], stem_stride: int
) -> None:
    parameters = clients_parameters(clients, shape[0])
    generator = torch.Generator().manual_seed(9)
    inputs = torch.randn(clients, 2, *shape, generator=generator)
    ours = resnet(parameters, "encoder.", inputs)
    assert ours.shape == (clients, 2, 512)
    upstream = torch.randn(ours.shape, generator=generator)
    gradients = torch.autograd.grad(ours, list(parameters.values()), upstream)
    for k in range(clients):
        model = Reference(shape[0], stem_stride)
        model.load_state_dict(
            {name.removeprefix("encoder."): value[k] for name, value in parameters.items()}
        )
        expected = model(inputs[k])
        expected.backward(upstream[k])
        torch.testing.assert_close(ours[k], expected, rtol=1e-5, atol=1e-5)
        reference_parameters = dict(model.named_parameters())
        for name, gradient in zip(parameters, gradients, strict=True):
            expected_gradient = reference_parameters[name.removeprefix("encoder.")].grad
            assert expected_gradient is not None
            assert (gradient[k] - expected_gradient).norm() <= 1e-4 * expected_gradient.norm(), name


def test_bfloat16_is_close() -> None:
    parameters = clients_parameters(1, 1)
    inputs = torch.randn(1, 2, 1, 16, 16, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        exact = resnet(parameters, "encoder.", inputs)
        with torch.autocast("cpu", torch.bfloat16):
            rough = resnet(parameters, "encoder.", inputs)
    assert (rough.float() - exact).norm() < 0.05 * exact.norm()
