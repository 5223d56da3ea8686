"""Choose the device that a node computes on, set its precision, and report its memory."""

from __future__ import annotations

import torch

from fedproto_app.core.errors import SettingsError


def torch_device(name: str, number: int = 0) -> torch.device:
    """Return the device that the `device` setting names. "auto" is a GPU if the machine has one.

    number: this process's number among the processes that work at the same time. If the setting
    names no particular GPU, the processes are spread over all GPUs. Raises `SettingsError` for a
    GPU that the machine does not have.
    """
    gpu_count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if gpu_count else "cpu"
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if (device.index or 0) >= gpu_count:
        raise SettingsError(f"device = {name!r}: this machine has {gpu_count} CUDA GPUs")
    return torch.device("cuda", number % gpu_count if device.index is None else device.index)


def gpus(name: str) -> int:
    """Return how many GPUs the processes with this `device` setting share: all, 1, or 0 for a CPU.

    Raises `SettingsError` for a GPU that the machine does not have.
    """
    device = torch_device(name)
    if device.type != "cuda":
        return 0
    return 1 if name == str(device) else torch.cuda.device_count()


def use_precision(precision: str, device: torch.device) -> None:
    """Set how a GPU multiplies float32: in full precision, or rounded to 10 bits with "tf32".

    The task handles "bfloat16" (`Task.mixed_precision`), and all other operations then use full
    precision. Torch's own default for convolutions is tf32. A CPU always uses full precision.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"


def memory_of(device: torch.device) -> int:
    """Return the size of a GPU's memory in bytes, or 0 for any other device."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory)


def free_memory(device: torch.device) -> int:
    """Return how many bytes are left for tensors on a GPU, including torch's unused cache."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
