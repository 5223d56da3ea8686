"""A pretended device: its tensors are separate from the CPU's, as a GPU's, and traffic is counted.

A tensor on `DEVICE` wraps a CPU tensor, which does the work. Within `PretendedGpu` an operation on
tensors of both devices fails, as with a real GPU, and so does `.numpy()`. Operations that wait for
a real GPU are counted: numbers and tensors that are copied back, and results whose size depends on
values.
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

# Where an index may lie on the CPU, and is then copied, by the first arguments' places.
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
_OF_UNKNOWN_SIZE = ("nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim")


class _OnDevice(Tensor):
    """A tensor on the device, whose values `host` has."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> _OnDevice:
        tensor: _OnDevice = Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )
        tensor.host = host
        return tensor

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of PretendedGpu")


class _FromLists(TorchFunctionMode):
    """Create tensors of numbers, and indices, on the CPU, and then copy them."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == DEVICE:
            return func(*args, **{**kwargs, "device": None}).to(DEVICE)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            where = args[1] if isinstance(args[1], tuple) else (args[1],)
            listed = tuple(
                torch.tensor(index) if isinstance(index, list) else index for index in where
            )
            args = (args[0], listed, *args[2:])
        return func(*args, **kwargs)


class PretendedGpu(TorchDispatchMode):
    """Count the operations on the device.

    waits, copies: operations that wait for the device or copy to it, by name. calls:
    all operations on the device.
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
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = any(isinstance(tensor, _OnDevice) for tensor in tensors)
        assert not any(
            tensor.is_meta and not isinstance(tensor, _OnDevice) for tensor in tensors
        ), name
        device = kwargs.get("device")
        to_device = on_device if device is None else torch.device(device) == DEVICE
        if on_device:
            self._look(name, args, tensors, away=not to_device)
        elif to_device and tensors:
            self.copies[name] += 1
        self.calls += to_device
        done = func(*tree_map(_on_host, args), **tree_map(_on_host, kwargs))
        if isinstance(done, Tensor) and name.endswith("_"):  # in place: the same tensor again
            return args[0]
        if not to_device:
            return done
        return tree_map(lambda leaf: _OnDevice(leaf) if isinstance(leaf, Tensor) else leaf, done)

    def _look(self, name: str, args: Any, tensors: list[Tensor], *, away: bool) -> None:
        if away or name in ("_local_scalar_dense", "equal", *_OF_UNKNOWN_SIZE):
            self.waits[name] += 1
        strangers = [
            tensor for tensor in tensors if not isinstance(tensor, _OnDevice) and tensor.dim()
        ]
        if name in _INDEXING:
            indices = [index for index in args[1] if index is not None]
            fills = "put" in name and len(indices) == 1 and args[2].numel() == 1
            if any(index.dtype == torch.bool for index in indices) and not fills:
                self.waits[f"{name} by a mask"] += 1
            if isinstance(args[0], _OnDevice):
                self.copies[name] += sum(not isinstance(index, _OnDevice) for index in indices)
                strangers = [
                    tensor for tensor in strangers if all(tensor is not index for index in indices)
                ]
        if name == "copy_" and strangers:
            (self.copies if isinstance(args[0], _OnDevice) else self.waits)[name] += 1
        elif strangers:
            raise RuntimeError(f"{name}: tensors of two devices")


def _on_host(value: Any) -> Any:
    if isinstance(value, _OnDevice):
        return value.host
    return torch.device("cpu") if isinstance(value, torch.device) and value == DEVICE else value
