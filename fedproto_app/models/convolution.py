"""Convolution, group normalisation and max pooling, batched over clients.

Images and features are [K, B, C, H, W] and parameters [K, …]. In the layout [B, K·C, H, W] one
grouped convolution and one group normalisation serve all clients. A CPU is faster if it takes one
client after the other (`each_client`), because the client's features then stay in its cache. For
the small CNN, a loop inside each operation, vmap, unfold and bmm were slower.
For K = 1 every function here gives the same as torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Module = Callable[[Mapping[str, Tensor], str, Tensor], Tensor]  # parameters, prefix, inputs


def conv_parameters(
    inputs: int, outputs: int, kernel: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a client's weight [outputs, inputs, kernel, kernel]. A norm follows, so no bias.

    It is drawn from N(0, 2 / (outputs · kernel²)), which is He et al. 2015 with the fan-out, as in
    torchvision's ResNet.
    """
    deviation = (2 / (outputs * kernel**2)) ** 0.5
    weight = torch.empty(outputs, inputs, kernel, kernel)
    return {"weight": weight.normal_(0, deviation, generator=generator)}


def norm_parameters(channels: int) -> dict[str, Tensor]:
    """Return one client's initial scale 1 and shift 0 of a group normalisation, [channels] each."""
    return {"weight": torch.ones(channels), "bias": torch.zeros(channels)}


def conv2d(weight: Tensor, inputs: Tensor, *, stride: int = 1, padding: int = 0) -> Tensor:
    """Apply each client's own convolution.

    weight: [K, out, in, k, k]. inputs: [K, B, in, H, W]. Returns [K, B, out, H', W'].
    """
    clients = weight.shape[0]
    images = _merged(inputs).contiguous()  # the norm that follows needs it. See max_pool2d
    outputs = F.conv2d(images, weight.flatten(0, 1), stride=stride, padding=padding, groups=clients)
    return _parted(outputs, clients)


def group_norm(inputs: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
    """Normalise each group of channels of a sample to mean 0 and variance 1 (Wu and He 2018).

    inputs: [K, B, C, H, W], where C is a multiple of groups. weight, bias: [K, C].
    """
    clients = inputs.shape[0]
    outputs = F.group_norm(_merged(inputs), clients * groups, weight.flatten(), bias.flatten())
    return _parted(outputs, clients)


def max_pool2d(inputs: Tensor) -> Tensor:
    """Return the maximum of each 2×2 pixels, or fewer at an odd edge: [K, B, C, ⌈H/2⌉, ⌈W/2⌉]."""
    merged = _merged(inputs)
    if merged.is_cpu:
        # With channels innermost, torch's pooling is far faster and its norm far slower. So only
        # the pooling gets this layout.
        merged = merged.contiguous(memory_format=torch.channels_last)
    return _parted(F.max_pool2d(merged, 2, ceil_mode=True), inputs.shape[0])


def each_client(
    module: Module, parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor
) -> Tensor:
    """Return module(parameters, prefix, inputs), called for one client (K = 1) at a time.

    Only the parameters under the prefix are passed to the module.
    """
    if inputs.shape[0] == 1:
        return module(parameters, prefix, inputs)
    names = [name for name in parameters if name.startswith(prefix)]
    # Parameters are split at once. Indexing them by client would make a gradient of all K for each.
    parameters_of_clients = zip(*(torch.split(parameters[name], 1) for name in names), strict=True)
    return torch.cat(
        [
            module(dict(zip(names, values, strict=True)), prefix, images)
            for values, images in zip(parameters_of_clients, torch.split(inputs, 1), strict=True)
        ]
    )


def _merged(features: Tensor) -> Tensor:
    """Merge clients and channels: [K, B, C, H, W] → [B, K·C, H, W], a view after `_parted`."""
    return features.transpose(0, 1).flatten(1, 2)


def _parted(features: Tensor, clients: int) -> Tensor:
    """Separate clients and channels: [B, K·C, H, W] → [K, B, C, H, W], a view."""
    batch, channels, height, width = features.shape
    return features.reshape(batch, clients, channels // clients, height, width).transpose(0, 1)
