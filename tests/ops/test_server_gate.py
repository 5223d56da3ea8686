"""The server's gate: it refuses unlisted apps, and logs a run before its code is loaded."""

from __future__ import annotations

import json
import os
import warnings
from importlib import import_module
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_files

from fedproto_app.core.errors import SettingsError
from fedproto_app.ops.gate import replace_steps
from fedproto_app.ops.gate.server_gate import DIGESTS, Reporter
from fedproto_app.ops.superlink import write_app

MODULE = "flwr.superlink.runtime.run_serverapp"
STEPS = ("install_from_fab", "get_fused_config_from_dir")


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Flower's module with steps that only record their calls. It is restored after the test."""
    module, done = import_module(MODULE), list[Any]()
    monkeypatch.setattr(module, STEPS[0], lambda content, skip_prompt: done.append(content))
    config = {"method": "fuels", "rounds": 3, "secret-of-mine": "x"}
    monkeypatch.setattr(module, STEPS[1], lambda folder, override: config)
    return done


def report_in(pipe: int) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(os.read(pipe, 10**5))
    os.close(pipe)
    return report


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = write_app(tmp_path_factory.mktemp("app") / "app")
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}
    files["LICENSE"] = (folder / "LICENSE").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's, of a library of its own
        return build_fab_from_files(files)[0]


def test_a_run_is_told_before_its_code_is_loaded(flower: list[Any], content: bytes) -> None:
    read, write = os.pipe()
    Reporter(write)
    module = vars(import_module(MODULE))
    module[STEPS[0]](content, skip_prompt=True)
    assert flower == [content]
    assert module[STEPS[1]]("folder", {})["rounds"] == 3
    report = report_in(read)
    assert (report["event"], report["run"], report["app"]) == ("run", 1, "fedproto/fedproto-app")
    assert report["settings"] == {"method": "fuels", "rounds": 3}
    with pytest.raises(OSError, match="Bad file descriptor"):  # the pipe is closed
        os.write(write, b"x")


def test_an_app_that_is_not_listed_is_never_unpacked(
    flower: list[Any], content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIGESTS, "0" * 64 + "  " + "1" * 64)
    read, write = os.pipe()
    Reporter(write)
    with pytest.raises(SettingsError, match=f"which {DIGESTS} lacks"):
        vars(import_module(MODULE))[STEPS[0]](content, skip_prompt=True)
    assert flower == []
    report = report_in(read)
    assert report["event"] == "refused"


def test_another_flower_gets_no_gate() -> None:
    with pytest.raises(SystemExit, match="has no no_such_step"):
        replace_steps(MODULE, no_such_step=print)
    assert not hasattr(import_module(MODULE), "no_such_step")
