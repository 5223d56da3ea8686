"""A run in a federation of real processes, the harm done to it, and what can be seen afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from benchmarks.local_federation import LocalFederation, NodeProcess, node_config, with_fault
from benchmarks.parts import wait_until
from fedproto_app.core.errors import FederationError
from fedproto_app.settings import flat_settings, flower_config, settings_from

NODES = ("airport", "harbour", "oldtown")
ROUNDS = 4
RUN = "trial"
RESTART_PAUSE = 3.0
SETTINGS = {
    "method": "fuels",
    "rounds": ROUNDS,
    "local-epochs": 16,  # seconds of training, so that harm can be done in the middle
    "model.representation-dim": 16,
    "fuels.prototype-dim": 4,
    "data.synthetic.clients": 6,
    "data.synthetic.days": 14,
    "nodes.minimum": len(NODES),
    "nodes.start-deadline": 120.0,
    "nodes.round-deadline": 180.0,
    "output.name": RUN,
    "output.pictures": False,
}


class Trial:
    """A federation for the length of a ``with`` block, and a run in it.

    folder: empty. changes: to `SETTINGS`. fault: the fault of `hook` in the server. environment:
    variables added for the server.
    """

    def __init__(
        self,
        folder: Path,
        changes: Mapping[str, Any] | None = None,
        fault: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self.federation = LocalFederation(
            folder / "federation", {**with_fault(folder, fault), **(environment or {})}
        )
        self.nodes: dict[str, NodeProcess] = {}
        self.runs: list[str] = []  # Flower's ids of the submitted runs
        output = {"output.dir": str(folder / "runs")}
        self._settings = settings_from({**SETTINGS, **output, **(changes or {})})
        self._away = 0.0  # seconds from the checkpoint that a resumed run used to its next order

    def __enter__(self) -> Self:
        self.federation.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.federation.__exit__(*error)

    # --- what an operator does --------------------------------------------------------------

    def add(self, *names: str, fault: str = "") -> None:
        """Start nodes, each with its third of the clients."""
        for name in names:
            self.nodes[name] = self.federation.add_node(
                name, self.config(name), environment=with_fault(self._folder, fault)
            )

    def restart(self, name: str, deadline: float = 150.0) -> str:
        """Restart a node until the SuperLink accepts it, as a restart policy does."""
        node, begin, tries = self.nodes[name], time.monotonic(), 0
        while True:
            node.start()
            tries += 1
            try:
                node.wait_until_joined()
            except FederationError:
                node.kill()  # its other processes
                if time.monotonic() - begin > deadline:
                    raise
                time.sleep(RESTART_PAUSE)
            else:
                return f"taken in at start {tries}, after {time.monotonic() - begin:.0f} s"

    def config(self, name: str) -> dict[str, str | int]:
        """Return the settings of the node that the run knows by this name."""
        return node_config(name, NODES.index(name), len(NODES), self.state_dir(name))

    def state_dir(self, name: str) -> Path:
        return self._folder / "state" / name

    def submit(self) -> None:
        """Submit the run."""
        self.runs.append(self.federation.submit(flower_config(self._settings)))

    def resume(self, after: int) -> None:
        """Resume the run, until the first order. after: the round whose checkpoint must be used, 0
        without a checkpoint."""
        marks = [*(self.artefacts / "checkpoint").glob(f"round-{after:06d}"), self.artefacts]
        since, orders = marks[0].stat().st_mtime, self._orders()
        resumed = settings_from(flat_settings(self._settings) | {"output.resume": True})
        self.runs.append(self.federation.submit(flower_config(resumed)))
        self.wait_until(lambda: self._orders() > orders, "the first order after the resume")
        self._away = time.time() - since

    def begin(self, *, fault: str = "") -> None:
        """Start all nodes and the run. fault: of the node harbour."""
        self.add(*NODES[:1])
        self.add(NODES[1], fault=fault)
        self.add(*NODES[2:])
        self.submit()

    def finish(self, deadline: float = 400.0) -> None:
        """Wait for the end of the run. Raises `FederationError` if it failed."""
        status = self.federation.wait(self.runs[-1], deadline)
        if not status.completed:
            raise FederationError(f"the run is {status.status}: {status.details}\n{self.events()}")

    # --- the right moment -------------------------------------------------------------------

    def wait_for_order(self, name: str, server_round: int, phase: str = "train") -> None:
        """Wait until a node has begun with an order."""
        pattern = rf"event=order round={server_round} node=\S+ phase={phase}"
        self.nodes[name].wait_for_log(pattern, deadline=200)

    def require_unfinished(self, name: str, server_round: int, phase: str = "train") -> None:
        """Raise `FederationError` if the harm came after the work was done."""
        if re.search(
            rf"event=done round={server_round} .*phase={phase}", self.nodes[name].log_text()
        ):
            raise FederationError(f"{name} was done with {phase} of round {server_round} already")

    def wait_for_rounds(self, number: int) -> None:
        """Wait until so many rounds are done."""
        self.wait_until(lambda: len(self.rounds()) >= number, f"the end of round {number}")

    def wait_until(self, holds: Callable[[], bool], awaited: str, deadline: float = 200.0) -> None:
        try:
            wait_until(holds, awaited, deadline)
        except TimeoutError as error:
            raise FederationError(f"{error}\n{self.events()}") from None

    def kill_serverapp(self) -> None:
        os.kill(self.federation.superlink.child("flwr-serverapp"), signal.SIGKILL)
        self.wait_until(lambda: not self.has_serverapp(), "the end of the ServerApp", 20)

    def has_serverapp(self) -> bool:
        lines = self.federation.superlink.pids().values()
        return any("/flwr-serverapp " in line for line in lines)

    # --- what is left to see ----------------------------------------------------------------

    @property
    def artefacts(self) -> Path:
        return self._folder / "runs" / RUN

    def rounds(self) -> list[dict[str, Any]]:
        """Return the lines of rounds.jsonl so far."""
        path = self.artefacts / "rounds.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def events(self) -> str:
        """Return the server's event lines of all submitted runs."""
        log = "\n".join(self.federation.run_log(run) for run in self.runs)
        return "\n".join(re.findall(r"event=.*", log))

    def result(self) -> bytes:
        """Return each client's errors, to the last bit."""
        return (self.artefacts / "clients.csv").read_bytes()

    @property
    def seconds_lost(self) -> float:
        """Return the seconds beyond the usual ones of a round, and from checkpoint to
        resumption."""
        totals: list[float] = [line["seconds"]["total"] for line in self.rounds()]
        usual = statistics.median(totals)
        return self._away + sum(max(0.0, total - usual) for total in totals)

    def _orders(self) -> int:
        """Return how many orders the nodes have begun."""
        return sum(node.log_text().count("event=order ") for node in self.nodes.values())


def summary(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return "round 1: 3 of 3 answered", and so on, where rounds that went alike share a text."""
    parts = []
    for text, group in groupby(rounds, _round_text):
        numbers = [line["round"] for line in group]
        first, last = numbers[0], numbers[-1]
        span = f"round {first}" if first == last else f"rounds {first}–{last}"
        parts.append(f"{span}: {text}")
    return "; ".join(parts)


def _round_text(line: Mapping[str, Any]) -> str:
    refused = []
    for refusal in line["refused"]:
        client = f", client {refusal['client']}" if refusal["client"] else ""
        refused.append(f"{refusal['node']}{client}: {refusal['reason']}")
    return ", ".join([f"{line['answered']} of {line['asked']} answered", *refused])
