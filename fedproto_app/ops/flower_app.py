"""The Flower app that runs the installed package, for users without an app folder of their own.

Flower runs folders with a pyproject.toml. This folder has no code: its ServerApp and ClientApp are
imported from the installed package, at the server and at the nodes.
"""

from __future__ import annotations

from pathlib import Path

import tomli_w

from fedproto_app.core.version import __version__
from fedproto_app.settings.tables import pyproject_tables

_PROJECT = {
    "project": {
        "name": "fedproto-app",
        "version": __version__,
        "description": "The installed fedproto-app",
        "license": {"file": "LICENSE"},
        "dependencies": ["flwr[simulation]>=1.39,<1.42"],
    },
    "tool": {
        "flwr": {
            "app": {
                "publisher": "fedproto",
                "fab-format-version": 1,
                "flwr-version-target": "1.39.0",
                "components": {
                    "serverapp": "fedproto_app.server_app:app",
                    "clientapp": "fedproto_app.client_app:app",
                },
            }
        }
    },
}
_LICENSE = "Apache License 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"


def write_app(folder: Path) -> Path:
    """Write the app into a new folder, and return the folder."""
    folder.mkdir()
    (folder / "LICENSE").write_text(_LICENSE, encoding="utf-8")
    # With every key, because Flower accepts no others in a run's settings.
    project = f"{tomli_w.dumps(_PROJECT)}\n{pyproject_tables()}"
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    return folder
