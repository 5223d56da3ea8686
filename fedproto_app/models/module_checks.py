"""What a user's module must be to serve as the model of every client of a run.

Design rule 1 asks for numbers that do not depend on who trains beside whom. So what a module makes
of a sample may depend on nothing but that sample and the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

SAMPLES = 4  # that a module is tried on
TRIALS = 4  # of the same samples, which shows dropout
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class UnfitModuleError(Exception):
    """Why a module cannot be the model."""


@dataclass(frozen=True)
class ModuleShape:
    """What the model of a task takes and gives.

    inputs, outputs: what the user's factory is told. sample: the shape of one sample. head: prefix
    of the head's parameters. has_lengths: whether samples are sequences [T, d], padded with zeros
    to the longest of a batch, which come with the numbers of their real steps.
    """

    inputs: int | tuple[int, ...]
    outputs: int
    sample: tuple[int, ...]
    head: str
    has_lengths: bool = False


@dataclass(frozen=True)
class Parts:
    """A module's children `encoder` and `head`; without both, the encoder is the whole module."""

    encoder: nn.Module
    head: nn.Module
    splits: bool


def parts_of(module: nn.Module) -> Parts:
    """The module's parts."""
    children = dict(module.named_children())
    if {"encoder", "head"} <= children.keys():
        return Parts(children["encoder"], children["head"], splits=True)
    return Parts(module, nn.Identity(), splits=False)


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Whatever the user's code raises is a reason against the module."""
    try:
        yield
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise UnfitModuleError(f"{what} fails: {type(error).__name__}: {first}") from None


def check_layers(module: nn.Module) -> None:
    """Refuse layers that gather statistics, and parameters that cannot be trained here."""
    for name, layer in module.named_modules():
        running = getattr(layer, "track_running_stats", False)
        if layer.training and (running or isinstance(layer, BATCH_NORMS)):
            raise UnfitModuleError(
                f"{name or 'it'} is a {type(layer).__name__}, whose running statistics are those "
                "of one client's data and mislead once averaged with others'; use GroupNorm or "
                "LayerNorm"
            )
    named = dict(module.named_parameters())
    if not named:
        raise UnfitModuleError("it has no parameters")
    for name, value in named.items():
        if is_lazy(value):
            raise UnfitModuleError(f"{name} is lazy; give its layer a size")
        if value.dtype != torch.float32:
            raise UnfitModuleError(f"{name} is {value.dtype}, expected torch.float32")
        if not value.requires_grad:
            raise UnfitModuleError(
                f"{name} is frozen, but the method decides what learns; register constants as "
                "buffers"
            )
    parts = parts_of(module)
    encoder, head = set(parts.encoder.parameters()), set(parts.head.parameters())
    if parts.splits and not (encoder and head):
        raise UnfitModuleError(f"its {'head' if encoder else 'encoder'} has no parameters")
    for name, value in named.items():
        if (value in encoder) == (value in head):
            raise UnfitModuleError(f"{name} must belong to either its encoder or its head")


def check_same_start(module: nn.Module, again: nn.Module) -> None:
    """Refuse a factory that does not always make the same module."""
    first, second = module.state_dict(), again.state_dict()
    for name, value in first.items():
        if name not in second or not torch.equal(value, second[name]):
            raise UnfitModuleError(
                f"{name} is another one each time the factory is called; draw from torch's default "
                "generator, which is seeded for it"
            )


def check_behaviour(module: nn.Module, shape: ModuleShape) -> int:
    """Try the module on noise; returns D, the width of its representation.

    Its parameters are moved a little first, because many a head starts at 0 and hides the rest.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        constants = {name: value.clone() for name, value in module.named_buffers()}
        batch = _noise(shape, generator)
        made = _outputs(module, batch, shape)
        if any(not torch.equal(made, _outputs(module, batch, shape)) for _ in range(TRIALS)):
            raise UnfitModuleError(
                "it gives other numbers when it is asked again; dropout draws from a generator "
                "that all clients share: leave it out, or set its p = 0"
            )
        for name, value in module.named_buffers():
            if not torch.equal(value, constants[name]):
                raise UnfitModuleError(
                    f"its buffer {name} changes as it is used; all clients share one module, which "
                    "may remember nothing"
                )
        # The second sample alone, without the padding that longer ones beside it ask for.
        steps = int(batch[1][1]) if shape.has_lengths else None
        alone = tuple(part[1:2] for part in batch)
        alone = (alone[0][:, :steps], *alone[1:])
        if not torch.allclose(made[1:2], _outputs(module, alone, shape), rtol=1e-3, atol=1e-4):
            raise UnfitModuleError(
                "what it makes of a sample changes with the others of its batch"
                + (" or with padding; use the lengths" if shape.has_lengths else "")
            )
    return made.shape[1] - shape.outputs


def _noise(shape: ModuleShape, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Samples as the task gives them, of sequences the second one shorter."""
    samples = torch.randn(SAMPLES, *shape.sample, generator=generator)
    if not shape.has_lengths:
        return (samples,)
    steps = shape.sample[0]
    lengths = torch.tensor([steps, (steps + 1) // 2, *[steps] * (SAMPLES - 2)])
    samples[torch.arange(steps) >= lengths.unsqueeze(1)] = 0
    return samples, lengths


def _outputs(module: nn.Module, batch: tuple[Tensor, ...], shape: ModuleShape) -> Tensor:
    """Representations and predictions side by side, [B, D + outputs]."""
    parts, given = parts_of(module), ", ".join(str([*part.shape]) for part in batch)
    with users_code(f"its call with {given}"):
        representation = parts.encoder(*batch)
    if not isinstance(representation, Tensor) or representation.dim() != 2:
        raise UnfitModuleError(f"its encoder gives {_told(representation)}, expected [B, D]")
    with users_code(f"its head's call with {[*representation.shape]}"):
        prediction = parts.head(representation)
    wanted = (len(batch[0]), shape.outputs)
    if not isinstance(prediction, Tensor) or prediction.shape != wanted:
        raise UnfitModuleError(f"it gives {_told(prediction)} of {given}, expected {[*wanted]}")
    if parts.splits and _has_forward(module):
        with users_code(f"its call with {given}"):
            whole = module(*batch)
        if not isinstance(whole, Tensor) or not torch.equal(whole, prediction):
            raise UnfitModuleError(
                "its forward is something else than head(encoder(…)), which methods use"
            )
    return torch.cat([representation, prediction], dim=1)


def _has_forward(module: nn.Module) -> bool:
    """Whether the user wrote one; a Sequential's cannot hand lengths on."""
    return type(module).forward not in (nn.Module.forward, nn.Sequential.forward)


def _told(given: object) -> str:
    return str([*given.shape]) if isinstance(given, Tensor) else f"a {type(given).__name__}"
