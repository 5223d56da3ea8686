"""Where on the server a run may read and write.

Whoever submits a run chooses ``output.dir``, ``encoder.path``, and ``graph.path`` and
``graph.names``. The operator of a server that runs for others therefore sets FEDPROTO_OUTPUT_ROOT.
All must then lie in this folder, and relative paths start there. Without it, as in a simulation,
the server is the user's own.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedproto_app.core.errors import SettingsError
from fedproto_app.server.node_register import REGISTER
from fedproto_app.settings import Settings, settings_from

OUTPUT_ROOT = "FEDPROTO_OUTPUT_ROOT"
_CHOSEN = (("output", "dir"), ("encoder", "path"), ("graph", "path"), ("graph", "names"))


def within_root(settings: Settings) -> Settings:
    """The settings with these paths made absolute; `SettingsError` for one that leaves the root."""
    if not os.environ.get(OUTPUT_ROOT):
        return settings
    root = Path(os.environ[OUTPUT_ROOT]).resolve()
    table = settings.model_dump(by_alias=True)
    for section, key in _CHOSEN:
        if given := table[section][key]:
            table[section][key] = str(_inside(root, given, f"{section}.{key}"))
    return settings_from(table)


def register_file(output_dir: str) -> Path:
    """The server's register of nodes: in the root, else where the run folders are."""
    return Path(os.environ.get(OUTPUT_ROOT) or output_dir).expanduser().resolve() / REGISTER


def _inside(root: Path, given: str, key: str) -> Path:
    meant = (root / given).resolve()  # links included
    if not meant.is_relative_to(root):
        raise SettingsError(
            f"{key} = {given!r}: means {meant} on the server, outside {OUTPUT_ROOT} = {root}"
        )
    return meant
