"""Find a node's state folder in a run, its secrets, and its name in messages to its operator.

The secrets are for the node's noise and its signatures. No run and no server learns them.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from flwr.app import Context

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.core.whole_file import flush, make_private
from fedproto_app.node.site import Site
from fedproto_app.settings import PLAIN_NAME, Settings

SECRET = "secret"  # the name of a secret's file
_BYTES = 32


def name_of(context: Context, site: Site) -> str:
    """Return the node's name, or Flower's node id if it has none."""
    return site.label or str(context.node_id)


def state_dir(
    context: Context, settings: Settings, site: Site, run: str, token: str, *, simulated: bool
) -> Path:
    """Return the folder with the state of this node's clients in this run.

    Nodes never share a folder. Raises `FedProtoError` for a name that is not plain, and for a link
    that leads out of the site's state directory.
    """
    node, run = _plain("node-name", name_of(context, site)), _plain("run", run)
    if site.state_dir is None and simulated:
        return Path(settings.output.dir).resolve() / run / "state" / node
    root = state_root(site)
    folder = root / f"{run}-{_plain('token', token)}" / node
    if not folder.resolve().is_relative_to(root):
        raise FedProtoError(f"{folder}: a link to {folder.resolve()}, outside state-dir = {root}")
    return folder


def state_root(site: Site) -> Path:
    """Return the site's state directory."""
    home = Path(os.environ.get("FLWR_HOME", "~/.flwr")) / "fedproto"
    return Path(site.state_dir or home).expanduser().resolve()


def _plain(key: str, name: str) -> str:
    """Return the name if it is plain, because a server must not choose where a node writes."""
    if not re.fullmatch(PLAIN_NAME, name):
        raise FedProtoError(f"{key} = {name!r}: must consist of letters, digits and . _ = + -")
    return name


def own_secret(folder: Path) -> bytes:
    """Return the secret in this folder. The first call draws it from the system's randomness.

    If several processes draw it at the same time, all of them get the same secret. Raises
    `SettingsError` if other users may read the file, or if it is incomplete.
    """
    path = folder / SECRET
    if not path.exists():
        make_private(folder)
        _draw(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise SettingsError(f"{path}: others may read this secret; chmod 600 it, or delete it")
    secret = path.read_bytes()
    if len(secret) != _BYTES:
        raise SettingsError(f"{path}: is incomplete; delete it, and a new one is drawn")
    return secret


def secret_of_simulation(seed: int) -> bytes:
    """Return the secret of all nodes of a simulation. It follows from the seed, so it is public."""
    return hashlib.sha256(f"privacy of a simulation\x1f{seed}".encode()).digest()


def _draw(path: Path) -> None:
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
        flush(beside)
        with suppress(FileExistsError):
            os.link(beside, path)  # completely written, and never replaces another secret
        flush(path.parent)
    finally:
        beside.unlink()
