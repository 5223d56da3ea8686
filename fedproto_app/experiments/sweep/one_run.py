"""One run of a sweep, in a process of its own: ``python -m fedproto_app.experiments.sweep.one_run``.

The sweep writes one line of JSON into its standard input, `Order`, and keeps the pipe open. When
the pipe closes, however the sweep ended, this process ends at once. So a run that is left behind
nobody writes, and it goes on from its newest checkpoint when the sweep does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedproto_app.core.errors import FedProtoError


@dataclass(frozen=True)
class Order:
    """What to run.

    settings: with dotted keys; output.dir and output.name say where. nodes: simulated ones.
    workers: processes that work for them.
    """

    settings: Mapping[str, Any]
    nodes: int
    workers: int

    def line(self) -> bytes:
        return (json.dumps(asdict(self)) + "\n").encode()


def main() -> None:
    """Make the run, or go on with it. Exit code 1: it failed, and stderr ends with the reason."""
    order = Order(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    try:
        make(order)
    except (FedProtoError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


def make(order: Order) -> None:
    """Make the run of the order in this process, or go on with it."""
    from rich.console import Console

    from fedproto_app.core.loading import look_here_for_users_code
    from fedproto_app.experiments.run_settings import resumed_settings, simulated_settings
    from fedproto_app.experiments.simulation import simulate_here

    look_here_for_users_code()
    folder = Path(order.settings["output.dir"]) / order.settings["output.name"]
    if (folder / "settings.toml").exists():
        settings, nodes = resumed_settings(str(folder), None, [], order.nodes)
    else:
        if folder.exists():  # claimed, and nothing was begun in it
            folder.rmdir()
        settings, nodes = simulated_settings(order.settings, order.nodes), order.nodes
    simulate_here(settings, nodes, order.workers, Console(quiet=True), verbose=False)


def _end_with_the_sweep() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main()
