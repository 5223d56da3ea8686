"""When certificates end, and warnings a month before."""

from __future__ import annotations

import os
import socket
import ssl
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from fedproto_app.core.errors import SettingsError

SOON = timedelta(days=30)
_SECONDS = 5.0  # within which a server must show its certificate


class CertificateEnd(NamedTuple):
    """The name of a certificate's file or server, and the time when it ends."""

    name: str
    ends: datetime

    def is_soon(self, now: datetime) -> bool:
        """Return whether the certificate ends within a month, or has ended."""
        return self.ends - now < SOON

    def said(self, now: datetime) -> str:
        """Return a line with the day and the number of days until then."""
        days = (self.ends - now).days
        when = f"ends in {days} days" if days >= 0 else f"ENDED {-days} days ago"
        return f"{self.name} {when}, on {self.ends:%Y-%m-%d}"


def certificates_in(folder: Path) -> list[CertificateEnd]:
    """Return the certificates in a folder (`*.crt`, `*.pem`); `SettingsError` if it has none."""
    files = sorted(path for path in folder.glob("*.*") if path.suffix in (".crt", ".pem"))
    if not files:
        raise SettingsError(f"{folder}: no certificate there (*.crt, *.pem)")
    return [CertificateEnd(file.name, _end(file.read_bytes(), file)) for file in files]


def servers_certificate(connection: str) -> CertificateEnd | None:
    """Return the certificate that a server shows; None if it shows none in time.

    connection: a name in Flower's $FLWR_HOME/config.toml.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser()
        entry = tomllib.loads((home / "config.toml").read_text())["superlink"][connection]
        host, _, port = str(entry["address"]).rpartition(":")
        context = ssl.create_default_context(cafile=entry["root-certificates"])
        context.check_hostname = False  # Flower checks; here it is read
        context.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection((host, int(port)), _SECONDS) as plain,
            context.wrap_socket(plain) as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
        if shown:
            ends = x509.load_der_x509_certificate(shown).not_valid_after_utc
            return CertificateEnd(f"the certificate of {host}", ends)
    return None


def warnings(ends: Iterable[CertificateEnd | None]) -> list[str]:
    """Return a line for each certificate that ends within a month."""
    now = datetime.now(UTC)
    return [end.said(now) for end in ends if end is not None and end.is_soon(now)]


def _end(content: bytes, file: Path) -> datetime:
    try:
        return x509.load_pem_x509_certificate(content).not_valid_after_utc
    except ValueError:
        raise SettingsError(f"{file}: no certificate in PEM") from None
