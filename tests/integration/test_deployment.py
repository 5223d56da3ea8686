"""A SuperLink and SuperNodes as on real machines: TLS, registered keys, a process each."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.local_federation import LocalFederation
from fedproto_app.ops.keys import make_keys
from fedproto_app.settings import flower_config
from tests.helpers.local_grid import run_locally, small_settings, synthetic_nodes
from tests.integration.test_simulation import assert_same_clients, assert_same_rounds
from tests.node.stored import rounds_in

pytestmark = pytest.mark.integration

TWO_DAYS_LATE = """
import datetime, flwr.supercore.date as date
on_time = date.now
date.now = lambda: on_time() - datetime.timedelta(days=2)
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    with LocalFederation(tmp_path_factory.mktemp("deployment") / "federation") as started:
        yield started


def test_nodes_that_are_not_known_are_refused(federation: LocalFederation, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", ["127.0.0.1"], [])
    (tmp_path / "sitecustomize.py").write_text(TWO_DAYS_LATE)
    refused = {
        federation.add_node("unregistered", {}, registered=False): "2004.* Failed to activate",
        federation.add_node("no-key", {}, has_key=False): "2001.* must be registered",
        federation.add_node("wrong-ca", {}, ca=tmp_path / "other" / "ca.crt"): (
            "CERTIFICATE_VERIFY_FAILED"
        ),
        federation.add_node(
            "plaintext-key", {}, plaintext=True
        ): "requires a secure TLS connection",
        federation.add_node("late", {}, environment={"PYTHONPATH": str(tmp_path)}): (
            "this node's clock says .*, and the server's clock says "
        ),
    }
    plaintext = federation.add_node("plaintext", {}, plaintext=True, has_key=False)
    for node, reason in refused.items():
        assert node.wait_until_ended(deadline=120) == 1, node.name
        code = 303 if node.name == "plaintext-key" else 305
        node.wait_for_log(rf"Exit Code: {code}\n[^~]*{reason}", deadline=1)
    # Without a key the node takes the SuperLink for absent, and keeps trying.
    plaintext.wait_for_log(r"(?s)Connection attempt failed.*Connection attempt failed")
    assert federation.online() == set()
    for node in (plaintext, *refused):
        assert "SuperNode ID" not in node.log_text(), node.name
    plaintext.kill()
    assert plaintext.exit_code == -signal.SIGKILL


@pytest.fixture(scope="module")
def three_nodes(
    federation: LocalFederation, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """Start three nodes of the federation and return their state folders once they are online."""
    folder = tmp_path_factory.mktemp("three-nodes")
    states = [folder / f"state-{index}" for index in range(3)]
    nodes = [
        federation.add_node(
            # As its share is called in a simulation.
            str(index),
            {**config, "device": "cpu", "state-dir": str(states[index])},
        )
        for index, config in enumerate(synthetic_nodes(3, folder / "own-state"))
    ]
    joined = {node.wait_until_joined() for node in nodes}
    assert federation.online() == joined
    return states


def deployed_and_local(
    federation: LocalFederation, tmp_path: Path, **changes: Any
) -> tuple[Path, Path]:
    """Run on the federation's three nodes and in one process, and return both runs' folders."""
    deadlines = {"nodes.start-deadline": 120.0, "nodes.round-deadline": 120.0}
    table = {**changes, "rounds": 2, "nodes.minimum": 3, **deadlines}
    deployed = small_settings(tmp_path, **table, **{"output.name": "deployed"})
    run = federation.submit(flower_config(deployed))
    status = federation.wait(run, deadline=300)
    assert status.completed, f"{status}\n{federation.superlink.log_text()}"
    local = small_settings(tmp_path, **table, **{"output.name": "local"})
    folder, _ = run_locally(local, synthetic_nodes(3, tmp_path / "state"))
    return Path(deployed.output.dir) / "deployed", folder.path


@pytest.mark.parametrize(
    ("method", "calendar", "entries", "masked"),
    [
        ("fuels", "none", 2, False),  # over two rounds
        # In one message, and the steps of a masked sum.
        pytest.param("analytic", "phase", 1, True, marks=pytest.mark.exhaustive),
        pytest.param("analytic", "phase", 1, False, marks=pytest.mark.exhaustive),
        pytest.param("kindred", "week", 1, False, marks=pytest.mark.exhaustive),
        pytest.param("kindred", "week", 1, True, marks=pytest.mark.exhaustive),
        pytest.param("fedrep", "none", 2, True, marks=pytest.mark.exhaustive),
    ],
)
def test_runs_on_three_nodes_equal_runs_in_one_process(
    federation: LocalFederation,
    three_nodes: list[Path],
    tmp_path: Path,
    method: str,
    calendar: str,
    entries: int,
    masked: bool,
) -> None:
    """Clients' results are equal bit for bit."""
    changes = {
        "method": method,
        **({"kindred.sharing": "common"} if masked and method == "kindred" else {}),
        "data.calendar": calendar,
        "aggregation.secure": masked,
        "evaluate-every": 2,  # each message of a node starts a process of seconds
    }
    deployed, local = deployed_and_local(federation, tmp_path, **changes)
    assert_same_clients(deployed, local)
    assert_same_rounds(deployed, local)
    for state in three_nodes:  # each kept the state of its own clients
        assert any(entries in rounds_in(file.parent, "models") for file in state.rglob("*.sqlite"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("masked", [False, True])
def test_a_method_in_a_users_module_runs_on_nodes_that_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masked: bool
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    shutil.copy(Path(__file__).parents[1] / "helpers" / "own_methods.py", modules)
    monkeypatch.syspath_prepend(modules)
    environment = {"PYTHONPATH": str(modules)}
    changes = {"method": "own_methods:PULL", "aggregation.secure": masked}
    with LocalFederation(tmp_path / "federation", environment) as federation:
        for index, config in enumerate(synthetic_nodes(3, tmp_path / "own-state")):
            state = {"device": "cpu", "state-dir": str(tmp_path / f"state-{index}")}
            federation.add_node(str(index), {**config, **state}, environment=environment)
        for node in federation.nodes:
            node.wait_until_joined()
        deployed, local = deployed_and_local(federation, tmp_path, **changes)
    assert_same_clients(deployed, local)
    sys.modules.pop("own_methods", None)
