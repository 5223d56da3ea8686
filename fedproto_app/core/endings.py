"""What a command says when it is stopped: by Ctrl-C, or by a signal that ends programs.

It imports nothing slow, so that it can be there from the first moment on.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, Self

NOTHING = "stopped: nothing was written yet"

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_LATER = 0.05  # seconds until a signal that came too early comes again
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_CODES = [128 + number for number in (signal.SIGINT, *_ENDING)]


def end_on_signals() -> None:
    """Being ended from outside must, like Ctrl-C, end what was started."""

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, leave)


@contextmanager
def imports_first() -> Iterator[None]:
    """In this block Ctrl-C and signals wait for the end of an import that they come upon.

    Libraries in C++, as torch is, abort the whole program when an exception comes while they load.
    Modules are imported when they are needed, so no place in the program is free of it. Only the
    main thread of a program hears of signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: handler
        for number in (signal.SIGINT, *_ENDING)
        if callable(handler := signal.getsignal(number))  # not where they are ignored
    }

    def wait_or_handle(number: int, frame: FrameType | None) -> None:
        if _imports(frame):
            again = threading.Timer(_LATER, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
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
    """Whether the code runs on behalf of an import statement."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False


class Stopped(SystemExit):
    """The end of a program that was stopped, and has said so."""


class WhenStopped:
    """Says in one line what it means that the ``with`` block was stopped, and exits with 128 + the
    signal's number; around another such block it says nothing more.

    says: makes the line, when it is time.
    """

    def __init__(self, says: Callable[[], str] = lambda: NOTHING) -> None:
        self.says = says

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 0
        if isinstance(error, SystemExit) and not isinstance(error, Stopped):
            code = error.code if error.code in _CODES else 0
        if code:
            print(self.says(), file=sys.stderr)
            raise Stopped(code) from None


def left_behind(run: Path, app: Path | None, changes: Sequence[str]) -> str:
    """What a run in this folder has when it was stopped, and the line that goes on with it.

    A new run's folder in which nothing was begun is removed. app, changes: what must be given
    again, the folder of the Flower app and ``--set`` of a run that was resumed itself.
    """
    from fedproto_app.server.checkpoint import newest_checkpoint

    if not (run / "settings.toml").exists():
        shutil.rmtree(run, ignore_errors=True)
        return NOTHING
    if (run / "summary.json").exists() and not changes:
        return f"stopped when all rounds were done: {shown(run)}"
    checkpoint, _ = newest_checkpoint(run / "checkpoint")
    saved = f"round {checkpoint.server_round} is saved" if checkpoint else "no round is saved yet"
    words = ["fedproto", "run", "--resume", shown(run)]
    words += ["--app", str(app)] if app else []
    words += [word for change in changes for word in ("--set", change)]
    return f"stopped; {saved}; go on with: {shlex.join(words)}"


@contextmanager
def removed_if_empty(run: Path) -> Iterator[None]:
    """A run that nothing came of gives its name back."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            run.rmdir()
        raise


def shown(path: Path) -> str:
    """The path as seen from where the user stands, if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
