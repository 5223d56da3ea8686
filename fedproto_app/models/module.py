"""A user's own `torch.nn.Module` as the model of every client, by `torch.func.functional_call`.

One module serves all clients: each call lends it the parameters of one. The clients take turns.
`torch.func.vmap` over them has no rule for `nn.GRU` and `nn.LSTM`. Forward and backward of 16
clients on one core took 2.4 ms by the loop and 0.8 ms by vmap for a perceptron of 64 units, 6.6
and 5.9 ms for one of 256, 159 and 184 ms for a small CNN. A second way to the same numbers is not
worth that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.loading import named_function
from fedproto_app.core.randomness import stream_seed
from fedproto_app.models.model import ENCODER, Model
from fedproto_app.models.module import (
    ModuleShape,
    UnfitModuleError,
    check_behaviour,
    check_layers,
    check_same_start,
    parts_of,
    users_code,
)


class ModuleModel(Model):
    """The module's children `encoder` and `head`, or the whole module as an encoder.

    Its parameters start as the factory made them: nothing is drawn from a generator that is given.
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
    """A module that works with parameters of others, named as its own behind a prefix."""

    def __init__(self, module: nn.Module, prefix: str, device: torch.device) -> None:
        self._initial = {
            prefix + name: value.detach().cpu().clone() for name, value in module.named_parameters()
        }
        self._prefix, self._module = prefix, module.to(device)

    def initial_parameters(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._initial.items()}

    def __call__(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """[K, B, …] → [K, B, …], each client with its own."""
        names = [name.removeprefix(self._prefix) for name in self._initial]
        # One split a parameter: indexing client by client would give each a gradient of all K.
        each = zip(*(parameters[name].unbind() for name in self._initial), strict=True)
        batches = zip(*(part.unbind() for part in inputs), strict=True)
        return torch.stack(
            [
                functional_call(self._module, dict(zip(names, values, strict=True)), batch)
                for values, batch in zip(each, batches, strict=True)
            ]
        )


def module_model(named: str, shape: ModuleShape, seed: int, device: torch.device) -> Model:
    """The model that the user's factory, ``package.module:factory``, makes.

    It is called as ``factory(inputs=…, outputs=…)`` with torch's default generator seeded from the
    run's seed, so it starts equal on every node. Raises `SettingsError` for a module that cannot
    serve.
    """
    factory = named_function("model.module", named, SettingsError)
    try:
        return _made(factory, shape, seed, device)
    except UnfitModuleError as reason:
        raise SettingsError(f"model.module = {named!r}: {reason}") from None


@lru_cache(maxsize=4)
def _made(
    factory: Callable[..., object], shape: ModuleShape, seed: int, device: torch.device
) -> ModuleModel:
    """Made once in a process: every order that comes to a node asks for it."""
    module, again = (_drawn(factory, shape, seed) for _ in range(2))
    check_layers(module)
    check_same_start(module, again)
    return ModuleModel(module, check_behaviour(again, shape), shape.head, device)


def _drawn(factory: Callable[..., object], shape: ModuleShape, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]), users_code("its factory"):
        torch.default_generator.manual_seed(stream_seed(seed, "initial parameters"))
        module = factory(inputs=shape.inputs, outputs=shape.outputs)
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise UnfitModuleError(f"its factory gives a {kind}, expected a torch.nn.Module")
    return module.cpu()
