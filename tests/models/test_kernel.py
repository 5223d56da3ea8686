"""The compiled kernel against torch, what it refuses, and the cache that it is compiled into."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Guidance
from fedproto_app.core.version import __version__
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import make_windows
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, make_learner, train_cohort
from tests.helpers.tiny_cohort import cohort_of, tiny_learner

LENGTHS = (80, 60, 44)  # of the series. The clients have different numbers of batches
WIDE: dict[str, Any] = {"data.horizon": 3, "data.calendar": "week", "model.representation-dim": 32}


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Compile the kernel for the tests that use it, and yield what a run says about it."""
    numba = pytest.importorskip("numba", reason="needs the extra fast")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "CACHE_DIR", str(tmp_path_factory.mktemp("kernel")))
        from fedproto_app.models.kernel.cohort import prepare

        yield prepare()


def ragged_cohort(learner: AnyLearner) -> Cohort:
    """Return clients with different lengths, two of them with missing values."""
    rng = np.random.default_rng(0)
    series = [ClientSeries(f"client {n}", rng.normal(size=n)) for n in LENGTHS]
    series[0].values[[7, 20, 21]] = np.nan
    series[2].values[9:14] = np.nan
    data = learner.task.settings.data
    return cohort_of(learner, [make_windows(client, data) for client in series])


def global_guidance(learner: AnyLearner) -> Guidance:
    """Return a shared model that is not the clients' initial one, so that it pulls."""
    initial = learner.initial_parameters()
    return Guidance({n: (v + 0.01).numpy() for n, v in initial.items() if learner.is_shared(n)})


def trained(method: str, kernel: str, changes: dict[str, Any]) -> tuple[dict[str, Any], Cohort]:
    """Return the losses and the cohort after two rounds of two epochs."""
    learner = tiny_learner(method, **{"kernel": kernel, "local-epochs": 2, **changes})
    cohort = ragged_cohort(learner)
    context = learner.context(global_guidance(learner), cohort)
    losses = {}
    for cohort.server_round in (1, 2):
        losses = train_cohort(learner, cohort, context)
    return losses, cohort


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("solo", {}),
        ("fedavg", WIDE),
        ("fedprox", {"fedprox.proximal-mu": 0.5}),
        ("fedrep", {"optimizer.learning-rate": 0.01}),
        ("ditto", {"ditto.proximal-lambda": 0.5, **WIDE}),
    ],
)
def test_equals_torch(method: str, changes: dict[str, Any]) -> None:
    expected_losses, expected = trained(method, "torch", changes)
    losses, cohort = trained(method, "numba", changes)
    assert losses.keys() == expected_losses.keys()
    for name, loss in losses.items():
        torch.testing.assert_close(loss, expected_losses[name], rtol=0, atol=1e-6)
    for name, value in cohort.parameters.items():
        torch.testing.assert_close(value, expected.parameters[name], rtol=0, atol=1e-5)
    for kind, tensors in cohort.optimizer.state.items():
        for name, value in tensors.items():
            torch.testing.assert_close(value, expected.optimizer.state[kind][name])


def test_the_first_run_says_what_compilation_took_and_later_runs_nothing(
    compiled_once: str,
) -> None:
    from fedproto_app.models.kernel.cohort import prepare

    where = rf"compiled into /.*/fedproto-{re.escape(__version__)}-numba-[\d.]+-[\da-f]{{12}}"
    assert re.fullmatch(rf"kernel = 'numba': {where} in \d+ processor seconds", compiled_once)
    assert prepare() == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"task": "sequence-classification", "data.source": "synthetic-air-writing"}, "task = "),
        ({"model.module": "mine:Net"}, "model.module = 'mine:Net'"),
        ({"method": "solo", "model.width-factors": "1,0.5"}, "model.width-factors = '1,0.5'"),
        ({"optimizer.name": "sgd"}, "optimizer.name = 'sgd'"),
        ({"optimizer.smoothing-window": 2}, "optimizer.smoothing-window = 2"),
        ({"precision": "bfloat16"}, "precision = 'bfloat16'"),
        ({"device": "cuda"}, "device = 'cuda'"),
        ({"method": "fuels"}, "trains only .*fedavg.*, so method = 'fuels'"),
    ],
)
def test_what_the_kernel_lacks_is_refused_in_a_line(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        settings_from({"method": "fedavg", "kernel": "numba", **changes})
    assert re.fullmatch(
        "kernel = 'numba': trains only .*needs kernel = 'torch'", str(refused.value)
    )


def test_a_missing_numba_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(
        SettingsError, match=r"^kernel = 'numba': needs numba .*\[fast\]"
    ) as refused:
        settings_from({"method": "fedavg", "kernel": "numba"})
    assert "\n" not in str(refused.value)


def test_a_node_with_a_gpu_is_refused() -> None:
    pytest.importorskip("numba", reason="needs the extra fast")
    settings = settings_from({"method": "fedavg", "kernel": "numba"})
    task: Any = SimpleNamespace(device=torch.device("cuda:1"))
    with pytest.raises(SettingsError, match=r"^kernel = 'numba': .* device is cuda:1$"):
        make_learner(settings, task)


def double(number: int) -> int:
    return number * 2


@pytest.fixture
def cache_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    numba = pytest.importorskip("numba", reason="needs the extra fast")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


RENAMED = b"cfedproto_app.models.kernel\nClassOfAnOlderVersion\n."


@pytest.mark.parametrize(
    ("file", "content"), [("*.nbi", b""), ("*.nbc", b"\x80\x04"), ("*.nbc", RENAMED)]
)
def test_a_damaged_cache_is_compiled_anew(cache_place: Path, file: str, content: bytes) -> None:
    from fedproto_app.models.kernel import cached

    assert cached(double)(4) == 8
    (damaged,) = cache_place.rglob(file)
    damaged.write_bytes(content)
    for in_cache in (0, 1):
        function = cached(double)
        assert function(4) == 8
        assert sum(function.stats.cache_hits.values()) == in_cache


def test_without_a_private_folder_nothing_is_cached(
    cache_place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from numba import config

    from fedproto_app.models.kernel import cache_folder, cached

    folder = cache_folder()
    assert folder is not None
    folder.chmod(0o777)
    assert cache_folder() is None
    (cache_place / "file").touch()
    monkeypatch.setattr(config, "CACHE_DIR", str(cache_place / "file"))
    with caplog.at_level(logging.WARNING):
        assert cached(double)(4) == 8
    (line,) = caplog.messages
    assert line.startswith("kernel = 'numba': no private folder")
    assert "\n" not in line
