"""A node's name in messages to its operator, and the folder of its state in a run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from flwr.app import Context

from fedproto_app.core.errors import FedProtoError
from fedproto_app.node.site import Site
from fedproto_app.settings import PLAIN_NAME, Settings


def name_of(context: Context, site: Site) -> str:
    """Return the node's name, or Flower's node id if it has none."""
    return site.label or str(context.node_id)


def state_dir(
    context: Context, settings: Settings, site: Site, run: str, token: str, *, simulated: bool
) -> Path:
    """Return the folder with the state of this node's clients in this run.

    Nodes never share a folder. Raises `FedProtoError` for a name that is not plain and for a link
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
    """Return the name if it is a plain one: a server must not choose where a node writes."""
    if not re.fullmatch(PLAIN_NAME, name):
        raise FedProtoError(f"{key} = {name!r}: must consist of letters, digits and . _ = + -")
    return name
