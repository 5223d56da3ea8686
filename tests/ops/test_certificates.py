"""Warnings a month before a certificate ends."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import tomli_w

from fedproto_app.core.errors import SettingsError
from fedproto_app.ops import keys
from fedproto_app.ops.certificates import (
    CertificateEnd,
    certificates_in,
    servers_certificate,
    warnings,
)
from fedproto_app.ops.keys import make_keys


@pytest.mark.parametrize(
    ("days", "soon", "line"),
    [
        (31, False, "x ends in 31 days, on 2026-02-01"),
        (29, True, "x ends in 29 days, on 2026-01-30"),
        (0, True, "x ends in 0 days, on 2026-01-01"),
        (-3, True, "x ENDED 3 days ago, on 2025-12-29"),
    ],
)
def test_a_month_before(days: int, soon: bool, line: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    end = CertificateEnd("x", now + timedelta(days=days))
    assert end.is_soon(now) is soon
    assert end.said(now) == line


def test_those_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "SERVER_YEARS", 20 / 365)
    make_keys(tmp_path / "old", ["localhost"], [])
    ca, server = certificates_in(tmp_path / "old")
    assert warnings([ca, server, None]) == [server.said(datetime.now(UTC))]
    with pytest.raises(SettingsError, match="no certificate there"):
        certificates_in(tmp_path)
    (tmp_path / "x.pem").write_text("no")
    with pytest.raises(SettingsError, match=r"x\.pem: no certificate in PEM"):
        certificates_in(tmp_path)


def test_what_a_server_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "keys"
    make_keys(folder, ["127.0.0.1"], [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        entry = {"address": f"127.0.0.1:{port}", "root-certificates": str(folder / "ca.crt")}
        away = {"address": "127.0.0.1:1", "root-certificates": str(folder / "ca.crt")}
        table = {"superlink": {"there": entry, "away": away}}
        (tmp_path / "config.toml").write_text(tomli_w.dumps(table))

        def serve() -> None:
            connection, _ = listening.accept()
            with context.wrap_socket(connection, server_side=True) as secure:
                secure.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        shown = servers_certificate("there")
        thread.join(timeout=10)
    (_, server) = certificates_in(folder)
    assert shown is not None
    assert shown.ends == server.ends
    assert servers_certificate("away") is None
    assert servers_certificate("unknown") is None
