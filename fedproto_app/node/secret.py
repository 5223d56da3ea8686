"""Secrets of a node that no run and no server learns: for its noise and for its signatures."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from fedproto_app.core.errors import SettingsError

SECRET = "secret"
_BYTES = 32


def own_secret(folder: Path) -> bytes:
    """Return the secret in this folder; the first call draws it from the system's randomness.

    Of several processes that draw it at the same time, all get the same secret. Raises
    `SettingsError` if other users may read the file or if it is incomplete.
    """
    path = folder / SECRET
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _draw(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise SettingsError(f"{path}: others may read this secret; chmod 600, or delete it")
    secret = path.read_bytes()
    if len(secret) != _BYTES:
        raise SettingsError(f"{path}: is not whole; delete it, and a new one is drawn")
    return secret


def secret_of_simulation(seed: int) -> bytes:
    """Return the secret of all nodes of a simulation: derived from the seed, so not secret."""
    return hashlib.sha256(f"privacy of a simulation\x1f{seed}".encode()).digest()


def _draw(path: Path) -> None:
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(beside, path)  # whole, and never in place of another
    finally:
        beside.unlink()
