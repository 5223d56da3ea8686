"""A user's own `torch.nn.Module` as the model of every client, by `torch.func.functional_call`.

One module serves all clients. A loop calls it with the parameters of one client after the other.
`torch.func.vmap` over clients has no rule for `nn.GRU` and `nn.LSTM`. For a forward and backward
pass of 16 clients on one core, the loop took 2.4 ms and vmap 0.8 ms with a perceptron of 64 units,
6.6 and 5.9 ms with 256 units, and 159 and 184 ms with a small CNN. That does not justify two paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.loading import named_function
from fedproto_app.core.randomness import stream_seed
from fedproto_app.models.model import ENCODER, Model

# What a user's module must fulfil to be the model of every client of a run.
#
# Design rule 1: results must not depend on which clients train together. So a module's output for a
# sample may depend only on that sample and the parameters.

SAMPLES = 4  # how many samples a module is tried on
TRIALS = 4  # how many calls with the same samples are made to reveal dropout
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class UnfitModuleError(Exception):
    """Raised if a module cannot be the model. The text says why."""


@dataclass(frozen=True)
class ModuleShape:
    """The inputs and outputs of a task's model.

    inputs, outputs: the arguments of the user's factory. sample: the shape of one sample. head: the
    prefix of the head's parameters. has_lengths: whether samples are sequences [T, d]. These are
    padded with zeros to the longest in a batch, and passed with their numbers of real steps.
    """

    inputs: int | tuple[int, ...]
    outputs: int
    sample: tuple[int, ...]
    head: str
    has_lengths: bool = False


@dataclass(frozen=True)
class Parts:
    """A module's children `encoder` and `head`. If one is missing, the module is the encoder."""

    encoder: nn.Module
    head: nn.Module
    splits: bool


def parts_of(module: nn.Module) -> Parts:
    """Return the module's parts."""
    children = dict(module.named_children())
    if {"encoder", "head"} <= children.keys():
        return Parts(children["encoder"], children["head"], splits=True)
    return Parts(module, nn.Identity(), splits=False)


@contextmanager
def users_code(call: str) -> Iterator[None]:
    """Turn any exception of the user's code into an `UnfitModuleError`."""
    try:
        yield
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise UnfitModuleError(f"{call} fails: {type(error).__name__}: {first}") from None


def check_layers(module: nn.Module) -> None:
    """Refuse layers that collect running statistics, and parameters that cannot be trained here."""
    for name, layer in module.named_modules():
        running = getattr(layer, "track_running_stats", False)
        if layer.training and (running or isinstance(layer, BATCH_NORMS)):
            raise UnfitModuleError(
                f"{name or 'it'} is a {type(layer).__name__}, whose running statistics describe "
                "one client's data and mislead when averaged over clients; use GroupNorm or "
                "LayerNorm"
            )
    parameters = dict(module.named_parameters())
    if not parameters:
        raise UnfitModuleError("it has no parameters")
    for name, value in parameters.items():
        if is_lazy(value):
            raise UnfitModuleError(f"{name} is lazy; give its layer a size")
        if value.dtype != torch.float32:
            raise UnfitModuleError(f"{name} is {value.dtype}, expected torch.float32")
        if not value.requires_grad:
            raise UnfitModuleError(
                f"{name} is frozen, but the method decides what is trained; register constants as "
                "buffers"
            )
    parts = parts_of(module)
    encoder, head = set(parts.encoder.parameters()), set(parts.head.parameters())
    if parts.splits and not (encoder and head):
        raise UnfitModuleError(f"its {'head' if encoder else 'encoder'} has no parameters")
    for name, value in parameters.items():
        if (value in encoder) == (value in head):
            raise UnfitModuleError(f"{name} must belong to either its encoder or its head")


def check_same_start(module: nn.Module, second_module: nn.Module) -> None:
    """Refuse a factory that does not always return the same module."""
    first, second = module.state_dict(), second_module.state_dict()
    for name, value in first.items():
        if name not in second or not torch.equal(value, second[name]):
            raise UnfitModuleError(
                f"{name} differs each time the factory is called; draw from torch's default "
                "generator, which is seeded for it"
            )


