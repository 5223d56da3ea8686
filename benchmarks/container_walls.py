"""Check in containers what a run's code, and a node's container, must not reach."""

from __future__ import annotations

from collections.abc import Callable

Compose = Callable[..., str]  # one compose command: what it wrote to stdout


def walls_hold(compose: Compose, site: str) -> tuple[bool, str]:
    """Return whether every attempt fails and all that must work does, and a summary.

    site: the name of one of docker-compose.yml.
    """
    secret, log = "cat /var/lib/superexec/secret", "cat /audit/audit.jsonl"
    clientapp = f"{site}-clientapp"
    attempts = {
        "the node's key": (clientapp, "cat /keys/node"),
        "the server": (clientapp, _reaches("superlink", 9092)),
        "writing data": (clientapp, "touch /data/x"),
        "writing code": (clientapp, "touch /app/x"),
        "the site's secret": (clientapp, secret),
        "the site's audit log": (clientapp, log),
        "the gate": (clientapp, "kill -0 1"),
        "root": (clientapp, "python3 -c 'import os; os.setuid(0)'"),
        "the server's secret": ("serverapp", secret),
        "the server's audit log": ("serverapp", "ls /audit"),
        "the control port from a node": (site, _reaches("superlink", 8000)),
    }
    possible = [name for name, attempt in attempts.items() if _succeeds(compose, *attempt)]
    if "PRIVATE" in compose("run", "--rm", "-T", "register", "sh", "-c", "cat /nodes/*"):
        possible.append("the nodes' private keys in register")
    required = {
        "reading the data as user 10001": (
            clientapp,
            "head -c 1 /data/traffic.csv && test $(id -u) = 10001",
        ),
        "the server from a SuperNode": (site, _reaches("superlink", 9092)),
    }
    impossible = [name for name, attempt in required.items() if not _succeeds(compose, *attempt)]
    summary = f"{len(attempts) + 1 - len(possible)} attempts refused"
    summary += f"; possible: {', '.join(possible)}" if possible else ""
    summary += f"; impossible: {', '.join(impossible)}" if impossible else ""
    return not possible and not impossible, summary


def _reaches(host: str, port: int) -> str:
    return f"python3 -c 'import socket; socket.create_connection((\"{host}\", {port}), 5)'"


def _succeeds(compose: Compose, service: str, command: str) -> bool:
    """Return whether the user that runs a run's code can do it there."""
    shell = ["sh", "-c", f"({command}) && echo :done"]
    output = compose("exec", "-T", "--user", "10001:10001", service, *shell, must=False)
    return output.rstrip().endswith(":done")
