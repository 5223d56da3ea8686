"""A device that is none: its tensors keep to themselves as a GPU's do, and all traffic is counted.

A tensor on `DEVICE` wraps one of the CPU, which does the work. Within `PretendedGpu` an operation
on tensors of both sides fails, as it does with a real GPU, `.numpy()` too. What makes the program
wait for a real GPU is counted: numbers and tensors that come back, and results whose size depends
on values.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")  # a device that every torch knows; nothing here is without values

# Where an index may lie on the CPU, and is then copied; the first arguments' places.
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
_OF_UNKNOWN_SIZE = ("nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim")


class _There(Tensor):
    """A tensor on the device; `here` has its values."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> _There:
        made: _There = Tensor._make_wrapper_subclass(
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=DEVICE,
        )
        made.here = here
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of PretendedGpu")


class _FromLists(TorchFunctionMode):
    """Tensors made of numbers are made here and then copied, indices too."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == DEVICE:
            return func(*args, **{**kwargs, "device": None}).to(DEVICE)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            where = args[1] if isinstance(args[1], tuple) else (args[1],)
            listed = tuple(torch.tensor(one) if isinstance(one, list) else one for one in where)
            args = (args[0], listed, *args[2:])
        return func(*args, **kwargs)


class PretendedGpu(TorchDispatchMode):
    """waits: what a program waits for the device for; copies: to the device. By operation.

    calls: operations on the device, all together.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.calls = 0
        self._lists = _FromLists()

    def __enter__(self) -> PretendedGpu:
        self._lists.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._lists.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        there = any(isinstance(one, _There) for one in tensors)
        assert not any(one.is_meta and not isinstance(one, _There) for one in tensors), name
        asked = kwargs.get("device")
        to_there = there if asked is None else torch.device(asked) == DEVICE
        if there:
            self._look(name, args, tensors, away=not to_there)
        elif to_there and tensors:
            self.copies[name] += 1
        self.calls += to_there
        done = func(*tree_map(_here, args), **tree_map(_here, kwargs))
        if isinstance(done, Tensor) and name.endswith("_"):  # in place: the same tensor again
            return args[0]
        if not to_there:
            return done
        return tree_map(lambda one: _There(one) if isinstance(one, Tensor) else one, done)

    def _look(self, name: str, args: Any, tensors: list[Tensor], *, away: bool) -> None:
        if away or name in ("_local_scalar_dense", "equal", *_OF_UNKNOWN_SIZE):
            self.waits[name] += 1
        strangers = [one for one in tensors if not isinstance(one, _There) and one.dim()]
        if name in _INDEXING:
            indices = [one for one in args[1] if one is not None]
            fills = "put" in name and len(indices) == 1 and args[2].numel() == 1
            if any(one.dtype == torch.bool for one in indices) and not fills:
                self.waits[f"{name} by a mask"] += 1
            if isinstance(args[0], _There):
                self.copies[name] += sum(not isinstance(one, _There) for one in indices)
                strangers = [one for one in strangers if all(one is not index for index in indices)]
        if name == "copy_" and strangers:
            (self.copies if isinstance(args[0], _There) else self.waits)[name] += 1
        elif strangers:
            raise RuntimeError(f"{name}: tensors of two devices")


def _here(value: Any) -> Any:
    if isinstance(value, _There):
        return value.here
    return torch.device("cpu") if isinstance(value, torch.device) and value == DEVICE else value
