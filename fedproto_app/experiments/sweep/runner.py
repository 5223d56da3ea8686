"""The runs of a sweep, several processes at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedproto_app.experiments.sweep.one_run import Order
from fedproto_app.experiments.sweep.plan import Trial
from fedproto_app.settings import Settings, flat_settings

_LOOK_EVERY = 0.5  # seconds
_LAST_WORDS = 4000  # bytes of stderr that the reason of a failure is looked for in
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """One run of a trial, complete settings and folder included."""

    trial: Trial
    seed: int
    settings: Settings

    @property
    def folder(self) -> Path:
        return Path(self.settings.output.dir) / self.settings.output.name

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").exists()

    def rounds_done(self) -> int:
        """By the lines of its rounds.jsonl."""
        try:
            return (self.folder / "rounds.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0


class Runner:
    """Makes runs, so many at a time, for the length of a ``with`` block; its end ends them all.

    workers: processes of each run, besides its own. nodes: simulated ones.
    """

    def __init__(self, parallel: int, workers: int, nodes: int) -> None:
        self._workers, self._nodes = workers, nodes
        self._pool = ThreadPoolExecutor(parallel, "sweep")
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            for process in self._running:
                assert process.stdin is not None
                process.stdin.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def make(
        self,
        jobs: Sequence[Job],
        ended: Callable[[Job, str], None],
        look: Callable[[], None],
    ) -> None:
        """Make those that are not finished.

        ended: called with each that ended, and why it failed or "". look: called now and then.
        """
        waiting: Mapping[Future[str], Job] = {
            self._pool.submit(self._one, job): job for job in jobs if not job.finished
        }
        left = set(waiting)
        while left:
            done, left = wait(left, timeout=_LOOK_EVERY, return_when="FIRST_COMPLETED")
            for future in done:
                ended(waiting[future], future.result())
            look()

    def _one(self, job: Job) -> str:
        """Why the run failed, "" if it did not."""
        order = Order(flat_settings(job.settings), self._nodes, self._workers)
        with tempfile.TemporaryFile() as said:
            with self._lock:
                if self._closed:
                    return "stopped"
                process = _start(said)
                self._running.add(process)
            told = process.stdin
            assert told is not None
            try:
                told.write(order.line())
                code = process.wait()
            except (BrokenPipeError, ValueError):  # it ended, or was ended, before it was told
                code = process.wait()
            finally:
                with self._lock:
                    self._running.discard(process)
                    told.close()
            if code == 0 and job.finished:
                return ""
            return _reason(said, code)


def _start(said: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedproto_app.experiments.sweep.one_run"],
        stdin=subprocess.PIPE,
        stdout=said,
        stderr=said,
        env=_environment(),
        start_new_session=True,  # the terminal's Ctrl-C is for us
        bufsize=0,
    )


def _environment() -> dict[str, str]:
    """One thread a process, as workers have it: several runs share the cores."""
    package = Path(__file__).parents[2]
    paths = filter(None, [str(package), os.environ.get("PYTHONPATH")])
    return {
        **os.environ,
        **dict.fromkeys(_ONE_THREAD, "1"),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _reason(said: Any, code: int) -> str:
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - _LAST_WORDS))
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"its process ended with {code}"
