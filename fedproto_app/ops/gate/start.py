"""Start a gate, and keep Flower's task alive while the gate's slow modules are imported.

    python -P -m fedproto_app.ops.gate.start client_gate --runtime-api-address … 3<TOKEN

Flower's token expires if its task does not report for 30 seconds. Flower then starts the task
again, and on a slow host such attempts would pile up. A small process therefore reports to Flower
from the first second on. If Flower has taken the task back, this process ends the gate, because
another attempt may be under way. Gates take turns with their imports: of all gates that have the
same file in FEDPROTO_TURNS, only one imports at a time.

This module imports only the standard library, which takes 0.1 processor seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import ssl
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

from fedproto_app.ops.gate import confinement

TURNS = "FEDPROTO_TURNS"

_TOKEN = 3  # the descriptor through which docker/gate/ hands over Flower's token
_TOKEN_LIFE = 30.0  # seconds from the launch of a task until Flower must have heard from it
_HEARD_LIFE = 60.0  # seconds from one report of a task until Flower must hear the next
_REPORT_EVERY = 10.0  # seconds
_ANSWER_WITHIN = 20.0  # seconds
_LONGEST = 600.0  # seconds that a start may take before it is the turn of Flower's next attempt
_HEARTBEAT = "/v1/runtime/send-task-heartbeat"
_HEADERS = {"content-type": "application/protobuf", "accept": "application/protobuf"}
_SUCCESS = b"\x08\x01"  # of SendTaskHeartbeatResponse

# Packages whose `__init__` imports Flower's servers. This takes a second, and no gate needs them.
_COMMANDS = ("flwr.supernode.cli", "flwr.superlink.cli")
_SIMULATION = "flwr.superlink.grid.inmemory_grid"


class Start:
    """The start of a gate, from its first step until `finish`.

    arguments: the arguments of Flower's program, without the token.
    """

    def __init__(self, arguments: list[str]) -> None:
        # The token is kept by a second process, as no process of the gate may have it in memory.
        read, write = os.pipe()
        gate = os.getpid()
        self._keeper = os.fork()
        if self._keeper == 0:
            os.close(read)
            with suppress(BaseException):
                confinement.die_with_parent()
                if os.getppid() == gate:
                    _keep(gate, write, arguments)
            os._exit(0)
        os.close(write)
        os.dup2(read, _TOKEN)
        os.close(read)
        self._turn = _take_turn()

    def finish(self) -> None:
        """Let the next gate start, and add the token to the arguments that Flower's program reads.

        From here on the program itself reports to Flower. The token does not appear on the
        process's command line, which every process of the machine can see.
        """
        with os.fdopen(_TOKEN) as pipe:
            sys.argv += ["--token", pipe.read()]
        os.kill(self._keeper, signal.SIGKILL)
        os.waitpid(self._keeper, 0)
        if self._turn is not None:
            fcntl.flock(self._turn, fcntl.LOCK_UN)
            os.close(self._turn)


def _take_turn() -> int | None:
    """Wait for the lock on the file in FEDPROTO_TURNS. The lock ends with the process. Return the
    file's descriptor, or None without such a file."""
    file = os.environ.get(TURNS)
    if not file:
        return None
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _keep(gate: int, hand_on: int, arguments: list[str]) -> None:
    """Report to Flower until this process is killed. End the gate if its task is lost."""
    with os.fdopen(_TOKEN) as pipe:
        token = pipe.read().strip()
    os.write(hand_on, token.encode())
    os.close(hand_on)
    launched = time.monotonic() - _age(gate)
    alive_until = launched + _TOKEN_LIFE
    while time.monotonic() < launched + _LONGEST:
        accepted = report(arguments, token)
        if accepted:
            alive_until = time.monotonic() + _HEARD_LIFE
        elif accepted is False:
            break
        time.sleep(_REPORT_EVERY)
    time_now = time.monotonic()
    if time_now > alive_until or time_now > launched + _LONGEST:  # otherwise the run was stopped
        _tell_too_slow(time_now - launched)
    os.kill(gate, signal.SIGKILL)


def report(arguments: list[str], token: str) -> bool | None:
    """Report to Flower that the task is alive. Return whether its token is still valid.

    None means that Flower did not say, because it could not be reached or has no such call.
    """
    address = _after("--runtime-api-address", arguments)
    connection: HTTPConnection
    try:
        if "--insecure" in arguments:
            connection = HTTPConnection(address, timeout=_ANSWER_WITHIN)
        else:
            authority = _after("--root-certificates", arguments) or None
            trust = ssl.create_default_context(cafile=authority)
            connection = HTTPSConnection(address, timeout=_ANSWER_WITHIN, context=trust)
        try:
            connection.request("POST", _HEARTBEAT, b"", {**_HEADERS, "flwr-task-token": token})
            answer = connection.getresponse()
            content = answer.read(1000)
        finally:
            connection.close()
    except (OSError, HTTPException):
        return None
    if answer.status in (401, 403):
        return False
    return content == _SUCCESS if answer.status == 200 else None


def _tell_too_slow(seconds: float) -> None:
    """Write the reason why the gate ends to the container's log and, at a server, the audit log."""
    reason = (
        f"this host is too slow for Flower's token of {_TOKEN_LIFE:g} s: a task did not start "
        f"within {seconds:.0f} s. Give the container more processors (FEDPROTO_CPUS), or run less "
        "beside it"
    )
    print(f"event=too-slow reason={json.dumps(reason)}", file=sys.stderr, flush=True)
    if file := os.environ.get("FEDPROTO_AUDIT"):  # Flower discards the output of a ServerApp
        from fedproto_app.ops.gate.audit import AuditLog

        AuditLog(Path(file)).write("too-slow", reason=reason)


def _after(flag: str, arguments: list[str]) -> str:
    """Return the argument that follows the flag, or "" without the flag."""
    return arguments[arguments.index(flag) + 1] if flag in arguments else ""


def _age(process: int) -> float:
    """Return how many seconds ago the process was launched."""
    stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    ticks = int(stat.rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


def leave_servers_out() -> None:
    """Make Flower's programs importable without its SuperLink, SuperNode and simulation."""
    for name in _COMMANDS:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            sys.modules[name] = module_from_spec(spec)  # knows its modules, but runs no code
    if _SIMULATION not in sys.modules:
        stand_in = ModuleType(_SIMULATION)
        vars(stand_in)["InMemoryGrid"] = type("InMemoryGrid", (), {})
        sys.modules[_SIMULATION] = stand_in


def main() -> None:
    """Start the gate that the first argument names."""
    gate = sys.argv.pop(1)
    start = Start(sys.argv[1:])
    leave_servers_out()
    import_module(f"fedproto_app.ops.gate.{gate}").main(start.finish)


if __name__ == "__main__":
    main()
