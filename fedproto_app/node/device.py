"""The device that a node computes on: which one, how exactly it multiplies, what it holds."""

from __future__ import annotations

import torch

from fedproto_app.core.errors import SettingsError


def torch_device(name: str, number: int = 0) -> torch.device:
    """The device of the `device` setting; "auto" takes a GPU if there is one.

    number: this process's among those that work at once. Where the setting leaves open which GPU,
    they take them in turns. Raises `SettingsError` for a GPU that is not there.
    """
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if there else "cpu"
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if (device.index or 0) >= there:
        raise SettingsError(f"device = {name!r}: this machine has {there} CUDA GPUs")
    return torch.device("cuda", number % there if device.index is None else device.index)


def gpus(name: str) -> int:
    """How many GPUs processes with this `device` setting take in turns: all, the one named, or 0.

    Raises `SettingsError` for a GPU that is not there.
    """
    device = torch_device(name)
    if device.type != "cuda":
        return 0
    return 1 if name == str(device) else torch.cuda.device_count()


def use_precision(precision: str, device: torch.device) -> None:
    """How a GPU multiplies float32: with all digits, or with "tf32" rounded to 10 bits of them.

    "bfloat16" is the task's own affair (`Task.mixed_precision`); what it leaves alone has all
    digits. Torch's own default is tf32 for convolutions. A CPU always has all digits.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"


def memory_of(device: torch.device) -> int:
    """Bytes of a GPU's memory, 0 for any other device."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory)


def free_memory(device: torch.device) -> int:
    """Bytes that tensors can still take on a GPU, among them what torch holds ready for them."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
