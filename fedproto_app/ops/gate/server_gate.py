"""The server's gate: ``flwr-serverapp`` under the rules of the server's operator.

    python -P -m fedproto_app.ops.gate.start server_gate --runtime-api-address … 3<TOKEN

It runs Flower's program as another user (FEDPROTO_RUN_AS), and kills processes that a run leaves
behind. This user can read neither the SuperExec's secret nor the audit log (the file in
FEDPROTO_AUDIT). FEDPROTO_DIGESTS lists the SHA-256 of the apps that may run, separated by blanks.
If it is not set, all apps may run.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from flwr.cli.config_utils import get_fab_metadata
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

from fedproto_app.core.errors import SettingsError
from fedproto_app.ops.gate import confinement, replace_steps
from fedproto_app.ops.gate.audit import AuditLog

AUDIT, DIGESTS = "FEDPROTO_AUDIT", "FEDPROTO_DIGESTS"
_MOST_REPORT_BYTES = 64 * 2**10  # bytes of the report from the app's process
_LOGGED_SETTINGS = ("task", "method", "rounds", "local-epochs", "seed", "output.name")


class Reporter:
    """Reports the run from the app's process to the gate, before any of the run's code is loaded.

    It replaces two steps of Flower's program. pipe: leads to the gate.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._app_fields: dict[str, object] = {}
        self._flowers = replace_steps(
            "flwr.superlink.runtime.run_serverapp",
            install_from_fab=self.install,
            get_fused_config_from_dir=self.fuse,
        )

    def install(self, content: bytes, skip_prompt: bool = False) -> Any:
        """Replace `install_from_fab`: refuse an app that is not listed."""
        digest = hashlib.sha256(content).hexdigest()
        name, version = get_fab_metadata(content)
        self._app_fields = {
            "run": TaskIdentity.run_id,
            "app": name,
            "version": version,
            "digest": digest,
        }
        listed = os.environ.get(DIGESTS, "").split()
        if listed and digest not in listed:
            reason = f"the app {name} {version} has the SHA-256 {digest}, which {DIGESTS} lacks"
            self._tell("refused", reason=reason)
            raise SettingsError(reason)
        return self._flowers["install_from_fab"](content, skip_prompt=skip_prompt)

    def fuse(self, folder: Path, override: Mapping[str, object]) -> Any:
        """Replace `get_fused_config_from_dir`, the last step before the run's code is loaded."""
        config = self._flowers["get_fused_config_from_dir"](folder, override)
        self._tell("run", settings={key: config[key] for key in _LOGGED_SETTINGS if key in config})
        return config

    def _tell(self, event: str, **fields: object) -> None:
        os.write(self._pipe, json.dumps({"event": event, **self._app_fields, **fields}).encode())
        os.close(self._pipe)  # so that untrusted code cannot write to it


def main(finish_start: Callable[[], None]) -> None:
    """Run Flower's program in a separate process, and kill the processes that it leaves behind.

    finish_start: adds the token to the program's arguments.
    """
    start = time.monotonic()
    file = os.environ.get(AUDIT)
    log = AuditLog(Path(file) if file else None)
    confinement.adopt_orphans()
    finish_start()
    read, write = os.pipe()
    above = sys.argv.index("--parent-pid") + 1 if "--parent-pid" in sys.argv else None
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.setsid()
        confinement.become(confinement.run_as())
        confinement.die_with_parent()
        if above is not None:  # Flower's program cannot see a process of another user
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
    report = _read_report(read)
    log.write(str(report.pop("event")), **report)
    status = os.waitpid(pid, 0)[1]
    leftover = confinement.end_descendants()
    code = os.waitstatus_to_exitcode(status)
    seconds = round(time.monotonic() - start, 3)
    log.write("end", run=report.get("run"), exit=code, seconds=seconds, left_behind=len(leftover))
    sys.exit(abs(code))


def _read_report(pipe: int) -> dict[str, object]:
    """Return the report that the app's process wrote before the run's code was loaded."""
    content = b""
    while len(content) < _MOST_REPORT_BYTES and (chunk := os.read(pipe, _MOST_REPORT_BYTES)):
        content += chunk
    os.close(pipe)
    try:
        report = json.loads(content)
    except ValueError:
        return {"event": "not-started"}
    return report if isinstance(report, dict) and "event" in report else {"event": "not-started"}
