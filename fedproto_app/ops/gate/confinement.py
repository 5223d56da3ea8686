"""A process apart for code that came from elsewhere: limited, timed, and ended with all it started.

The gate forks it before it knows anything of the order, so that no connection, token or lock of the
gate's is in it. If the gate is root, the process becomes another user for good (FEDPROTO_RUN_AS):
only then can the code neither end its gate nor touch its files. Linux alone.
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

RUN_AS = "FEDPROTO_RUN_AS"  # the user id of the process apart
_LENGTH = struct.Struct("<Q")
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # of prctl
_CHUNK = 2**20
_LOOK_EVERY = 0.2  # seconds
_DYING = 2.0  # seconds from its last word to its end
_ENDING = 20.0  # seconds in which all descendants must be gone


class Ended(Exception):
    """The process apart gave no answer; the message says why."""


def frame(*parts: bytes) -> bytes:
    """The parts as one, each after its length."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def parts_of(framed: bytes) -> Iterator[bytes]:
    """What `frame` was made of."""
    start = 0
    while start < len(framed):
        (length,) = _LENGTH.unpack_from(framed, start)
        yield framed[start + _LENGTH.size : start + _LENGTH.size + length]
        start += _LENGTH.size + length


class Apart:
    """A process that waits for one job (bytes), does it and gives its answer (bytes).

    work: what it does, in that process. It has a folder of its own for temporary files, HOME and
    FLWR_HOME, which goes with it.
    """

    def __init__(self, work: Callable[[bytes], bytes], run_as: int | None) -> None:
        adopt_orphans()
        self._run_as = run_as
        self._status: int | None = None  # the process's, once it has ended
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

    def do(self, job: bytes, seconds: float, most: int) -> bytes:
        """The answer to the job; `Ended` if none came in so many seconds, or more bytes."""
        deadline = time.monotonic() + seconds
        with suppress(BrokenPipeError):  # then it has died, which is told below
            _write_all(self._job, frame(job))
            os.close(self._job)
        received = bytearray()
        while not (whole := _whole(received, most)):
            if time.monotonic() > deadline:  # whatever trickles in
                raise Ended(f"not done within {seconds:g} s")
            if not select.select([self._answer], [], [], _LOOK_EVERY)[0]:
                self._see_that_it_lives()
            elif chunk := os.read(self._answer, _CHUNK):
                received += chunk
            else:
                self._see_that_it_lives(_DYING)
                raise Ended("closed its connection to the gate without an answer")
        return bytes(whole)

    def end(self) -> int:
        """End it and all that came of it; how many were left besides it."""
        left = end_descendants() - {self._pid}
        pid = os.fork()
        if pid == 0:  # root without capabilities cannot remove another user's files
            with suppress(BaseException):
                become(self._run_as)
                shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(0)
        os.waitpid(pid, 0)
        return len(left)

    def _see_that_it_lives(self, patience: float = 0.0) -> None:
        """Raises `Ended` if it has died without an answer, within so many seconds."""
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
            return  # then what it has said is read first, to the end
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            hint = ", as where memory is short" if number == signal.SIGKILL else ""
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
                asked = bytearray()
                while chunk := os.read(job, _CHUNK):
                    asked += chunk
                if asked:
                    self._live_in_folder()
                    _write_all(answer, frame(work(next(parts_of(bytes(asked))))))
                code = 0
        except BaseException as error:
            print(f"the process apart failed: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def _live_in_folder(self) -> None:
        os.mkdir(self._folder, 0o700)
        for variable in ("HOME", "TMPDIR", "FLWR_HOME", "MPLCONFIGDIR"):
            os.environ[variable] = self._folder
        tempfile.tempdir = self._folder


def run_as() -> int | None:
    """The user that FEDPROTO_RUN_AS names; None: the gate's own."""
    named = os.environ.get(RUN_AS, "")
    if named and not named.isdigit():
        raise SystemExit(f"{RUN_AS} = {named!r}: must be a user's number")
    return int(named) if named else None


def limit_memory(megabytes: int | None) -> None:
    """The most that this process may hold of its own, not counting files and libraries."""
    if megabytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes * 2**20,) * 2)


def die_with_parent() -> None:
    """End this process when its parent does, whoever that is."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own has ended, so that none hides as a daemon."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def end_descendants() -> set[int]:
    """Kill all processes that came of this one, those that hid from their parents too.

    Returns those that there were. Raises `Ended` if one cannot be ended.
    """
    seen: set[int] = set()
    deadline = time.monotonic() + _ENDING
    while states := _descendants():
        if time.monotonic() > deadline:
            raise Ended(f"processes that cannot be ended: {sorted(states)}")
        left = {pid for pid, state in states.items() if state != "Z"}  # those have ended
        seen |= left
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped, none can start another
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    return seen


def _descendants() -> dict[int, str]:
    """All that came of this process, with the letter of their state."""
    children: dict[int, list[tuple[int, str]]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append((int(folder.name), fields[0]))
    found: dict[int, str] = {}
    look = [os.getpid()]
    while look:
        for pid, state in children.get(look.pop(), []):
            found[pid] = state
            look.append(pid)
    return found


def become(user: int | None) -> None:
    """Be this user from now on, without a way back; None: stay who it is."""
    if user is not None and os.getuid() != user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _whole(received: bytearray, most: int) -> bytearray | None:
    """The answer if all of it has come."""
    if len(received) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(received)
    if length > most:
        raise Ended(f"answered with {length} bytes, more than {most}")
    return received[_LENGTH.size :] if len(received) >= _LENGTH.size + length else None


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
