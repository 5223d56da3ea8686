"""Keys and certificates: they verify, stay private, and are never overwritten."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Thread

import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedproto_app.core.errors import SettingsError
from fedproto_app.ops import keys
from fedproto_app.ops.keys import (
    CA_YEARS,
    SERVER_YEARS,
    CertificateEnd,
    certificates_in,
    make_keys,
    servers_certificate,
    warnings,
)

HOST = ["fl.example.org"]
NO_SERVER: dict[str, bytes | None] = {"server.pem": None, "server.key": None}
OTHER_KEY = ec.generate_private_key(ec.SECP384R1()).private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def greet(folder: Path, name: str, ca: Path) -> str | None:
    """Return the protocol of a TLS connection to a server with the folder's certificate."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(folder / "server.pem", folder / "server.key")
    asking = ssl.create_default_context(cafile=ca)
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    client_end, server_end = socket.socketpair()

    def serve() -> None:
        try:
            served.wrap_socket(server_end, server_side=True).close()
        except (ssl.SSLError, OSError):
            server_end.close()

    server = Thread(target=serve)
    server.start()
    try:
        with asking.wrap_socket(client_end, server_hostname=name) as connection:
            return connection.version()
    finally:
        client_end.close()
        server.join(timeout=10)


def test_clients_that_hold_the_ca_trust_every_name_of_the_server(
    folder: Path, tmp_path: Path
) -> None:
    for each_folder in (folder, tmp_path / "other"):
        make_keys(each_folder, ["FL.example.org", "192.0.2.7", "2001:db8::7"], [])
    for name in ("fl.example.org", "192.0.2.7", "2001:db8::7", "localhost", "127.0.0.1"):
        assert greet(folder, name, folder / "ca.crt") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        greet(folder, "other.example.org", folder / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        greet(folder, "fl.example.org", tmp_path / "other" / "ca.crt")


def test_certificates_say_what_they_may(folder: Path) -> None:
    make_keys(folder, ["fl.example.org", "127.0.0.1"], [])
    ca, server = certificate(folder / "ca.crt"), certificate(folder / "server.pem")
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert (usage.value.key_cert_sign, usage.value.digital_signature) == (True, False)
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1")]
    for shown, years in ((ca, CA_YEARS), (server, SERVER_YEARS)):
        assert isinstance(shown.public_key(), ec.EllipticCurvePublicKey)
        remaining = shown.not_valid_after_utc - datetime.now(UTC)
        assert abs(remaining - timedelta(days=365 * years)) < timedelta(hours=1)
    server.verify_directly_issued_by(ca)


def test_a_node_has_a_key_pair_in_the_formats_flower_reads(folder: Path) -> None:
    make_keys(folder, [], ["harbour", "pier.2"])
    assert set(contents(folder)) == {
        f"nodes/{n}{e}" for n in ("harbour", "pier.2") for e in ("", ".pub")
    }
    private = load_ssh_private_key((folder / "nodes" / "harbour").read_bytes(), None)
    public = (folder / "nodes" / "harbour.pub").read_bytes()
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == load_ssh_public_key(public)
    assert public.startswith(b"ecdsa-sha2-nistp384 ")
    assert public.endswith(b" harbour\n")
    assert public != (folder / "nodes" / "pier.2.pub").read_bytes()


def test_private_files_are_private_from_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_chmod(*_: object, **__: object) -> None:
        raise AssertionError("a mode set afterwards is too late")

    for name in ("chmod", "fchmod"):
        monkeypatch.setattr(os, name, no_chmod)
    before = os.umask(0)
    try:
        files = make_keys(folder, ["fl.example.org"], ["harbour"])
    finally:
        os.umask(before)
    assert {file.path.name for file in files if file.private} == {"ca.key", "server.key", "harbour"}
    for file in files:
        assert mode(file.path) == (0o600 if file.private else 0o644)
        assert (b"PRIVATE KEY" in file.path.read_bytes()) == file.private
    assert mode(folder) == mode(folder / "nodes") == 0o700


def test_nodes_can_be_added_and_the_ca_is_used_again(folder: Path) -> None:
    make_keys(folder, ["fl.example.org"], ["harbour"])
    before = contents(folder)
    make_keys(folder, [], ["station"])
    assert contents(folder).items() > before.items()
    for name in ("server.pem", "server.key"):
        (folder / name).rename(folder / f"old-{name}")
    files = make_keys(folder, ["new.example.org"], [])
    assert [file.path.name for file in files] == ["server.pem", "server.key"]
    assert contents(folder)["ca.crt"] == before["ca.crt"]
    assert greet(folder, "new.example.org", folder / "ca.crt") == "TLSv1.3"


@pytest.mark.parametrize(
    ("changed", "hosts", "nodes", "message"),
    [
        ({}, HOST, ["pier"], r"server\.pem already exists .* move server.pem and"),
        ({}, [], ["pier", "harbour"], r"nodes/harbour already exists .* leave out --node harbour"),
        ({"nodes/harbour": None}, [], ["harbour"], r"harbour\.pub already exists"),
        ({**NO_SERVER, "ca.key": None}, HOST, [], r"ca\.crt exists, but its other half"),
        ({**NO_SERVER, "ca.key": OTHER_KEY}, HOST, [], r"is not the key of .*ca\.crt"),
        ({**NO_SERVER, "ca.key": b"no key"}, HOST, [], "cannot be read"),
    ],
)
def test_what_exists_and_does_not_fit_is_refused_and_nothing_changes(
    folder: Path, changed: dict[str, bytes | None], hosts: list[str], nodes: list[str], message: str
) -> None:
    make_keys(folder, HOST, ["harbour"])
    for name, content in changed.items():
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
    before = contents(folder)
    with pytest.raises(SettingsError, match=message):
        make_keys(folder, hosts, nodes)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "host",
    [
        *("", "fl.example.org:9092", "https://fl", "*.example.org", "a b", "-a", "300.1.1.1"),
        *("[::1]", "a" * 64, "fl.example.org.", "straße.example"),
    ],
)
def test_a_host_must_be_a_name_or_an_address(folder: Path, host: str) -> None:
    with pytest.raises(SettingsError, match=r"must be a DNS name or an IP address"):
        make_keys(folder, [host], [])
    assert not folder.exists()


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (["../ca"], "letters, digits"),
        ([""], "letters, digits"),
        (["-rf"], "letters, digits"),
        (["harbour\n"], "letters, digits"),
        (["a" * 121], "at most 120"),
        (["harbour.pub"], "ending of public keys"),
        (["harbour", "harbour"], "given twice"),
        ([], "nothing to make"),
    ],
)
def test_a_node_name_must_be_fit_for_a_file(folder: Path, nodes: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_keys(folder, [], nodes)
    assert not folder.exists()


def test_a_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(SettingsError, match=r"other users may enter it \(mode 0755\).*chmod 700"):
        make_keys(folder, ["fl.example.org"], [])
    assert contents(folder) == {}


def test_a_file_in_place_of_the_folder_is_refused(folder: Path) -> None:
    folder.write_text("")
    folder.chmod(0o600)
    with pytest.raises(SettingsError, match="is not a folder"):
        make_keys(folder, [], ["harbour"])


def test_when_one_file_cannot_be_written_none_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def full(path: Path, *arguments: int) -> int:
        if Path(path).name == "harbour":
            raise OSError(28, "No space left on device")
        return real(path, *arguments)

    monkeypatch.setattr("fedproto_app.ops.keys.os.open", full)
    with pytest.raises(SettingsError, match=r"harbour: No space left on device; nothing was made"):
        make_keys(folder, ["fl.example.org"], ["harbour"])
    assert contents(folder) == {}


@pytest.fixture
def work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    tree = tmp_path / "tree"
    subprocess.run(["git", "init", "--quiet", str(tree)], check=True, timeout=60)
    return tree


@pytest.mark.parametrize("ignored", ["", "*.key\n", "/other/\n"])
def test_a_work_tree_that_could_commit_a_key_is_refused(work_tree: Path, ignored: str) -> None:
    (work_tree / ".gitignore").write_text(ignored)
    with pytest.raises(SettingsError, match="does not ignore the private keys"):
        make_keys(work_tree / "keys", ["fl.example.org"], ["harbour"])
    assert not (work_tree / "keys").exists()


def test_a_work_tree_that_ignores_the_keys_will_do(work_tree: Path) -> None:
    (work_tree / ".gitignore").write_text("/keys/\n")
    make_keys(work_tree / "keys", ["fl.example.org"], ["harbour"])
    done = subprocess.run(
        ["git", "-C", str(work_tree), "status", "--porcelain", "--untracked-files=all"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "?? .gitignore\n"


def test_without_git_a_work_tree_is_refused(
    work_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work_tree / ".gitignore").write_text("/keys/\n")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingsError, match="does not ignore the private keys"):
        make_keys(work_tree / "keys", [], ["harbour"])


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
    assert end.line(now) == line


def test_those_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "SERVER_YEARS", 20 / 365)
    make_keys(tmp_path / "old", ["localhost"], [])
    ca, server = certificates_in(tmp_path / "old")
    assert warnings([ca, server, None]) == [server.line(datetime.now(UTC))]
    with pytest.raises(SettingsError, match="holds no certificate"):
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

        thread = Thread(target=serve, daemon=True)
        thread.start()
        shown = servers_certificate("there")
        thread.join(timeout=10)
    (_, server) = certificates_in(folder)
    assert shown is not None
    assert shown.ends == server.ends
    assert servers_certificate("away") is None
    assert servers_certificate("unknown") is None
