"""Submit runs to a SuperLink for ``fedproto run``: to a new one, or to one that already runs.

``flwr run .`` leaves a SuperLink behind. It keeps the folder and the environment of its first run,
and no command stops it. Here the SuperLink of a run lives in a temporary FLWR_HOME on a free port.
At the end of its ``with`` block it ends, with all processes that it started. If this process is
killed, a guardian ends them. Flower's programs do the work, and this module does not import Flower.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sysconfig
import time
import tomllib
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import tomli_w

from fedproto_app.core.errors import FederationError
from fedproto_app.core.version import __version__
from fedproto_app.ops.guardian import Guardian, marked_processes
from fedproto_app.settings.tables import pyproject_tables

_NAME = "own"  # the name of the connection in FLWR_HOME/config.toml
_START_DEADLINE = 300.0  # seconds until the SuperLink must answer, as in `fleet.py`
_REACHED_WITHIN = 180.0  # seconds until a named SuperLink, which may be starting, must listen
_ANSWER_DEADLINE = 120.0  # seconds for one call of flwr
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_LONGEST_RAY_FOLDER = 40  # Ray's socket names add some 62 characters; the system allows 103

_QUIET = {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0"}

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy for loopback

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class ConnectionLost(FederationError):
    """The SuperLink did not tell the status of a run. The run itself may go on."""


@dataclass(frozen=True)
class RunStatus:
    """Flower's status of a run, for example "running" or "finished:completed"."""

    status: str
    details: str

    @property
    def finished(self) -> bool:
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


