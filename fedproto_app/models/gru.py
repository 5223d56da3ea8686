"""A one-layer GRU over short windows, batched over clients.

Every parameter has a client axis in front [K, …]. The equations follow `torch.nn.GRU` (Cho et al.
2014), with the gates in its order: reset, update, new. Matrices are stored as [in, out], the
transpose of torch's, which makes their gradients contiguous. Otherwise fused Adam would copy the
gradients, which is as expensive as the step itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # in torch's order


def gru_parameters(hidden: int, generator: torch.Generator, width: int = 1) -> dict[str, Tensor]:
    """Return one client's parameters for inputs of this width."""
    return recurrent_parameters(3, width, hidden, generator)


def recurrent_parameters(
    gates: int, inputs: int, hidden: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return one client's parameters in torch's order, drawn from U(±1/√hidden) as in torch."""
    bound, width = hidden**-0.5, gates * hidden
    shapes = (inputs, width), (hidden, width), (width,), (width,)
    return {
        name: torch.empty(shape).uniform_(-bound, bound, generator=generator)
        for name, shape in zip(NAMES, shapes, strict=True)
    }


def gru_last_hidden(
    parameters: Mapping[str, Tensor], prefix: str, window: Tensor, state: Tensor | None = None
) -> Tensor:
    """Return the hidden state after the window's last step [K, B, H]. See `gru_states`."""
    return gru_states(parameters, prefix, window, state)[-1]


def gru_states(
    parameters: Mapping[str, Tensor], prefix: str, window: Tensor, state: Tensor | None = None
) -> list[Tensor]:
    """Return the hidden states after each step of the window, [K, B, H] each.

    parameters: ``<prefix>weight_ih`` [K, I, 3H], ``weight_hh`` [K, H, 3H], ``bias_ih`` and
        ``bias_hh`` [K, 3H].
    window: [K, B, T·I], the I inputs of each of T ≥ 1 steps side by side.
    state: [K, B, H], the initial state, or None for 0.
    """
    weight_ih, weight_hh = parameters[prefix + "weight_ih"], parameters[prefix + "weight_hh"]
    bias_ih = parameters[prefix + "bias_ih"].unsqueeze(1)  # [K, 1, 3H]
    bias_hh = parameters[prefix + "bias_hh"].unsqueeze(1)
    states = []
    for value in torch.split(window, weight_ih.shape[1], dim=2):  # (K, B, I)
        from_input = torch.baddbmm(bias_ih, value, weight_ih)  # (K, B, I) x (K, I, 3H)
        # If the state is zero, only the bias is left.
        from_state = bias_hh if state is None else torch.baddbmm(bias_hh, state, weight_hh)
        state = _gru_cell(from_input, from_state, state)
        states.append(state)
    return states


def _gru_cell(from_input: Tensor, from_state: Tensor, state: Tensor | None) -> Tensor:
    input_reset, input_update, input_new = from_input.chunk(3, dim=2)
    state_reset, state_update, state_new = from_state.chunk(3, dim=2)
    reset = torch.sigmoid(input_reset + state_reset)
    update = torch.sigmoid(input_update + state_update)
    new = torch.tanh(input_new + reset * state_new)
    if state is None:
        return new - update * new
    return new + update * (state - new)
