"""Which device a node takes, and how it is set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fedproto_app.core.errors import SettingsError
from fedproto_app.experiments.simulation import most_workers, useful_workers
from fedproto_app.node.device import gpus, memory_of, torch_device, use_precision
from fedproto_app.settings import settings_from

CUDA = torch.device("cuda")


def flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture
def flags_as_before() -> Iterator[None]:
    matmul, cudnn = flags()
    yield
    torch.backends.cuda.matmul.allow_tf32 = matmul
    torch.backends.cudnn.allow_tf32 = cudnn


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)


@pytest.mark.usefixtures("three_gpus")
def test_processes_take_gpus_in_turns_unless_one_is_named() -> None:
    assert [str(torch_device("cuda", number)) for number in (0, 2, 3)] == [
        "cuda:0",
        "cuda:2",
        "cuda:0",
    ]
    assert str(torch_device("auto", 1)) == "cuda:1"
    assert str(torch_device("cuda:2", 1)) == "cuda:2"
    assert str(torch_device("cpu", 1)) == "cpu"
    assert [gpus(name) for name in ("cpu", "auto", "cuda", "cuda:2")] == [0, 3, 3, 1]
    with pytest.raises(SettingsError, match="device = 'cuda:3': this machine has 3 CUDA GPUs"):
        torch_device("cuda:3")


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert str(torch_device("auto", 1)) == "cpu"
    with pytest.raises(SettingsError, match="has 0 CUDA GPUs"):
        torch_device("cuda")
    assert memory_of(torch.device("cpu")) == 0


@pytest.mark.usefixtures("flags_as_before")
def test_only_tf32_rounds_and_only_on_a_gpu() -> None:
    use_precision("tf32", CUDA)
    assert flags() == (True, True)
    for precision in ("float32", "bfloat16"):
        use_precision("tf32", CUDA)
        use_precision(precision, CUDA)
        assert flags() == (False, False)
    use_precision("tf32", torch.device("cpu"))
    assert flags() == (False, False)


@pytest.mark.usefixtures("three_gpus")
def test_a_worker_a_gpu_and_none_for_a_part_of_a_node() -> None:
    """A node's processes must form the same cohorts, so the GPU's memory must not decide."""
    settings = settings_from({"device": "cuda"})
    assert most_workers(settings) == 3
    assert useful_workers(settings, nodes=2, clients=1000) == 2
    chosen = settings_from({"device": "cuda", "cohort-size": 100})
    assert useful_workers(chosen, nodes=2, clients=1000) == 10
    assert most_workers(settings_from({"device": "cuda:1"})) == 1
    assert useful_workers(settings_from({}), nodes=2, clients=64) == 4
