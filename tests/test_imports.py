"""What a process waits for when it starts: libraries that take a second belong where they serve."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        (
            "fedproto_app.cli.commands",
            ("torch", "flwr", "scipy", "sklearn", "pandas", "matplotlib"),
        ),
        ("fedproto_app.tasks.table", ("torch", "flwr", "sklearn", "pandas", "matplotlib", "numpy")),
        ("fedproto_app.client_app", ("torch", "pandas")),
        ("fedproto_app.node.orders", ("scipy", "sklearn", "pandas", "matplotlib", "PIL", "h5py")),
    ],
)
def test_slow_libraries_are_not_imported_by_the_way(module: str, slow: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*set({slow}) & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
