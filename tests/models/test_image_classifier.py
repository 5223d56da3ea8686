"""The image encoders against torch's modules, one client at a time, and classifiers with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedproto_app.models.image_classifier import (
    ResNetClassifier,
    SmallCnnClassifier,
    _cnn_features,
    resnet_dim,
)
from fedproto_app.models.model import ENCODER, HEAD, Model
from tests.models.torch_oracle import (
    Close,
    clients_encoders,
    normal,
    require_close_in_bfloat16,
    require_torchs,
    seeded,
    stacked,
)

SHAPE = (1, 8, 8)


def small(shape: tuple[int, int, int], classes: int = 2) -> Model:
    return SmallCnnClassifier(shape, classes, width=8, representation_dim=6)


def images(clients: int, rows: int, shape: tuple[int, int, int]) -> Tensor:
    return normal(clients, rows, *shape, seed=99, dtype=torch.float32)


def small_reference(shape: tuple[int, int, int], width: int, dim: int) -> nn.Sequential:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [conv, nn.GroupNorm(4, outputs), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]

    convolutions = nn.Sequential(
        *block(shape[0], width), *block(width, 2 * width), *block(2 * width, 4 * width)
    )
    flat = convolutions(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(flat, dim), nn.ReLU())


class Block(nn.Module):
    """A basic block with torchvision's names."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return torch.relu(y + self.downsample(x))


def resnet_reference(
    channels: int, stem_stride: int, first: int, groups: tuple[int, int, int, int]
) -> nn.Sequential:
    """first: the channels of the first stage. groups: the groups of each stage's norms."""
    stages, inputs = [], first
    for stage, count in enumerate(groups):
        outputs, stride = first * 2**stage, 1 if stage == 0 else 2
        blocks = Block(inputs, outputs, stride, count), Block(outputs, outputs, 1, count)
        stages.append(nn.Sequential(*blocks))
        inputs = outputs
    conv = nn.Conv2d(channels, first, 3, stem_stride, 1, bias=False)
    stem = conv, nn.GroupNorm(groups[0], first), nn.ReLU()
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def equals_torch(
    model: Model,
    clients: int,
    inputs: Tensor,
    make_reference: Callable[[], nn.Module],
    gradients_close: Close,
) -> None:
    inputs.requires_grad_()
    parameters = clients_encoders(clients, model)
    require_torchs(
        model.encode(parameters, inputs),
        inputs,
        parameters.values(),
        make_reference,
        close=partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5),
        gradients_close=gradients_close,
    )


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 13, 9)])
def test_the_small_cnn_equals_torch_for_every_client(
    clients: int, shape: tuple[int, int, int]
) -> None:
    model, make_reference = small(shape), partial(small_reference, shape, 8, 6)
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
    equals_torch(model, clients, images(clients, 4, shape), make_reference, close)


@pytest.mark.parametrize(
    ("clients", "shape", "stem_stride", "first", "groups"),
    [
        (2, (3, 32, 32), 1, 4, (2, 4, 8, 16)),
        (1, (3, 64, 64), 2, 6, (1, 2, 4, 8)),
        (2, (1, 8, 8), 1, 32, (16, 32, 32, 32)),
    ],
)
def test_the_resnet_equals_torch_for_every_client(
    clients: int,
    shape: tuple[int, int, int],
    stem_stride: int,
    first: int,
    groups: tuple[int, int, int, int],
) -> None:
    model = ResNetClassifier(shape, 2, representation_dim=8 * first)
    make_reference = partial(resnet_reference, shape[0], stem_stride, first, groups)

    def close(ours: Tensor, torchs: Tensor) -> None:
        assert (ours - torchs).norm() <= 1e-4 * torchs.norm()

    equals_torch(model, clients, images(clients, 2, shape), make_reference, close)


