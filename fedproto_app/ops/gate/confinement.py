"""Run untrusted code in a separate process: limited, timed, and ended with all its descendants.

The gate forks this process before it receives the order, so the process has none of the gate's
connections, tokens and locks. If the gate is root, the process becomes another user for good
(FEDPROTO_RUN_AS). Only then is the code unable to kill the gate or to change its files. This works
only on Linux.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

RUN_AS = "FEDPROTO_RUN_AS"  # the user id of the separate process
_LENGTH = struct.Struct("<Q")
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # of prctl
_CHUNK = 2**20
_LOOK_EVERY = 0.2  # seconds
_DYING = 2.0  # seconds that a process may take to end after it has closed its connection
_ENDING = 20.0  # seconds within which all descendants must have ended


class Ended(Exception):
    """The separate process gave no answer. The message says why."""


def frame(*parts: bytes) -> bytes:
    """Join the parts, each preceded by its length."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def parts_of(framed: bytes) -> Iterator[bytes]:
    """Yield the parts that `frame` has joined."""
    start = 0
    while start < len(framed):
        (length,) = _LENGTH.unpack_from(framed, start)
        yield framed[start + _LENGTH.size : start + _LENGTH.size + length]
        start += _LENGTH.size + length


class Apart:
    """A process that waits for one job (bytes), does it, and returns the answer (bytes).

    work: does the job in that process. The process has its own folder for temporary files, HOME and
    FLWR_HOME, which is removed with the process.
    """

    def __init__(self, work: Callable[[bytes], bytes], run_as: int | None) -> None:
        adopt_orphans()
        self._run_as = run_as
        self._status: int | None = None  # of the process, once it has ended
        self._folder = tempfile.gettempdir() + f"/order-{os.getpid()}-{time.monotonic_ns()}"
        job, self._job = os.pipe()
        self._answer, answer = os.pipe()
        gate = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._be_apart(work, gate, job, answer)
        os.close(job)
        os.close(answer)

    def do(self, job: bytes, seconds: float, byte_limit: int) -> bytes:
        """Return the answer to the job.

        Raises `Ended` if the answer does not arrive within so many seconds, or is longer than
        `byte_limit`.
        """
        deadline = time.monotonic() + seconds
        self._hand_over(job, deadline, f"did not take its order within {seconds:g} s")
        received = bytearray()
        while not (answer := _complete_answer(received, byte_limit)):
            if time.monotonic() > deadline:  # even if bytes are still arriving
                raise Ended(f"not done within {seconds:g} s")
            if not select.select([self._answer], [], [], _LOOK_EVERY)[0]:
                self._see_that_it_lives()
            elif chunk := os.read(self._answer, _CHUNK):
                received += chunk
            else:
                self._see_that_it_lives(_DYING)
                raise Ended("closed its connection to the gate without an answer")
        return bytes(answer)

    def _hand_over(self, job: bytes, deadline: float, too_late: str) -> None:
        """Write the job to the process. Raise `Ended` if it reads too slowly, or not at all."""
        os.set_blocking(self._job, False)
        view = memoryview(frame(job))
        try:
            while view:
                if time.monotonic() > deadline:
                    raise Ended(too_late)
                if select.select([], [self._job], [], _LOOK_EVERY)[1]:
                    view = view[os.write(self._job, view) :]
        except BrokenPipeError:
            pass  # the process has died, which `do` detects
        finally:
            os.close(self._job)

    def end(self) -> int:
        """End the process and its descendants. Return how many descendants were still running."""
        leftover = end_descendants() - {self._pid}
        pid = os.fork()
        if pid == 0:  # root without capabilities cannot remove another user's files
            with suppress(BaseException):
                become(self._run_as)
                shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(0)
        os.waitpid(pid, 0)
        return len(leftover)

    def _see_that_it_lives(self, patience: float = 0.0) -> None:
        """Raise `Ended` if the process dies without an answer within `patience` seconds."""
        deadline = time.monotonic() + patience
        while self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status = status
            elif time.monotonic() >= deadline:
                return
            else:
                time.sleep(0.01)
        status = self._status
        if not patience and os.WIFEXITED(status):
            return  # its answer is first read to the end
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            hint = ", perhaps because memory is short" if number == signal.SIGKILL else ""
            raise Ended(f"was ended by signal {number}{hint}")
        raise Ended(f"ended with exit code {os.waitstatus_to_exitcode(status)} and no answer")

    def _be_apart(
        self, work: Callable[[bytes], bytes], gate: int, job: int, answer: int
    ) -> NoReturn:
        code = 1
        try:
            os.setsid()
            become(self._run_as)
            die_with_parent()
            if os.getppid() == gate:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                for number in os.listdir("/proc/self/fd"):
                    if int(number) > 2 and int(number) not in (job, answer):
                        with suppress(OSError):
                            os.close(int(number))
                job_bytes = bytearray()
                while chunk := os.read(job, _CHUNK):
                    job_bytes += chunk
                if job_bytes:
                    self._live_in_folder()
                    _write_all(answer, frame(work(next(parts_of(bytes(job_bytes))))))
                code = 0
        except BaseException as error:
            print(f"the separate process failed: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def _live_in_folder(self) -> None:
        os.mkdir(self._folder, 0o700)
        for variable in ("HOME", "TMPDIR", "FLWR_HOME", "MPLCONFIGDIR"):
            os.environ[variable] = self._folder
        tempfile.tempdir = self._folder


def run_as() -> int | None:
    """Return the user id in FEDPROTO_RUN_AS, or None for the gate's user."""
    user = os.environ.get(RUN_AS, "")
    if user and not user.isdigit():
        raise SystemExit(f"{RUN_AS} = {user!r}: must be a user's number")
    return int(user) if user else None


def limit_memory(megabytes: int | None) -> None:
    """Limit the private memory of this process. Files and libraries are not counted."""
    if megabytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes * 2**20,) * 2)


def die_with_parent() -> None:
    """End this process when its parent ends."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants, so that none can hide as a daemon."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def end_descendants() -> set[int]:
    """Kill all descendants of this process, including those that left their parents.

    Returns their ids. Raises `Ended` if a process cannot be killed.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + _ENDING
    while states := _descendants():
        if time.monotonic() > deadline:
            raise Ended(f"processes that cannot be ended: {sorted(states)}")
        running = {pid for pid, state in states.items() if state != "Z"}  # Z: has ended
        killed |= running
        for number in (signal.SIGSTOP, signal.SIGKILL):  # a stopped process can start no other
            for pid in running:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    return killed


def _descendants() -> dict[int, str]:
    """Return the ids of this process's descendants, with the letter of their state."""
    children: dict[int, list[tuple[int, str]]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append((int(folder.name), fields[0]))
    descendants: dict[int, str] = {}
    look = [os.getpid()]
    while look:
        for pid, state in children.get(look.pop(), []):
            descendants[pid] = state
            look.append(pid)
    return descendants


def become(user: int | None) -> None:
    """Become this user for good. None keeps the current user."""
    if user is not None and os.getuid() != user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _complete_answer(received: bytearray, byte_limit: int) -> bytearray | None:
    """Return the answer, or None if it is not complete yet."""
    if len(received) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(received)
    if length > byte_limit:
        raise Ended(f"answered with {length} bytes, more than {byte_limit}")
    return received[_LENGTH.size :] if len(received) >= _LENGTH.size + length else None


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
