"""A site with a gate before Flower's program, and runs with custom code."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.local_federation import LocalFederation
from fedproto_app.ops.superlink import write_app
from fedproto_app.settings import flower_config
from tests.helpers.local_grid import small_settings

pytestmark = pytest.mark.integration

GATE = Path(__file__).parents[2] / "docker" / "gate"
HOSTILE = """
import os, time
from pathlib import Path
from flwr.clientapp import ClientApp
Path("{marker}").write_text("this ran")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
from fedproto_app.client_app import app as honest
app = honest
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    with LocalFederation(tmp_path_factory.mktemp("gate") / "federation") as started:
        yield started


def audit_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def test_a_site_decides_which_code_runs(federation: LocalFederation, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    app = write_app(tmp_path / "app")
    (app / "hostile").mkdir()
    (app / "hostile" / "__init__.py").write_text("")
    (app / "hostile" / "client.py").write_text(HOSTILE.format(marker=marker))
    project = (app / "pyproject.toml").read_text()
    changed = project.replace("fedproto_app.client_app:app", "hostile.client:app")
    assert changed != project
    (app / "pyproject.toml").write_text(changed)
    assert tomllib.loads(changed)["tool"]["flwr"]["app"]["components"]["clientapp"]

    site = tmp_path / "site.toml"
    table = '[data]\nsource = "synthetic-traffic"\n[limits]\nleast-periods = 0\n'
    head = 'name = "harbour"\nstate-dir = "state"\naudit = "audit.jsonl"\n'
    site.write_text(f"{head}{table}")
    environment = {
        "PATH": f"{GATE}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FEDPROTO_PYTHON": sys.executable,
        "PYTHONPATH": str(GATE.parents[1]),
    }
    node = federation.add_node("harbour", {"site": str(site)}, environment=environment)
    node.wait_until_joined()

    def run(name: str, **changes: Any) -> bool:
        nodes = {"nodes.minimum": 1, "nodes.start-deadline": 90.0, "nodes.round-deadline": 120.0}
        settings = small_settings(tmp_path, rounds=1, **{**nodes, "output.name": name, **changes})
        return federation.wait(federation.submit(flower_config(settings), app)).completed

    # The site's own copy works, whatever code the run brings.
    assert run("installed"), node.log_text()
    assert not marker.exists()
    lines = audit_of(tmp_path)
    assert {line["event"] for line in lines} == {"order", "reply"}
    (train,) = (line for line in lines if line["event"] == "reply" and line["message"] == "train")
    assert train["clients"] > 0
    assert train["array_bytes"] > 0
    assert train["arrays"]
    assert train["settings"]["method"] == "fuels"

    # Listed code runs, and leaves nothing behind.
    site.write_text(f'{head}[code]\nrun = "listed"\ndigests = ["{train["digest"]}"]\n{table}')
    assert run("listed"), node.log_text()
    assert marker.read_text() == "this ran"
    assert "left-behind" in {line["event"] for line in audit_of(tmp_path)}
    assert not any("hostile" in line for line in node.pids().values())
