"""A federation of real processes on loopback, to test what can happen on real machines.

    with LocalFederation(folder) as federation:
        nodes = [federation.add_node(f"site-{n}", config) for n, config in enumerate(configs)]
        run = federation.submit(settings)
        nodes[0].kill()
        nodes[0].start()
        assert federation.wait(run).completed

It has a SuperLink with TLS, node authentication and a database, and SuperNodes with registered
keys. Each has a FLWR_HOME, a log, and ports of its own and keeps them when it is started again. The
FLWR_HOME also marks all processes that come of it. Whatever happens, they end with the block.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import tomli_w

from benchmarks.faults import hook
from benchmarks.pages import ROOT
from fedproto_app.core.errors import FederationError
from fedproto_app.ops.guardian import marked_processes
from fedproto_app.ops.keys import make_keys
from fedproto_app.ops.superlink import Connection, RunStatus, free_port, tail

_T = TypeVar("_T")

_PROGRAMS = Path(sysconfig.get_path("scripts"))
_CONNECTION = "local"  # its name in config.toml
_LOOK_EVERY = 0.05
_START_DEADLINE = 60.0
_GONE_DEADLINE = 20.0  # from SIGKILL until the last process has left


class MarkedProcess:
    """A long-running program of Flower's and all its processes, which `home` marks."""

    def __init__(
        self,
        name: str,
        home: Path,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        home.mkdir(parents=True)
        self.name = name
        self.log = home / "log"
        self._home = home
        self._command = [str(_PROGRAMS / command[0]), *map(str, command[1:])]
        self._environment = {**_environment(home), **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self) -> None:
        """Start the program, or restart it. The log continues."""
        assert not self.pids(), f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def pids(self) -> dict[int, str]:
        """Return all its living processes, each with its command line."""
        return marked_processes(self._home)

    def child(self, program: str, deadline: float = 60.0) -> int:
        """Wait for a child process that runs this program, and return its id."""

        def find() -> int | None:
            return next((p for p, line in self.pids().items() if f"/{program} " in line), None)

        return self._wait(find, f"{program} to start", deadline)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Send SIGKILL, as if the machine lost power. Return when no process is left."""
        deadline = time.monotonic() + _GONE_DEADLINE
        while self.pids():
            assert time.monotonic() < deadline, f"{self.name}: {self.pids()} did not end"
            self.signal(signal.SIGKILL)
            time.sleep(_LOOK_EVERY)
        if self._process is not None:
            self._process.wait(timeout=_GONE_DEADLINE)

    def stop(self) -> None:
        """Send SIGSTOP: the program hangs, and its connections stay open."""
        for _ in range(2):  # once more for what started while the first signals were sent
            self.signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Send SIGCONT: the program continues after `stop`."""
        self.signal(signal.SIGCONT)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, None while the program runs."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.poll()

    def log_text(self) -> str:
        """Return the log since the last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def wait_for_log(self, pattern: str, deadline: float = 60.0) -> re.Match[str]:
        """Wait for a line of the log since the last start. Raises an error if the program ends."""

        def find() -> re.Match[str] | None:
            ended = self.exit_code  # read first: its log is then complete
            match = re.search(pattern, self.log_text())
            if match is None and ended is not None:
                raise FederationError(f"{self.name} ended with code {ended}; {self._last_lines()}")
            return match

        return self._wait(find, f"{pattern!r} in its log", deadline)

    def wait_until_ended(self, deadline: float = 60.0) -> int:
        """Wait until the program has ended by itself, and return its exit code."""
        return self._wait(lambda: self.exit_code, "its end", deadline)

    def _wait(self, look: Callable[[], _T | None], awaited: str, deadline: float) -> _T:
        end = time.monotonic() + deadline
        while (value := look()) is None:
            if time.monotonic() > end:
                raise FederationError(
                    f"{self.name}: waited {deadline:g} s for {awaited}; {self._last_lines()}"
                )
            time.sleep(_LOOK_EVERY)
        return value

    def _last_lines(self) -> str:
        return f"its last lines:\n{tail(self.log)}"


class NodeProcess(MarkedProcess):
    """A SuperNode."""

    def wait_until_joined(self, deadline: float = 60.0) -> int:
        """Wait until the SuperLink has accepted the node, and return the node's id."""
        return int(self.wait_for_log(r"SuperNode ID: (\d+)", deadline)[1])


class LocalFederation:
    """A SuperLink and its SuperNodes for the length of a ``with`` block.

    folder: empty, outside git work trees, for keys, homes, logs and the database.
    environment: variables added for the SuperLink, and so for the ServerApp.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.keys = folder / "keys"
        self.nodes: list[NodeProcess] = []
        self._folder = folder
        make_keys(self.keys, ["127.0.0.1"], [])
        self._port, self._sites_port = free_port(), free_port()
        self.superlink = MarkedProcess(
            "superlink",
            folder / "superlink",
            [
                *("python", "-m", "fedproto_app.ops.fleet"),
                *("--sites", f"127.0.0.1:{self._sites_port}", "--users", f"127.0.0.1:{self._port}"),
                *("--ca", self.keys / "ca.crt", "--certificate", self.keys / "server.pem"),
                *("--key", self.keys / "server.key"),
                *("--", "--enable-supernode-auth", "--database", folder / "superlink.db"),
            ],
            environment,
        )
        self.user_home = folder / "user"  # the FLWR_HOME of who submits runs
        self.user_home.mkdir()
        connection = {
            "address": f"127.0.0.1:{self._port}",
            "root-certificates": str(self.keys / "ca.crt"),
        }
        table = {"superlink": {"default": _CONNECTION, _CONNECTION: connection}}
        (self.user_home / "config.toml").write_text(tomli_w.dumps(table))
        environment_of_user = _environment(self.user_home)
        self.connection = Connection(_CONNECTION, self.user_home, _PROGRAMS, environment_of_user)

    def __enter__(self) -> Self:
        try:
            self.start_superlink()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start_superlink(self) -> None:
        """Start the SuperLink, or start it again, and wait until it answers."""
        self.superlink.start()
        trust = ssl.create_default_context(cafile=self.keys / "ca.crt")
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        deadline = time.monotonic() + _START_DEADLINE
        while time.monotonic() < deadline and self.superlink.exit_code is None:
            with (
                suppress(OSError),
                opener.open(f"https://127.0.0.1:{self._port}/health", timeout=2),
            ):
                return
            time.sleep(_LOOK_EVERY)
        raise FederationError(f"no SuperLink; its last lines:\n{tail(self.superlink.log)}")

    def add_node(
        self,
        name: str,
        config: Mapping[str, str | int | float],
        *,
        has_key: bool = True,
        registered: bool = True,
        ca: Path | None = None,
        plaintext: bool = False,
        known_as: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> NodeProcess:
        """Create a node's key, register it, and start the node, without waiting for it to join.

        known_as: the registered name, by default `name`. ca: the certificate that the node
        trusts, by default the federation's. has_key, registered, plaintext: changed for a node
        that must be refused.
        """
        command: list[str | Path] = ["flower-supernode"]
        command += ["--superlink", f"127.0.0.1:{self._sites_port}"]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--node-config", _node_config(config)]
        command += (
            ["--insecure"] if plaintext else ["--root-certificates", ca or self.keys / "ca.crt"]
        )
        if has_key:
            make_keys(self.keys, [], [name])
            if registered:
                self.register(name, known_as)
            command += ["--auth-supernode-private-key", self.keys / "nodes" / name]
        node = NodeProcess(name, self._folder / "nodes" / name, command, environment)
        self.nodes.append(node)
        node.start()
        return node

    def register(self, name: str, known_as: str = "") -> int:
        """Register a node's key and return the node's id. known_as: the registered name."""
        public = self.keys / "nodes" / f"{name}.pub"
        answer = self.connection.ask(
            "supernode", "register", str(public), _CONNECTION, "--name", known_as or name
        )
        return int(answer["node-id"])

    def unregister(self, node_id: int) -> None:
        """Revoke the key of a node."""
        self.connection.ask("supernode", "unregister", str(node_id), _CONNECTION)

    def online(self) -> set[int]:
        """Return the ids of the nodes that the SuperLink counts as connected."""
        nodes = self.connection.ask("supernode", "list", _CONNECTION)["nodes"]
        return {int(node["node-id"]) for node in nodes if node["status"] == "online"}

    def submit(self, run_config: Mapping[str, Any], app: Path = ROOT) -> str:
        """Submit the app with these settings (nested, or with dotted keys). Return the run id."""
        return self.connection.submit(app, run_config)

    def wait(self, run_id: str, deadline: float = 300.0) -> RunStatus:
        """Wait for the end of a run."""
        end = time.monotonic() + deadline
        while not (status := self.connection.status(run_id)).finished:
            if time.monotonic() > end:
                raise FederationError(f"run {run_id} is {status.status} after {deadline:g} s")
            time.sleep(2.0)  # a question is a process that costs a second of CPU time
            while self._works() and time.monotonic() < end:
                time.sleep(0.2)
        return status

    def complete(self, run_id: str, deadline: float = 300.0) -> None:
        """Wait for the end of a run. Raises `FederationError` with its log if it failed."""
        status = self.wait(run_id, deadline)
        if not status.completed:
            log = self.run_log(run_id)
            raise FederationError(f"the run is {status.status}: {status.details}\n{log}")

    def _works(self) -> bool:
        """Return whether a ServerApp is running."""
        return any("flwr-serverapp" in line for line in self.superlink.pids().values())

    def run_log(self, run_id: str) -> str:
        """Return the log of a run's ServerApp so far."""
        log = self.user_home / f"log-{run_id}"
        with log.open("wb") as file:
            command = [str(_PROGRAMS / "flwr"), "log", run_id, _CONNECTION, "--show"]
            subprocess.run(command, env=_environment(self.user_home), stdout=file, timeout=60)
        return log.read_text(errors="replace")

    def _end(self) -> None:
        """End all processes, even if some cannot be ended."""
        errors: list[Exception] = []
        for process in (*self.nodes, self.superlink):
            try:
                process.kill()
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup("processes stay behind", errors)


def node_config(name: str, number: int, nodes: int, state_dir: Path) -> dict[str, str | int]:
    """Return the settings of a node with a part of the synthetic traffic."""
    return {
        "node-name": name,
        "partition-id": number,
        "num-partitions": nodes,
        "data-source": "synthetic-traffic",
        "state-dir": str(state_dir),
        "device": "cpu",
    }


def with_fault(folder: Path, fault: str) -> dict[str, str]:
    """Return the environment of a process with a fault of `benchmarks.faults.hook`, or {} without
    one. folder: where a copy of the hook is kept."""
    if not fault:
        return {}
    hooks = folder / "hooks"
    hooks.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(hook.__file__, hooks / "sitecustomize.py")
    return {"PYTHONPATH": str(hooks), "FAULT": fault}


def _node_config(config: Mapping[str, str | int | float]) -> str:
    """Return the settings as ``--node-config`` takes them: texts are quoted."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def _environment(home: Path) -> dict[str, str]:
    inherited = dict(os.environ)
    for name in ("FORCE_COLOR", "FEDPROTO_OUTPUT_ROOT"):
        inherited.pop(name, None)
    return inherited | {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{_PROGRAMS}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
