"""The server's gate: ``flwr-serverapp`` as the server's operator has it.

    python -m fedproto_app.ops.gate.server_gate --runtime-api-address … --token …

Runs Flower's program as another user (FEDPROTO_RUN_AS), who can read neither the SuperExec's secret
nor the audit log (FEDPROTO_AUDIT, a file), and ends what a run leaves behind. FEDPROTO_DIGESTS are
the SHA-256 of the apps that may run here, with blanks between; without it all may.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from flwr.cli.config_utils import get_fab_metadata
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

from fedproto_app.core.errors import SettingsError
from fedproto_app.ops.gate import confinement
from fedproto_app.ops.gate.audit import AuditLog
from fedproto_app.ops.gate.steps import replace_steps

AUDIT, DIGESTS = "FEDPROTO_AUDIT", "FEDPROTO_DIGESTS"
_MOST_TOLD = 64 * 2**10  # bytes that the app's process may say to the log
_ASKED = ("task", "method", "rounds", "local-epochs", "seed", "output.name")


class Reporter:
    """In the app's process: tells the gate of the run, before any of the run's code is loaded.

    It stands in two steps of Flower's program. pipe: to the gate.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._told: dict[str, object] = {}
        self._flowers = replace_steps(
            "flwr.superlink.runtime.run_serverapp",
            install_from_fab=self.install,
            get_fused_config_from_dir=self.fuse,
        )

    def install(self, content: bytes, skip_prompt: bool = False) -> Any:
        """In place of `install_from_fab`: refuses an app that is not listed."""
        digest = hashlib.sha256(content).hexdigest()
        name, version = get_fab_metadata(content)
        self._told = {"run": TaskIdentity.run_id, "app": name, "version": version, "digest": digest}
        listed = os.environ.get(DIGESTS, "").split()
        if listed and digest not in listed:
            reason = f"the app {name} {version} has the SHA-256 {digest}, which {DIGESTS} lacks"
            self._tell("refused", reason=reason)
            raise SettingsError(reason)
        return self._flowers["install_from_fab"](content, skip_prompt=skip_prompt)

    def fuse(self, folder: Path, override: Mapping[str, Any]) -> Any:
        """In place of `get_fused_config_from_dir`: the run's settings, and the last before it."""
        config = self._flowers["get_fused_config_from_dir"](folder, override)
        self._tell("run", settings={key: config[key] for key in _ASKED if key in config})
        return config

    def _tell(self, event: str, **fields: object) -> None:
        os.write(self._pipe, json.dumps({"event": event, **self._told, **fields}).encode())
        os.close(self._pipe)  # what comes later is a stranger's


def main() -> None:
    """Run Flower's program apart, and end what it leaves behind."""
    start = time.monotonic()
    file = os.environ.get(AUDIT)
    log = AuditLog(Path(file) if file else None)
    confinement.adopt_orphans()
    read, write = os.pipe()
    above = sys.argv.index("--parent-pid") + 1 if "--parent-pid" in sys.argv else None
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.setsid()
        confinement.become(confinement.run_as())
        confinement.die_with_parent()
        if above is not None:  # Flower's program would look for a process of another user in vain
            del sys.argv[above - 1 : above + 1]
        Reporter(write)
        flwr_serverapp()
        sys.exit()

    def hand_on(number: int, _: FrameType | None) -> None:
        os.kill(pid, number)

    signal.signal(signal.SIGTERM, hand_on)
    signal.signal(signal.SIGINT, hand_on)
    if above is not None:
        start_parent_process_monitor(int(sys.argv[above]))
    os.close(write)
    told = _read_told(read)
    log.write(str(told.pop("event")), **told)
    status = os.waitpid(pid, 0)[1]
    left = confinement.end_descendants()
    code = os.waitstatus_to_exitcode(status)
    seconds = round(time.monotonic() - start, 3)
    log.write("end", run=told.get("run"), exit=code, seconds=seconds, left_behind=len(left))
    sys.exit(abs(code))


def _read_told(pipe: int) -> dict[str, Any]:
    """What the app's process said of its run before it loaded it."""
    content = b""
    while len(content) < _MOST_TOLD and (chunk := os.read(pipe, _MOST_TOLD)):
        content += chunk
    os.close(pipe)
    try:
        told = json.loads(content)
    except ValueError:
        return {"event": "not-started"}
    return told if isinstance(told, dict) and "event" in told else {"event": "not-started"}


if __name__ == "__main__":
    main()
