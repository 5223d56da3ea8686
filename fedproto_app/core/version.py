"""The version of the app, which is written in pyproject.toml alone."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path


def _version() -> str:
    """Return the version in the pyproject.toml beside the package, else the installed version.

    The file comes first because a checkout may be newer than what pip recorded, and because nothing
    is installed in the bundle that Flower runs.
    """
    project = Path(__file__).parents[2] / "pyproject.toml"
    if project.is_file():
        table = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        if table.get("name") == "fedproto-app":
            return str(table["version"])
    return version("fedproto-app")


__version__ = _version()
