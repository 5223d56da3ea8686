"""Where on the server a run may read and write.

The user who submits a run chooses ``output.dir``, ``encoder.path``, ``graph.path`` and
``graph.names``. The operator of a server for several users therefore sets FEDPROTO_OUTPUT_ROOT.
All these paths must then lie in this folder, and relative paths start there. If the variable is not
set, as in a simulation, the user is taken to own the server, and any path is allowed.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedproto_app.core.errors import SettingsError
from fedproto_app.settings import Settings, settings_from

OUTPUT_ROOT = "FEDPROTO_OUTPUT_ROOT"
_CHOSEN = (("output", "dir"), ("encoder", "path"), ("graph", "path"), ("graph", "names"))


def within_root(settings: Settings) -> Settings:
    """Return the settings with absolute paths. Raise `SettingsError` for one outside the root."""
    if not os.environ.get(OUTPUT_ROOT):
        return settings
    root = Path(os.environ[OUTPUT_ROOT]).resolve()
    table = settings.model_dump(by_alias=True)
    for section, key in _CHOSEN:
        if path := table[section][key]:
            table[section][key] = str(_inside(root, path, f"{section}.{key}"))
    return settings_from(table)


def _inside(root: Path, path: str, key: str) -> Path:
    resolved = (root / path).resolve()  # links included
    if not resolved.is_relative_to(root):
        raise SettingsError(
            f"{key} = {path!r}: is {resolved} on the server, outside {OUTPUT_ROOT} = {root}"
        )
    return resolved
