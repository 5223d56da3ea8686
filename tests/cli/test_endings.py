"""What ``fedproto run`` says when it is stopped, whenever that is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import PlainSerializer, TypeAdapter

from fedproto_app.core.endings import NOTHING_WRITTEN, WhenStopped, end_on_signals, imports_first
from fedproto_app.server.checkpoint import Checkpoint, write_checkpoint
from tests.cli.conftest import Fake, Fedproto

_FEDPROTO = "from fedproto_app.cli.main import main; print(flush=True); main()"


def begin(run: Path) -> None:
    (run / "settings.toml").write_text("")
    (run / "lock").write_text("")


def trained(run: Path) -> None:
    begin(run)
    write_checkpoint(run / "checkpoint", Checkpoint(7, "token", nodes=2))


def finished(run: Path) -> None:
    trained(run)
    (run / "summary.json").write_text("{}")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize(
    ("come_to", "says"),
    [
        (None, "stopped: nothing was written yet"),
        (
            begin,
            "stopped; no round is saved yet; go on with: fedproto run --resume 'my runs/first'",
        ),
        (trained, "stopped; round 7 is saved; go on with: fedproto run --resume 'my runs/first'"),
        (finished, "stopped when all rounds were done: my runs/first"),
    ],
)
def test_whoever_stops_a_run_is_told_how_to_go_on(
    fedproto: Fedproto,
    flower: Fake,
    work_folder: Path,
    come_to: Callable[[Path], Any] | None,
    says: str,
    number: signal.Signals,
    code: int,
) -> None:
    fake = flower("interrupted")
    fake.in_folder, fake.number = come_to, number
    outcome = fedproto("run", "--set", "output.name=first", "--set=output.dir=my runs")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (code, says)
    assert fake.closed
    assert (work_folder / "my runs" / "first").exists() == (come_to is not None)


def test_what_a_stopped_resume_needs_again_is_in_the_line(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    flower("interrupted")
    run = work_folder / "runs" / "first"
    run.mkdir(parents=True)
    trained(run)
    app = work_folder.parent
    outcome = fedproto("run", "--resume", "runs/first", "--set", "rounds=60", "--app", app)
    assert outcome.err.endswith(
        f"go on with: fedproto run --resume runs/first --app {app} --set rounds=60\n"
    )


def test_a_stop_waits_for_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_load.py").write_text(
        "import signal, time\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "loaded = time.sleep(0.2) is None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = None
    before = signal.getsignal(signal.SIGINT)
    try:
        with imports_first():
            module = import_module("slow_to_load")
            time.sleep(10)
    except KeyboardInterrupt:
        assert module is not None
        assert module.loaded
    else:
        pytest.fail("nobody was told of it")
    assert signal.getsignal(signal.SIGINT) is before


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", _SIGNALS)
def test_an_extension_may_turn_a_stop_into_an_error(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_on_signals()
        with pytest.raises(SystemExit) as stopped, WhenStopped():
            TypeAdapter(
                Annotated[int, PlainSerializer(lambda _: signal.raise_signal(number))]
            ).dump_json(1)
        assert stopped.value.code == 128 + number
        assert capsys.readouterr().err == f"{NOTHING_WRITTEN}\n"
        with pytest.raises(ValueError, match="no stop"), WhenStopped():
            raise ValueError("no stop")
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


def test_who_ignores_signals_is_not_stopped() -> None:
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # by nohup
        end_on_signals()
        with imports_first():
            signal.raise_signal(signal.SIGHUP)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "seconds",
    [0.5, *(pytest.param(delay, marks=pytest.mark.exhaustive) for delay in (0.2, 1.0, 2.0))],
)
def test_in_the_first_second_there_is_no_traceback(
    work_folder: Path, seconds: float, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _FEDPROTO, "run"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(number)
        _, output = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output.decode()
    last = output.decode().splitlines()[-1]
    assert b"Traceback" not in output
    if list(work_folder.glob("runs/*")):  # on a fast machine the run has begun by then
        assert last.startswith("stopped; ")
        assert "saved" in last
        assert "; go on with: fedproto run --resume runs/" in last
    else:
        assert last in ("stopped", "stopped: nothing was written yet")
