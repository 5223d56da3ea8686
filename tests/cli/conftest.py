"""``fedproto`` called as a person calls it, in this process, and a stand-in for Flower."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from fedproto_app.cli import flower_run
from fedproto_app.cli.main import main
from fedproto_app.core.errors import FederationError
from fedproto_app.ops.superlink import RunStatus
from tests.cli.toy_app import write_app
from tests.report.made_runs import make_run


@dataclass(frozen=True)
class Outcome:
    """What a call printed and its exit code."""

    code: int
    out: str
    err: str


Fedproto = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def signals_of_a_terminal() -> Iterator[None]:
    """Signals as a command in a terminal finds them.

    A suite that was started in the background ignores SIGINT, and with nohup SIGHUP, and so
    would the processes that it starts.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def fedproto(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fedproto:
    """Call the command line with these arguments."""

    def call(*arguments: object) -> Outcome:
        words = ["fedproto", *map(str, arguments)]
        simulates = words[1:2] == ["run"] and "--superlink" not in words
        if simulates and isinstance(flower_run.SuperLink, FakeSuperLink):
            words.append("--engine=flower")
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), printed.out, printed.err)

    monkeypatch.setattr(sys, "path", [*sys.path])  # the command line adds the current folder
    monkeypatch.delenv("COLUMNS", raising=False)  # as a pipe has it
    return call


@pytest.fixture
def check(fedproto: Fedproto, monkeypatch: pytest.MonkeyPatch) -> Fedproto:
    """Call ``fedproto data check`` with these arguments, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    return partial(fedproto, "data", "check")


def rows(output: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in output.split("\n")]


@dataclass
class FakeSuperLink:
    """Plays Flower: records the calls, writes the artefacts, and ends in a chosen way."""

    end: str = "completed"  # or failed, stopped (error.txt), dies, interrupted
    in_folder: Callable[[Path], object] | None = None  # before it is interrupted
    number: signal.Signals = signal.SIGINT  # by which
    submitted: list[tuple[Path, dict[str, Any], int, int]] = field(default_factory=list)
    import_paths: list[Path | None] = field(default_factory=list)
    homes: list[Path] = field(default_factory=list)
    streams: int = 0
    closed: bool = False

    def __call__(self, home: Path, import_path: Path | None) -> Self:
        self.import_paths.append(import_path)
        self.homes.append(home)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def simulate(
        self, app: Path, run_config: dict[str, Any], nodes: int, cpus: int, gpus: float
    ) -> str:
        self.submitted.append((app, run_config, nodes, cpus, gpus))
        return "77"

    def follow(self, run_id: str, log: Path) -> Self:
        self.streams += 1
        log.write_text("first line\nlast line\n")
        output = self.submitted[-1][1]["output"]
        folder = Path(output["dir"]) / output["name"]
        if self.end == "completed" and self.streams == 1:
            shutil.rmtree(folder, ignore_errors=True)  # one to resume
            make_run(folder)
        if self.end == "stopped":
            folder.mkdir(exist_ok=True)
            (folder / "error.txt").write_text("node 1 never came\n")
        return self

    def poll(self) -> int:
        return 0

    def terminate(self) -> None: ...

    def wait(self) -> None: ...

    def check(self) -> None:
        if self.end == "dies":
            raise FederationError("flower-superlink ended with code 9")
        if self.end == "interrupted":
            if self.in_folder:
                output = self.submitted[-1][1]["output"]
                self.in_folder(Path(output["dir"]) / output["name"])
            signal.raise_signal(self.number)

    def status(self, run_id: str) -> RunStatus:
        if self.streams == 1 and self.end == "completed":
            return RunStatus("running", "N/A")  # the first stream broke too early
        return RunStatus(f"finished:{self.end}", "it broke")


Fake = Callable[[str], FakeSuperLink]


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replace the SuperLink by one that ends so."""

    def replace(end: str) -> FakeSuperLink:
        fake = FakeSuperLink(end)
        monkeypatch.setattr(flower_run, "SuperLink", fake)
        monkeypatch.setattr(flower_run, "_LOOK_EVERY", 0.0)
        return fake

    return replace


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder inside a toy app's folder, and the current one."""
    write_app(tmp_path / "app", tmp_path)
    folder = tmp_path / "app" / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
