"""What a command prints when Ctrl-C or a terminating signal stops it.

This module imports nothing slow, so a command can load it first.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, Self

PROGRAM = "fedproto"
NOTHING_WRITTEN = "stopped: nothing was written yet"

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_LATER = 0.05  # seconds until a signal that came during an import is sent again
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_CODES = [128 + number for number in (signal.SIGINT, *_ENDING)]
_received: list[int] = []  # the signals that came since the program began


def end_on_signals() -> None:
    """Turn terminating signals into `SystemExit`, so that child processes are ended too.

    Ctrl-C still raises `KeyboardInterrupt`. `WhenStopped` learns of all these signals.
    """

    def leave(number: int, _: object) -> NoReturn:
        _received.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for number in (signal.SIGINT, *_ENDING):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, leave)


@contextmanager
def imports_first() -> Iterator[None]:
    """Delay Ctrl-C and signals that arrive during an import until the import has finished.

    C++ libraries such as torch abort the process if an exception is raised while they load.
    Modules are imported lazily, so this can happen anywhere. Only the main thread gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: handler
        for number in (signal.SIGINT, *_ENDING)
        if callable(handler := signal.getsignal(number))  # not if the signal is ignored
    }

    def wait_or_handle(number: int, frame: FrameType | None) -> None:
        if _imports(frame):
            timer = threading.Timer(_LATER, os.kill, (os.getpid(), number))
            timer.daemon = True
            timer.start()
        else:
            before[signal.Signals(number)](number, frame)

    for number in before:
        signal.signal(number, wait_or_handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _imports(frame: FrameType | None) -> bool:
    """Whether the frame belongs to an import that is in progress."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False


class Stopped(SystemExit):
    """The exit of a stopped program that has already printed its message."""


class WhenStopped:
    """Prints one line if the ``with`` block is stopped, and exits with 128 + the signal's number.

    If an inner block of this kind has printed its line, the outer one prints nothing. Extension
    modules such as pydantic's may turn the exception that a signal raises in a callback into an
    error of their own. Therefore any error after a signal counts as a stop. says: returns the line.
    """

    def __init__(self, says: Callable[[], str] = lambda: NOTHING_WRITTEN) -> None:
        self.says = says

    def __enter__(self) -> Self:
        self._signals_before = len(_received)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 0
        if isinstance(error, Exception) and len(_received) > self._signals_before:
            code = 128 + _received[-1]
        if isinstance(error, SystemExit) and not isinstance(error, Stopped):
            code = error.code if error.code in _CODES else 0
        if code:
            print(self.says(), file=sys.stderr)
            raise Stopped(code) from None


@contextmanager
def removed_if_empty(run: Path) -> Iterator[None]:
    """Remove the run's folder after an error if it is empty, so that its name is free again."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            run.rmdir()
        raise


def shown(path: Path) -> str:
    """Return the path as text, relative to the current folder if it lies in that folder."""
    current = Path.cwd()
    return str(path.relative_to(current) if path.is_relative_to(current) else path)


def program() -> str:
    """Return the command that starts this program: ``fedproto`` if that finds it, else its path."""
    called, by_name = sys.argv[0], shutil.which(PROGRAM)
    if Path(called).name != PROGRAM or (
        by_name and Path(by_name).resolve() == Path(called).resolve()
    ):
        return PROGRAM
    return shlex.quote(called)