@pytest.mark.parametrize(
    ("shape", "at_least", "dim"),
    [
        ((3, 32, 32), 16, 16),
        ((3, 32, 32), 24, 32),
        ((3, 32, 32), 512, 512),
        ((1, 8, 8), 24, 48),  # one pixel remains. With 32, the 16 groups have two values each
        ((1, 8, 8), 64, 80),
        ((1, 8, 8), 128, 128),
        ((1, 9, 8), 64, 64),  # two pixels
        ((3, 64, 64), 16, 16),
    ],
)
def test_the_length_of_the_resnets_representation(
    shape: tuple[int, ...], at_least: int, dim: int
) -> None:
    assert resnet_dim(shape, at_least) == dim


def test_a_narrow_resnet_learns_from_small_images() -> None:
    model = ResNetClassifier(SHAPE, 2, representation_dim=48)
    parameters = stacked([model.initial_parameters(seeded())])
    pixels, labels = torch.randn(1, 16, *SHAPE, generator=seeded(1)), torch.arange(16) % 2
    pixels[0, labels == 1, :, :4] += 1  # the upper half is brighter
    optimizer = torch.optim.SGD(list(parameters.values()), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(15):
        logits = model.predict(parameters, model.encode(parameters, pixels))[0]
        losses.append(nn.functional.cross_entropy(logits, labels))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.1 * losses[0]


def test_the_resnet_has_torchvisions_size_and_names() -> None:
    parameters = ResNetClassifier((3, 32, 32), 2, 512).encoder_parameters(seeded())
    assert sum(value.numel() for value in parameters.values()) == 11_168_832
    blocks = [f"layer{stage}.{block}." for stage in (1, 2, 3, 4) for block in (0, 1)]
    expected = {"conv1", "norm1"}
    expected |= {block + part for block in blocks for part in ("conv1", "norm1", "conv2", "norm2")}
    expected |= {f"{block}downsample.{part}" for block in blocks[2::2] for part in (0, 1)}
    names = [name.removeprefix(ENCODER).rpartition(".")[0] for name in parameters]
    assert set(names) == expected


def test_the_grouped_path_of_a_gpu_equals_the_loop() -> None:
    parameters = clients_encoders(3, small((3, 16, 16)))
    inputs = images(3, 4, (3, 16, 16))
    grouped = _cnn_features(parameters, "encoder.blocks.", inputs)
    for k in range(3):
        client_parameters = {name: value[k : k + 1] for name, value in parameters.items()}
        looped = _cnn_features(client_parameters, "encoder.blocks.", inputs[k : k + 1])
        torch.testing.assert_close(grouped[k : k + 1], looped, rtol=1e-5, atol=1e-5)


def test_a_norm_needs_no_batch() -> None:
    model, inputs = small(SHAPE), images(2, 5, SHAPE)
    parameters = clients_encoders(2, model)
    together = model.encode(parameters, inputs)
    alone = torch.cat([model.encode(parameters, row) for row in inputs.split(1, 1)], 1)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "bound"),
    [
        (SmallCnnClassifier((3, 16, 16), 2, width=8, representation_dim=32), 0.02),
        (ResNetClassifier((3, 16, 16), 2, representation_dim=64), 0.05),
    ],
)
def test_bfloat16_is_close(model: Model, bound: float) -> None:
    parameters, inputs = clients_encoders(2, model), images(2, 4, (3, 16, 16))
    require_close_in_bfloat16(lambda: model.encode(parameters, inputs), parameters, bound)


@pytest.mark.parametrize(
    "make_model", [small, partial(ResNetClassifier, representation_dim=16)], ids=["cnn", "resnet"]
)
def test_the_head_is_drawn_last(make_model: Callable[..., Model]) -> None:
    few_classes, many_classes = (
        make_model(SHAPE, classes=n).initial_parameters(seeded()) for n in (3, 7)
    )
    assert all(name.startswith((ENCODER, HEAD)) for name in few_classes)
    assert many_classes["head.bias"].shape == (7,)
    for name, value in few_classes.items():
        if name.startswith(ENCODER):
            assert torch.equal(value, many_classes[name])
