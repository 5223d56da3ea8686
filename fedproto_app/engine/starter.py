"""The starter: a process that imports torch and Flower once, and forks to start other processes.

The imports take three seconds of processor time, but a fork takes only milliseconds. A program
starts the starter with its first run, and all its runs use it. The starter reads no data and
computes nothing, so that a process forked from it is like a new one. It ends when the program ends,
however that happens.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from fedproto_app.core.errors import FederationError
from fedproto_app.core.loading import load

MOST_FILES = 250  # in a request; Linux passes at most 253 in a message
_LONGEST = 2**16  # bytes in a request
# One thread per process. Else each would use all cores, and the order of its sums would vary.
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_PROGRAM = "from fedproto_app.engine.starter import serve; serve()"


def start(
    work: str, files: Sequence[int], output: IO[bytes], import_path: Path | None = None
) -> None:
    """Start a process that calls a function with open files, and then ends.

    work: the function, ``package.module:name``. Its arguments are file descriptors. files: at most
    `MOST_FILES` descriptors that are open here. output: takes what the process prints. import_path:
    a folder that the process may import modules from, in addition to the folder of this process's
    script. Raises `FederationError` if this system cannot fork.
    """
    global _starter
    if not hasattr(os, "fork"):
        raise FederationError("this system cannot fork workers; use --engine flower")
    if _starter is None or not _starter.is_running():
        _starter = _Starter()
    prefixes = {sys.prefix, sys.base_prefix}
    own_paths = [path for path in sys.path if not any(map(Path(path).is_relative_to, prefixes))]
    before = _starter.environment
    changed = {name: os.environ.get(name) for name in dict(before.items() ^ os.environ.items())}
    request = {
        "work": work,
        "paths": [str(path) for path in (import_path, *own_paths) if path],
        "folder": os.getcwd(),
        "environment": changed,
    }
    files = [output.fileno(), *files]
    socket.send_fds(_starter.requests, [json.dumps(request).encode()], files)


class _Starter:
    """The starter as the program sees it.

    requests: a socket that takes one request per message. environment: this process's environment
    when the starter was started.
    """

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.requests, receiving = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        lifeline, self._lifeline = os.pipe()
        passed = [lifeline, receiving.fileno(), self.requests.fileno()]
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *map(str, passed)],
            pass_fds=passed,
            env={
                **os.environ,
                **dict.fromkeys(_ONE_THREAD, "1"),
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # only this process handles Ctrl-C
        )
        os.close(lifeline)
        receiving.close()
        atexit.register(self._close)

    def is_running(self) -> bool:
        if self._process.poll() is None:
            return True
        atexit.unregister(self._close)
        self._close()
        return False

    def _close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._lifeline)
        self.requests.close()


class _Inherited:
    """The starter as seen by a process that it started, which may need processes too."""

    def __init__(self, requests: socket.socket) -> None:
        self.requests, self.environment = requests, dict(os.environ)

    def is_running(self) -> bool:
        return True


_starter: _Starter | _Inherited | None = None


def serve() -> None:
    """Serve requests in the starter's process until the program ends.

    The process's arguments are the descriptors of the lifeline and of both ends of `requests`.
    """
    global _starter
    for module in ("pandas", "fedproto_app.engine.worker"):  # what most processes need
        import_module(module)
    lifeline, receiving, sending = map(int, sys.argv[1:])
    requests = socket.socket(fileno=receiving)
    _starter = _Inherited(socket.socket(fileno=sending))
    while True:
        ready, _, _ = select.select([lifeline, receiving], [], [])
        if lifeline in ready:
            return
        request, files, _, _ = socket.recv_fds(requests, _LONGEST, MOST_FILES + 1)
        if os.fork() == 0:
            os.close(lifeline)
            requests.close()
            _become(json.loads(request), files)
        for file in files:
            os.close(file)
        with suppress(ChildProcessError):  # there is none any more
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _become(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Do in this process what a request asks for, then end the process."""
    output, *descriptors = files
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.chdir(request["folder"])
    for name, value in request["environment"].items():
        os.environ.pop(name, None)
        os.environ |= {} if value is None else {name: value}
    sys.path[:0] = [path for path in request["paths"] if path not in sys.path]
    try:
        load(request["work"], "work")(*descriptors)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # skips what only the starter itself must do at its end
