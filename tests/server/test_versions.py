"""Servers, nodes and run folders of different versions part with one line that names both."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app import __version__
from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.core.wire import FIELDS, protocol_fault, roster_query
from fedproto_app.experiments.invariants import SmallRuns
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.server.checkpoint import newest_checkpoint
from fedproto_app.server_app import conduct
from tests.local_grid import LocalGrid, small_settings, synthetic_nodes


def test_the_same_version_has_no_fault() -> None:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    assert protocol_fault(roster_query(1).content, "server", "node") is None


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({}, "before 0.2"),
        ({"protocol": 1, "version": "0.1.7"}, "0.1.7"),
        ({"protocol": 3, "version": "0.3.0"}, "0.3.0"),
        ({"protocol": "2", "version": "x" * 1000}, "before 0.2"),
        ({"protocol": 1.0, "version": "0\x1b[2J"}, "before 0.2"),
    ],
)
def test_another_version_is_named(fields: dict[str, Any], version: str) -> None:
    fault = protocol_fault(RecordDict({FIELDS: ConfigRecord(fields)}), "server", "node")
    assert fault == (
        f"the server runs fedproto-app {version}, this node {__version__}: they cannot read each "
        "other's messages; install the same version on both"
    )


class EarlierServer(LocalGrid):
    """Its roster query says nothing of a protocol."""

    def answer(self, message: Any) -> Any:
        if message.metadata.message_type == "query.roster":
            message.content = RecordDict()
        return super().answer(message)


class EarlierNodes(LocalGrid):
    """Their rosters say nothing of a protocol."""

    def answer(self, message: Any) -> Any:
        reply = super().answer(message)
        if message.metadata.message_type == "query.roster" and reply is not None:
            del reply.content[FIELDS]["protocol"]
        return reply


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (EarlierServer, f"the server runs fedproto-app before 0.2, this node {__version__}: "),
        (EarlierNodes, f"the node runs fedproto-app {__version__}, this server {__version__}: "),
    ],
)
def test_neither_side_works_with_an_earlier_one(
    tmp_path: Path, kind: type[LocalGrid], line: str
) -> None:
    settings = small_settings(tmp_path, rounds=1, **{"nodes.start-deadline": 2.0})
    with pytest.raises(FederationError, match=line), RunFolder(settings) as folder:
        conduct(kind(settings, synthetic_nodes(1, tmp_path / "state")), settings, folder)


def test_a_checkpoint_of_an_earlier_version_says_which_can_resume_it(tmp_path: Path) -> None:
    run = SmallRuns("forecasting", "fedavg", tmp_path).run("run", 1)
    for place in (run / "checkpoint").iterdir():
        server = json.loads((place / "server.json").read_text())
        del server["format"]
        (place / "server.json").write_text(json.dumps(server))
        digests = json.loads((place / "digests.json").read_text())
        digests["server.json"] = sha256((place / "server.json").read_bytes()).hexdigest()
        (place / "digests.json").write_text(json.dumps(digests))
    with pytest.raises(SettingsError, match=r"of format 1, .*; fedproto-app 0\.1 can resume it"):
        newest_checkpoint(run / "checkpoint")
