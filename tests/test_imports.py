"""Imports at the start of a process: slow libraries are imported only where they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedproto_app import __version__
from fedproto_app.cli.commands import COMMANDS
from tests.report.made_runs import make_run


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        (
            "fedproto_app.cli.commands",
            ("torch", "numpy", "pydantic", "fedproto_app.cli.run", "fedproto_app.settings"),
        ),
        *(
            (
                f"fedproto_app.cli.{module}",
                ("torch", "flwr", "scipy", "sklearn", "pandas", "matplotlib", "cryptography"),
            )
            for module in sorted({place.partition(":")[0] for place, _ in COMMANDS.values()})
        ),
        ("fedproto_app.tasks.table", ("torch", "flwr", "sklearn", "pandas", "matplotlib", "numpy")),
        ("fedproto_app.client_app", ("torch", "pandas")),
        ("fedproto_app.ops.gate.start", ("flwr", "numpy", "pydantic", "httpx", "cryptography")),
    ],
)
def test_slow_libraries_are_not_imported_by_the_way(module: str, slow: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*set({slow}) & sys.modules.keys())"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []


@pytest.mark.parametrize("gate", ["client_gate", "server_gate"])
def test_a_gate_imports_neither_torch_nor_flowers_servers(gate: str) -> None:
    """Every order starts a gate, and on a slow host its imports take longer than the training."""
    code = (
        "import sys; from fedproto_app.ops.gate import start; start.leave_servers_out()\n"
        f"import fedproto_app.ops.gate.{gate}\n"
        "slow = {'torch', 'scipy', 'pandas', 'ray', 'sqlalchemy', 'alembic', 'fedproto_app.api',"
        " 'flwr.supernode.cli.flower_supernode', 'flwr.superlink.cli.flower_superlink'}\n"
        "print(*slow & sys.modules.keys())"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []


def test_a_nodes_half_of_a_method_imports_nothing_slow() -> None:
    """A SuperNode starts a process for every message; a method in one file brings both halves."""
    code = (
        "import sys, fedproto_app.node.orders\n"
        "from fedproto_app.core.methods import METHODS, part_of\n"
        "for method in ('fedavg', 'fedprox', 'fedproto', 'fedpcl', 'ditto', 'gldp'):\n"
        "    part_of(METHODS[method], 'learner', 'classification')\n"
        "part_of(METHODS['fuels'], 'learner', 'forecasting')\n"
        "slow = {'scipy', 'sklearn', 'pandas', 'matplotlib', 'PIL', 'h5py'}\n"
        "print(*slow & sys.modules.keys())"
    )
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_comparing_runs_of_this_version_imports_no_method(tmp_path: Path) -> None:
    versions = {"fedproto-app": __version__}
    runs = [
        make_run(
            tmp_path / name, settings={"seed": 0, "method": name}, method=name, versions=versions
        )
        for name in ("fedprox", "ditto")
    ]
    code = (
        "import sys; from fedproto_app.cli.main import main\n"
        "try: main()\n"
        "finally: print(*{'torch', 'flwr'} & sys.modules.keys(), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "compare", *map(str, runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "fedprox" in done.stdout
    assert "torch" not in done.stderr
    assert "flwr" not in done.stderr