class Connection:
    """A SuperLink that ``flwr`` can reach.

    name: the connection's name in FLWR_HOME/config.toml. folder: a folder for the files of one run.
    """

    def __init__(
        self, name: str, folder: Path, programs: Path, environment: Mapping[str, str]
    ) -> None:
        self._name, self._folder = name, folder
        self._programs, self._environment = programs, environment

    def submit(self, app: Path, run_config: Mapping[str, object], *options: str) -> str:
        """Submit the app in the folder ``app`` for a run, and return Flower's run id.

        run_config: the run's settings, nested.
        """
        config = self._folder / "run-config.toml"
        config.write_text(tomli_w.dumps(run_config), encoding="utf-8")
        flags = ["--run-config", str(config), *options]
        return str(self.ask("run", str(app), self._name, *flags)["run-id"])

    def status(self, run_id: str) -> RunStatus:
        """Return the run's status, or raise `ConnectionLost` if the SuperLink is silent."""
        try:
            runs = self.ask("list", self._name, "--run-id", run_id)["runs"]
        except FederationError as error:
            raise ConnectionLost(str(error)) from None
        if not runs:
            raise ConnectionLost(f"the SuperLink {self._name!r} knows no run {run_id}")
        return RunStatus(runs[0]["status"], runs[0]["status-details"])

    def follow(self, run_id: str, log: Path) -> subprocess.Popen[bytes]:
        """Start writing the run's log to the file ``log``. The process ends when the run does."""
        with log.open("wb") as file:
            return self._start(["flwr", "log", run_id, self._name, "--stream"], file)

    def _start(self, command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        program = self._programs / command[0]
        try:
            return subprocess.Popen(
                [program, *command[1:]],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise FederationError(f"{program}: {error.strerror}; is Flower installed?") from None

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Return Flower's JSON answer to one call of ``flwr``."""
        command = [str(self._programs / "flwr"), *arguments, "--format", "json"]
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_ANSWER_DEADLINE,
                start_new_session=True,
            )
            answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except subprocess.TimeoutExpired:
            raise FederationError(
                f"flwr {arguments[0]} did not answer within {_ANSWER_DEADLINE:.0f} s"
            ) from None
        except ValueError:
            output = " ".join(_ESCAPE.sub("", done.stderr or done.stdout).split())
            raise FederationError(f"flwr {arguments[0]} failed: {output}") from None
        if not answer.get("success"):
            reason = " ".join(str(answer.get("error-message", "no reason given")).split())
            raise FederationError(f"flwr {arguments[0]} failed: {reason}")
        return answer


class NamedSuperLink(Connection):
    """A SuperLink that is already running, given by its name in Flower's config.toml.

    folder: an empty folder for the run's settings, and for the log while the run is followed.
    """

    def __init__(self, name: str, folder: Path) -> None:
        environment = {**os.environ, **_QUIET}
        environment.pop("FORCE_COLOR", None)
        super().__init__(name, folder, Path(sysconfig.get_path("scripts")), environment)
        self.name = name

    def await_answer(self, tell: Callable[[str], None]) -> None:
        """Wait until a program listens at the SuperLink's address. It may be starting.

        tell: called once if it is necessary to wait. The wait ends after `_REACHED_WITHIN` in any
        case. Behind a proxy or without an address there is none, because Flower's own error is then
        more helpful.
        """
        with suppress(OSError, ValueError, KeyError, TypeError):
            host, port = address_of(connection_entry(self.name))
            if urllib.request.getproxies().get("https") and not urllib.request.proxy_bypass(host):
                return
            deadline, is_waiting = time.monotonic() + _REACHED_WITHIN, False
            while time.monotonic() < deadline:
                try:
                    socket.create_connection((host, port), timeout=5).close()
                    return
                except OSError as error:
                    if not is_waiting:
                        tell(
                            f"waiting up to {_REACHED_WITHIN:.0f} s for {host}:{port}, the "
                            f"SuperLink {self.name!r}: {error.strerror or error}"
                        )
                    is_waiting = True
                time.sleep(1)

    @property
    def log(self) -> Path:
        """The file where the run's log is written while the run is followed."""
        return self._folder / "flower.log"


class SuperLink(Connection):
    """A SuperLink for simulations on a free loopback port, for the length of a ``with`` block.

    home: an empty folder for Flower's and Ray's files. Its path marks every process that is
    started. import_path: a folder whose modules the nodes may import (such as a user's own data
    source), or None. programs: the folder of flower-superlink and flwr.

    Raises `FederationError` if the SuperLink does not start, dies, or refuses a call.
    """

    def __init__(
        self, home: Path, import_path: Path | None = None, programs: Path | None = None
    ) -> None:
        program_folder = programs or Path(sysconfig.get_path("scripts"))
        environment = _environment(home, program_folder, import_path)
        super().__init__(_NAME, home, program_folder, environment)
        self._home = home
        self._log = home / "superlink.log"

    def __enter__(self) -> Self:
        port = free_port()
        command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
        with ExitStack() as started:
            started.enter_context(Guardian(self._home))
            with self._log.open("wb") as log:
                # In a separate session it does not get the terminal's Ctrl-C. We end it ourselves.
                self._process = self._start(
                    [*command, "--host", "127.0.0.1", "--port", str(port)], log
                )
            started.callback(self._end)
            self._wait_until_healthy(port)
            connection = {"address": f"127.0.0.1:{port}", "insecure": True}
            config = {"superlink": {"default": _NAME, _NAME: connection}}
            (self._home / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
            self._started = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def simulate(
        self, app: Path, run_config: Mapping[str, object], nodes: int, cpus: int, gpus: float = 0.0
    ) -> str:
        """Submit a run with `nodes` simulated SuperNodes. cpus, gpus: per SuperNode."""
        federation = (
            f"num-supernodes={nodes} client-resources-num-cpus={cpus} "
            f"client-resources-num-gpus={float(gpus)}"
        )
        return self.submit(app, run_config, "--federation-config", federation)

    def check(self) -> None:
        """Raise `FederationError` with the end of the SuperLink's log if the SuperLink has died."""
        code = self._process.poll()
        if code is not None:
            raise FederationError(
                f"flower-superlink ended with code {code}; its last lines:\n{tail(self._log)}"
            )

    def _wait_until_healthy(self, port: int) -> None:
        deadline = time.monotonic() + _START_DEADLINE
        while time.monotonic() < deadline:
            self.check()
            with suppress(OSError), _DIRECT.open(f"http://127.0.0.1:{port}/health", timeout=2):
                return
            time.sleep(0.1)
        raise FederationError(
            f"flower-superlink did not answer on port {port} within {_START_DEADLINE:.0f} s; "
            f"its last lines:\n{tail(self._log)}"
        )

    def _end(self) -> None:
        """End all started processes. A second Ctrl-C only shortens the grace period."""
        try:
            self._signal_until_gone(signal.SIGTERM)
        finally:
            self._signal_until_gone(signal.SIGKILL)
            self._process.wait(timeout=_GRACE)

    def _signal_until_gone(self, number: signal.Signals) -> None:
        deadline = time.monotonic() + _GRACE
        signalled: set[int] = set()
        while (running := self._running()) and time.monotonic() < deadline:
            for process in running - signalled:
                with suppress(ProcessLookupError):
                    os.kill(process, number)
            signalled |= running
            self._process.poll()  # reaps it
            time.sleep(0.05)

    def _running(self) -> set[int]:
        """Return the ids of all running processes with our FLWR_HOME in their environment.

        SuperExec leaves the SuperLink's session, and Ray's daemons may outlive their parent. But
        all of them inherit the environment. On a system without /proc, only the SuperLink's id is
        returned. Flower's other processes then end by themselves, because they watch their parent.
        """
        if not Path("/proc/self/environ").exists():
            return {self._process.pid} if self._process.poll() is None else set()
        return set(marked_processes(self._home))


def connection_entry(name: str) -> dict[str, Any]:
    """Return the entry of a connection in $FLWR_HOME/config.toml. Raises OSError or KeyError."""
    home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser()
    entry: dict[str, Any] = tomllib.loads((home / "config.toml").read_text())["superlink"][name]
    return entry


def address_of(entry: Mapping[str, Any]) -> tuple[str, int]:
    """Return the host and the port of a connection."""
    host, _, port = str(entry["address"]).rpartition(":")
    return host, int(port)


def free_port() -> int:
    """Return a free port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tail(log: Path, lines: int = 20) -> str:
    """Return the last lines of a log file, without colours, or "" if the file does not exist."""
    if not log.exists():
        return ""
    text = _ESCAPE.sub("", log.read_text(encoding="utf-8", errors="replace"))
    return "\n".join(text.splitlines()[-lines:])


def _environment(home: Path, programs: Path, import_path: Path | None) -> dict[str, str]:
    inherited = dict(os.environ)
    for name in ("RAY_ADDRESS", "FORCE_COLOR"):  # use no cluster by accident, no colours in JSON
        inherited.pop(name, None)
    changes = {
        **_QUIET,
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # we run in the app's environment
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # GPUs stay visible, and the app chooses
        "PYTHONUNBUFFERED": "1",  # the log is read while it grows
        "SPT_NOENV": "1",  # Ray's renamed processes keep the environment that marks them as ours
        # SuperLink and SuperExec find Flower's other programs by name.
        "PATH": f"{programs}{os.pathsep}{inherited.get('PATH', os.defpath)}",
    }
    for name in ("no_proxy", "NO_PROXY"):  # gRPC asks a proxy for loopback addresses too
        changes[name] = ",".join(filter(None, [inherited.get(name), "127.0.0.1,localhost"]))
    if len(str(home)) <= _LONGEST_RAY_FOLDER:
        changes["RAY_TMPDIR"] = str(home)
    if import_path is not None:
        paths = [str(import_path), *filter(None, [inherited.get("PYTHONPATH")])]
        changes["PYTHONPATH"] = os.pathsep.join(paths)
    return inherited | changes


_PROJECT = {
    "project": {
        "name": "fedproto-app",
        "version": __version__,
        "description": "The installed fedproto-app",
        "license": {"file": "LICENSE"},
        "dependencies": ["flwr[simulation]>=1.39,<1.43"],
    },
    "tool": {
        "flwr": {
            "app": {
                "publisher": "fedproto",
                "fab-format-version": 1,
                "flwr-version-target": "1.39.0",
                "components": {
                    "serverapp": "fedproto_app.server_app:app",
                    "clientapp": "fedproto_app.client_app:app",
                },
            }
        }
    },
}
_LICENSE = "Apache License 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"


def write_app(folder: Path) -> Path:
    """Write the app into a new folder, and return the folder."""
    folder.mkdir()
    (folder / "LICENSE").write_text(_LICENSE, encoding="utf-8")
    # Write every key, because Flower accepts no other keys in a run's settings.
    project = f"{tomli_w.dumps(_PROJECT)}\n{pyproject_tables()}"
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    return folder
