"""The GRU of `models/gru.py` for one client: its states, and the gradients of its parameters.

Shapes: T steps, B samples, I inputs per step, H hidden values. The gates are in torch's order:
reset, update, new. Every loop writes one array, because LLVM turns only such loops into vector
instructions. So the backward pass overwrites the arrays of the forward pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.models.kernel import compiled

Array = NDArray[np.float32]


class Parameter(NamedTuple):
    """An array of a model, its gradient, Adam's moments, and the anchor that a proximal term
    pulls it to. All have the shape of the array."""

    value: Array
    gradient: Array
    first: Array
    second: Array
    anchor: Array


class Gru(NamedTuple):
    """The parameters of a GRU. ih: [I, 3H]. hh: [H, 3H]. bias_ih, bias_hh: [3H]."""

    ih: Parameter
    hh: Parameter
    bias_ih: Parameter
    bias_hh: Parameter


class Tape(NamedTuple):
    """What a forward pass leaves for the backward pass.

    inputs: x, [T, B, I]. gates: r, z and n, [T, B, 3H]. recurrent: h_{t−1} · W_hh + b_hh,
    [T, B, 3H]. states: h_0 = 0, h_1, …, h_T, [T + 1, B, H]. The backward pass replaces the gates by
    the gradients with respect to the arguments of σ, σ and tanh, and `recurrent` by the gradient
    with respect to it.
    """

    inputs: Array
    gates: Array
    recurrent: Array
    states: Array


@compiled
def new_tape(steps: int, batch: int, inputs: int, hidden: int) -> Tape:
    """Return a tape of these sizes."""
    return Tape(
        np.empty((steps, batch, inputs), dtype=np.float32),
        np.empty((steps, batch, 3 * hidden), dtype=np.float32),
        np.empty((steps, batch, 3 * hidden), dtype=np.float32),
        np.zeros((steps + 1, batch, hidden), dtype=np.float32),
    )


@compiled
def tanh(x: np.float32) -> np.float32:
    """Return tanh(x) within 2e-7, as the quotient of polynomials in Eigen's `ptanh_float`.

    LLVM has no vector instruction for the C library's tanh. NaN stays NaN.
    """
    x = np.float32(7.905311) if x > np.float32(7.905311) else x
    x = np.float32(-7.905311) if x < np.float32(-7.905311) else x
    y = x * x
    odd = y * np.float32(-2.76076847742355e-16) + np.float32(2.00018790482477e-13)
    odd = y * odd + np.float32(-8.60467152213735e-11)
    odd = y * odd + np.float32(5.12229709037114e-08)
    odd = y * odd + np.float32(1.48572235717979e-05)
    odd = y * odd + np.float32(6.37261928875436e-04)
    odd = y * odd + np.float32(4.89352455891786e-03)
    even = y * np.float32(1.19825839466702e-06) + np.float32(1.18534705686654e-04)
    even = y * even + np.float32(2.26843463243900e-03)
    even = y * even + np.float32(4.89352518554385e-03)
    return x * odd / even


@compiled
def forward(gru: Gru, tape: Tape) -> None:
    """Compute the states from the tape's inputs.

    r = σ(x W_ir + b_ir + h W_hr + b_hr)        z likewise
    n = tanh(x W_in + b_in + r · (h W_hn + b_hn))
    h ← n + z · (h − n)
    """
    steps, batch, inputs = tape.inputs.shape
    hidden = len(gru.hh.value)
    half = np.float32(0.5)
    rows = tape.gates.reshape(steps * batch, 3 * hidden)
    np.dot(tape.inputs.reshape(steps * batch, inputs), gru.ih.value, rows)
    rows += gru.bias_ih.value
    for step in range(steps):
        recurrent = tape.recurrent[step]
        if step:
            np.dot(tape.states[step], gru.hh.value, recurrent)
        else:
            recurrent[:] = 0
        recurrent += gru.bias_hh.value
        for b in range(batch):
            from_state, gates = recurrent[b], tape.gates[step, b]
            for j in range(2 * hidden):  # σ(a) = (1 + tanh(a / 2)) / 2
                gates[j] = half + half * tanh(half * (gates[j] + from_state[j]))
            update, new = gates[hidden : 2 * hidden], gates[2 * hidden :]
            state_new, before = from_state[2 * hidden :], tape.states[step, b]
            after = tape.states[step + 1, b]
            for j in range(hidden):
                new[j] = tanh(new[j] + gates[j] * state_new[j])
            for j in range(hidden):
                after[j] = new[j] + update[j] * (before[j] - new[j])


@compiled
def backward(gru: Gru, tape: Tape, error: Array) -> None:
    """Write the gradients of the parameters. error [B, H]: the gradient at the last state.

    With e = ∂/∂h, the arguments a of σ, σ and tanh, and s = h W_hn + b_hn:

    ∂n = e (1 − z) (1 − n²)                     at a_n
    ∂z = e (h − n) z (1 − z)                    at a_z
    ∂r = ∂n s r (1 − r)                         at a_r
    ∂s = ∂n r
    e ← e z + [∂r, ∂z, ∂s] W_hhᵀ                one step earlier

    error is overwritten.
    """
    steps, batch, inputs = tape.inputs.shape
    hidden = len(gru.hh.value)
    one = np.float32(1)
    from_later = np.empty((batch, hidden), dtype=np.float32)
    for step in range(steps - 1, -1, -1):
        for b in range(batch):
            gates, at_state = tape.gates[step, b], tape.recurrent[step, b]
            reset, update, new = gates[:hidden], gates[hidden : 2 * hidden], gates[2 * hidden :]
            to_update, to_new = at_state[hidden : 2 * hidden], at_state[2 * hidden :]
            before, e = tape.states[step, b], error[b]
            for j in range(hidden):
                to_update[j] = e[j] * (before[j] - new[j]) * update[j] * (one - update[j])
            for j in range(hidden):
                new[j] = e[j] * (one - update[j]) * (one - new[j] * new[j])
            for j in range(hidden):
                at_state[j] = new[j] * to_new[j] * reset[j] * (one - reset[j])
            for j in range(hidden):
                to_new[j] = new[j] * reset[j]
            for j in range(hidden):
                e[j] *= update[j]
            for j in range(2 * hidden):
                gates[j] = at_state[j]
        if step:
            np.dot(tape.recurrent[step], gru.hh.value.T, from_later)
            error += from_later
    at_gates = tape.gates.reshape(steps * batch, 3 * hidden)
    at_states = tape.recurrent.reshape(steps * batch, 3 * hidden)
    states = tape.states[1:steps].reshape((steps - 1) * batch, hidden)
    np.dot(tape.inputs.reshape(steps * batch, inputs).T, at_gates, gru.ih.gradient)
    np.dot(states.T, at_states[batch:], gru.hh.gradient)  # the first state is 0
    ones = np.ones(steps * batch, dtype=np.float32)
    np.dot(ones, at_gates, gru.bias_ih.gradient)
    np.dot(ones, at_states, gru.bias_hh.gradient)
