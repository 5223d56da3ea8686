"""The causal CNN that turns series of any length into vectors, batched over clients.

Paper: Franceschi, Dieuleveut and Jaggi, "Unsupervised Scalable Representation Learning for
Multivariate Time Series", NeurIPS 2019, https://arxiv.org/abs/1901.10738. A block has two causal
convolutions with weight normalisation (Salimans and Kingma 2016), a leaky ReLU after each, and a
residual connection that no activation follows. The dilation is 1, 2, 4, … from block to block. The
maximum over time and a linear layer follow the blocks.

Internally, a client's features are rows [K, T·B, C], step by step. A step's past is then a slice in
memory, and a convolution is three matrix products. On a CPU that is twice as fast as
`torch.nn.functional.conv1d`, and the products take nearly all of the time.
Kernels are stored as [tap, in, out], with the oldest tap first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedproto_app.models.convolution import each_client
from fedproto_app.models.linear import linear, linear_parameters, with_prefixes
from fedproto_app.models.model import ENCODER, LinearHeadModel

TAPS = 3  # the length of every kernel
SLOPE = 0.01  # the slope of the leaky ReLU below 0
BLOCK, LINEAR = ENCODER + "blocks.", ENCODER + "linear."
FIRST, SECOND, RESIDUAL = ".first.", ".second.", ".residual."
DIRECTION = "direction"


@dataclass(frozen=True)
class CausalCnnSize:
    """The number of blocks and the widths of the network.

    channels: outputs of each block but the last. reduced_dim: outputs of the last block.
    output_dim: outputs of the linear layer.
    """

    blocks: int
    channels: int
    reduced_dim: int
    output_dim: int


class CausalCnnModel(LinearHeadModel):
    """A model whose encoder is the causal CNN, which can also be trained without labels."""

    def __init__(self, dimensions: int, outputs: int, size: CausalCnnSize) -> None:
        super().__init__(size.output_dim, outputs)
        self._dimensions, self._size = dimensions, size

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the parameters, drawn as in torch.

        A block has a `residual` layer if its numbers of inputs and outputs differ.
        """
        size, inputs, parts = self._size, self._dimensions, {}
        for block in range(size.blocks):
            last = block == size.blocks - 1
            outputs = size.reduced_dim if last else size.channels
            parts[f"{BLOCK}{block}{FIRST}"] = _convolution_parameters(inputs, outputs, generator)
            parts[f"{BLOCK}{block}{SECOND}"] = _convolution_parameters(outputs, outputs, generator)
            if inputs != outputs:
                parts[f"{BLOCK}{block}{RESIDUAL}"] = linear_parameters(inputs, outputs, generator)
            inputs = outputs
        parts[LINEAR] = linear_parameters(inputs, size.output_dim, generator)
        return with_prefixes(parts)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """Return the vector of each sequence [K, B, output_dim].

        inputs: sequences [K, B, T, d], padded on the right with finite values, which change
        nothing, and the numbers of their real steps [K, B] int64, at least 1.
        """
        sequences, lengths = inputs
        if sequences.device.type != "cpu":  # one client at a time would leave a GPU mostly idle
            pooled = _pooled(parameters, BLOCK, sequences, lengths)
        else:
            each_length = iter(torch.split(lengths, 1))

            def pooled_of_client(
                parameters: Mapping[str, Tensor], prefix: str, series: Tensor
            ) -> Tensor:
                client_lengths = next(each_length)
                return _pooled(
                    parameters, prefix, series[:, :, : int(client_lengths.max())], client_lengths
                )

            pooled = each_client(pooled_of_client, parameters, BLOCK, sequences)
        return linear(parameters, LINEAR, pooled)


def _pooled(
    parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor, lengths: Tensor
) -> Tensor:
    """Return the maximum of the features over each series' real steps: [K, B, reduced_dim]."""
    features = _features(parameters, prefix, inputs)
    steps = torch.arange(inputs.shape[2], device=lengths.device).unsqueeze(1)  # (T, 1)
    padding = steps >= lengths.unsqueeze(1)  # (K, T, B)
    return features.masked_fill(padding.unsqueeze(3), -torch.inf).amax(dim=1)


def _features(parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor) -> Tensor:
    """Apply the blocks: [K, B, T, d] → [K, T, B, reduced_dim]. A step depends only on its past."""
    clients, batch, steps, dimensions = inputs.shape
    rows = inputs.transpose(1, 2).reshape(clients, steps * batch, dimensions)
    kernels = _kernels(parameters, prefix)
    for block in range(len(kernels) // 2):
        # A tap that reaches back beyond the first step sees only zeros.
        taps = min(TAPS, 1 + (steps - 1) // 2**block)
        hidden = rows
        for name in (f"{prefix}{block}{FIRST}", f"{prefix}{block}{SECOND}"):
            kernel = kernels[name][:, TAPS - taps :]
            hidden = _convolve(hidden, kernel, parameters[name + "bias"], 2**block * batch)
        residual = f"{prefix}{block}{RESIDUAL}"
        if residual + "weight" in parameters:
            rows = linear(parameters, residual, rows)
        rows = hidden + rows
    return rows.view(clients, steps, batch, -1)


def _convolution_parameters(
    inputs: int, outputs: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return one client's direction [taps, inputs, outputs], scale [outputs] and bias [outputs].

    The direction is drawn from U(±1/√(taps·inputs)) as in torch. The scale is the direction's norm.
    """
    bound = (TAPS * inputs) ** -0.5
    direction = torch.empty(TAPS, inputs, outputs).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(outputs).uniform_(-bound, bound, generator=generator)
    return {DIRECTION: direction, "scale": direction.flatten(0, 1).norm(dim=0), "bias": bias}


def _kernels(parameters: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return each convolution's scale · direction / ‖direction‖ [K, TAPS, in, out], by name.

    Kernels of one shape are computed together. One by one, the calls would take longer than the
    work.
    """
    alike: dict[torch.Size, list[str]] = {}
    for name, value in parameters.items():
        if name.startswith(prefix) and name.endswith(DIRECTION):
            alike.setdefault(value.shape, []).append(name.removesuffix(DIRECTION))
    kernels: dict[str, Tensor] = {}
    for names in alike.values():
        direction = torch.stack([parameters[name + DIRECTION] for name in names])
        scale = torch.stack([parameters[name + "scale"] for name in names])
        factor = scale / direction.square().sum(dim=(2, 3)).sqrt()  # (same, K, out)
        normed = direction * factor[:, :, None, None]
        kernels.update(zip(names, normed.unbind(), strict=True))
    return kernels


def _convolve(rows: Tensor, kernel: Tensor, bias: Tensor, shift: int) -> Tensor:
    """Apply causal convolution and leaky ReLU: [K, N, in] → [K, N, out].

    The newest tap sees row n, the next one row n − shift, and so on. Rows before the first are 0.
    kernel: [K, taps, in, out]. bias: [K, out].
    """
    newest, *older = reversed(kernel.unbind(1))
    outputs = torch.baddbmm(bias.unsqueeze(1), rows, newest)
    for back, weight in enumerate(older, 1):
        late = back * shift
        past = torch.bmm(rows[:, :-late], weight)
        outputs = outputs + functional.pad(past, (0, 0, late, 0))
    return functional.leaky_relu(outputs, SLOPE)
