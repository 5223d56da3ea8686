"""How a stopped simulation ends: the expected and the actual outcome.

    python -m benchmarks.endings

Each case is a real ``fedproto run`` on the embedded traffic, stopped from outside. Takes about two
minutes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.pages import ROOT
from benchmarks.parts import PROGRAM
from fedproto_app.ops.guardian import marked_processes

SMALL = ["--set=data.synthetic.clients=4", "--set=output.pictures=false", "--set=patience=0"]
ROUNDS = 40


class Case:
    """A command in its own folder, with all processes that it starts."""

    def __init__(self, folder: Path, name: str = "mine") -> None:
        self.folder, self.run = folder, folder / "runs" / name

    def command(self, *options: str) -> subprocess.Popen[str]:
        """Start `fedproto run` with these options."""
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "run", *options],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "FLWR_HOME": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self) -> subprocess.Popen[str]:
        return self.command(*SMALL, f"--set=rounds={ROUNDS}", f"--set=output.name={self.run.name}")

    def await_rounds(self, number: int) -> None:
        """Wait until the run has done so many rounds."""
        lines = self.run / "rounds.jsonl"
        while not lines.exists() or len(lines.read_text().splitlines()) < number:
            time.sleep(0.05)

    def processes_left(self) -> int:
        """Count the case's living processes, two seconds later."""
        time.sleep(2)
        return len(marked_processes(self.folder))

    def resumed(self) -> str:
        """Resume the run, and return whether it ends as an uninterrupted run."""
        done = self.command("--resume", str(self.run))
        done.communicate(timeout=300)
        uninterrupted = Case(self.folder, "whole")
        uninterrupted.start().communicate(timeout=300)
        tables = [(run / "clients.csv").read_bytes() for run in (self.run, uninterrupted.run)]
        equal = tables[0] == tables[1]
        return "resumed: clients.csv equal" if equal else "resumed: clients.csv DIFFERS"


def killed_command(case: Case) -> str:
    process = case.start()
    case.await_rounds(5)
    process.kill()
    process.wait()
    return f"{case.processes_left()} processes left; {case.resumed()}"


def killed_worker(case: Case) -> str:
    process = case.start()
    case.await_rounds(5)
    processes = marked_processes(case.folder).items()
    workers = [process_id for process_id, words in processes if "worker" in words]
    os.kill(max(workers), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    last = [line for line in errors.splitlines() if line.startswith("error")][-1]
    living = case.processes_left()
    return f"exit {process.returncode}, {last!r}; {living} processes left; {case.resumed()}"


def one_name_twice(case: Case) -> str:
    first, second = case.start(), case.start()
    codes = sorted([first.wait(300), second.wait(300)])
    rounds = len((case.run / "rounds.jsonl").read_text().splitlines())
    return f"exit codes {codes}, {rounds} rounds written"


def resumed_while_it_lives(case: Case) -> str:
    first = case.start()
    case.await_rounds(3)
    second = case.command("--resume", str(case.run))
    _, errors = second.communicate(timeout=60)
    first.wait(300)
    return f"second: exit {second.returncode}, {errors.strip().splitlines()[-1][:100]!r}"


def interrupted(after: float | int) -> Callable[[Case], str]:
    """Return a case that is stopped by Ctrl-C, after some seconds or rounds."""

    def do(case: Case) -> str:
        process = case.start()
        if isinstance(after, int):
            case.await_rounds(after)
        else:
            time.sleep(after)
        process.send_signal(signal.SIGINT)
        interrupted = time.monotonic()
        _, errors = process.communicate(timeout=60)
        seconds = time.monotonic() - interrupted
        line = errors.strip().splitlines()[-1]
        line = line.replace(str(case.folder), "")
        living = case.processes_left()
        return f"exit {process.returncode} after {seconds:.1f} s, {line!r}; {living} left"

    return do


CASES: list[tuple[str, str, Callable[[Case], str]]] = [
    ("SIGKILL of the command in training", "nothing goes on; resumed as if whole", killed_command),
    ("SIGKILL of a worker in training", "the run stops and says so; resumed", killed_worker),
    ("one name, two commands at once", "one runs, one is refused", one_name_twice),
    ("--resume while the run lives", "refused, with who holds it", resumed_while_it_lives),
    ("Ctrl-C after 0.8 s", "exit 130, nothing written", interrupted(0.8)),
    ("Ctrl-C after round 5", "exit 130, the line that goes on", interrupted(5)),
]


def main() -> None:
    """Run each case, and print what happened."""
    table = Table("what is done", "expected", "what happened", title="Endings of a simulation")
    for title, expected, do in CASES:
        with tempfile.TemporaryDirectory(prefix="fedproto-endings-") as folder:
            table.add_row(title, expected, do(Case(Path(folder))))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