def check_behaviour(module: nn.Module, shape: ModuleShape) -> int:
    """Try the module on noise, and return D, the length of its representation.

    Its parameters are perturbed first, because a head that starts at 0 would hide what the encoder
    does.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        constants = {name: value.clone() for name, value in module.named_buffers()}
        batch = _noise(shape, generator)
        outputs = _outputs(module, batch, shape)
        if any(not torch.equal(outputs, _outputs(module, batch, shape)) for _ in range(TRIALS)):
            raise UnfitModuleError(
                "it returns other numbers when it is called again; dropout draws from a generator "
                "that all clients share, so leave it out, or set its p = 0"
            )
        for name, value in module.named_buffers():
            if not torch.equal(value, constants[name]):
                raise UnfitModuleError(
                    f"its buffer {name} changes in a call; all clients share one module, which may "
                    "not store anything"
                )
        # Try the second sample alone, not padded to longer samples.
        steps = int(batch[1][1]) if shape.has_lengths else None
        alone = tuple(part[1:2] for part in batch)
        alone = (alone[0][:, :steps], *alone[1:])
        if not torch.allclose(outputs[1:2], _outputs(module, alone, shape), rtol=1e-3, atol=1e-4):
            raise UnfitModuleError(
                "its output for a sample changes with the other samples of the batch"
                + (" or with padding; use the lengths" if shape.has_lengths else "")
            )
    return outputs.shape[1] - shape.outputs


def _noise(shape: ModuleShape, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return random samples in the form that the task passes. The second is shorter."""
    samples = torch.randn(SAMPLES, *shape.sample, generator=generator)
    if not shape.has_lengths:
        return (samples,)
    steps = shape.sample[0]
    lengths = torch.tensor([steps, (steps + 1) // 2, *[steps] * (SAMPLES - 2)])
    samples[torch.arange(steps) >= lengths.unsqueeze(1)] = 0
    return samples, lengths


def _outputs(module: nn.Module, batch: tuple[Tensor, ...], shape: ModuleShape) -> Tensor:
    """Return representations and predictions side by side, [B, D + outputs]."""
    parts, shapes = parts_of(module), ", ".join(str([*part.shape]) for part in batch)
    with users_code(f"its call with {shapes}"):
        representation = parts.encoder(*batch)
    if not isinstance(representation, Tensor) or representation.dim() != 2:
        raise UnfitModuleError(f"its encoder gives {_shape_text(representation)}, expected [B, D]")
    with users_code(f"its head's call with {[*representation.shape]}"):
        prediction = parts.head(representation)
    expected = (len(batch[0]), shape.outputs)
    if not isinstance(prediction, Tensor) or prediction.shape != expected:
        raise UnfitModuleError(
            f"it gives {_shape_text(prediction)} of {shapes}, expected {[*expected]}"
        )
    if parts.splits and _has_forward(module):
        with users_code(f"its call with {shapes}"):
            output = module(*batch)
        if not isinstance(output, Tensor) or not torch.equal(output, prediction):
            raise UnfitModuleError("its forward differs from head(encoder(…)), which methods use")
    return torch.cat([representation, prediction], dim=1)


def _has_forward(module: nn.Module) -> bool:
    """Return whether the user defined `forward`. A Sequential's cannot pass lengths on."""
    return type(module).forward not in (nn.Module.forward, nn.Sequential.forward)


def _shape_text(value: object) -> str:
    return str([*value.shape]) if isinstance(value, Tensor) else f"a {type(value).__name__}"


class ModuleModel(Model):
    """A model made of a module's children `encoder` and `head`, or of the module as the encoder.

    Its parameters start with the factory's values. The generator arguments are not used.
    """

    def __init__(
        self, module: nn.Module, representation_dim: int, head: str, device: torch.device
    ) -> None:
        parts = parts_of(module)
        self.representation_dim, self.splits = representation_dim, parts.splits
        self._encoder = _Borrowing(parts.encoder, ENCODER, device)
        self._head = _Borrowing(parts.head, head, device)

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._encoder.initial_parameters()

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._head.initial_parameters()

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        return self._encoder(parameters, *inputs)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        return self._head(parameters, representation) if self.splits else representation


class _Borrowing:
    """Calls a module with other parameters, whose names are the module's with a prefix."""

    def __init__(self, module: nn.Module, prefix: str, device: torch.device) -> None:
        self._initial = {
            prefix + name: value.detach().cpu().clone() for name, value in module.named_parameters()
        }
        self._prefix, self._module = prefix, module.to(device)

    def initial_parameters(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._initial.items()}

    def __call__(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """Apply the module with each client's parameters: [K, B, …] → [K, B, …]."""
        names = [name.removeprefix(self._prefix) for name in self._initial]
        # Parameters are split at once. Indexing by client would make a gradient of all K for each.
        parameters_of_clients = zip(
            *(parameters[name].unbind() for name in self._initial), strict=True
        )
        batches = zip(*(part.unbind() for part in inputs), strict=True)
        return torch.stack(
            [
                functional_call(self._module, dict(zip(names, values, strict=True)), batch)
                for values, batch in zip(parameters_of_clients, batches, strict=True)
            ]
        )


def module_model(name: str, shape: ModuleShape, seed: int, device: torch.device) -> Model:
    """Return the model that the user's factory, ``package.module:factory``, makes.

    The factory is called as ``factory(inputs=…, outputs=…)``. Torch's default generator is seeded
    from the run's seed, so the model starts equal on every node. Raises `SettingsError` for an
    unsuitable module.
    """
    factory = named_function("model.module", name, SettingsError)
    try:
        return _checked_model(factory, shape, seed, device)
    except UnfitModuleError as reason:
        raise SettingsError(f"model.module = {name!r}: {reason}") from None


@lru_cache(maxsize=4)
def _checked_model(
    factory: Callable[..., object], shape: ModuleShape, seed: int, device: torch.device
) -> ModuleModel:
    """Build and check the model. The result is kept, because every message to a node needs it."""
    module, second_module = (_drawn(factory, shape, seed) for _ in range(2))
    check_layers(module)
    check_same_start(module, second_module)
    return ModuleModel(module, check_behaviour(second_module, shape), shape.head, device)


def _drawn(factory: Callable[..., object], shape: ModuleShape, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]), users_code("its factory"):
        torch.default_generator.manual_seed(stream_seed(seed, "initial parameters"))
        module = factory(inputs=shape.inputs, outputs=shape.outputs)
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise UnfitModuleError(f"its factory gives a {kind}, expected a torch.nn.Module")
    return module.cpu()
