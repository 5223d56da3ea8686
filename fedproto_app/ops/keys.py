"""Make the keys and certificates of a federation: a private CA, a server certificate, node keys.

All keys are EC P-384. Certificates are for Flower's ``--ssl-*`` and ``--root-certificates``. Node
keys have the OpenSSH formats of ``--auth-supernode-private-key`` and ``flwr supernode register``.
No file is ever overwritten. Other users can never read private files, not even for a moment.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.whole_file import flush
from fedproto_app.ops.superlink import address_of, connection_entry
from fedproto_app.settings import PLAIN_NAME

# Flower's processes on the server's machine connect to it by these names.
ALWAYS_NAMED = ("localhost", "127.0.0.1")
CA_YEARS, SERVER_YEARS = 10, 2

_YEAR = timedelta(days=365)
_CLOCKS_APART = timedelta(days=7)  # a clock that is behind must not cause "not yet valid"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LONGEST_NODE_NAME = 120
_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)  # all uses of a key that a certificate can name


@dataclass(frozen=True)
class KeyFile:
    """One new file, and the machine where it belongs."""

    path: Path
    content: bytes
    private: bool
    goes_to: str


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_keys(folder: Path, hosts: Sequence[str], nodes: Sequence[str]) -> list[KeyFile]:
    """Make the keys and certificates that `folder` lacks. Either all files appear or none.

    hosts: DNS names and IP addresses of the server. If there are any, the folder's CA issues a
    server certificate. A folder without a CA gets a new one. nodes: names of nodes. Each gets a key
    pair, which needs no CA.

    Raises `SettingsError` for an invalid name, for a file that exists, and for a folder that other
    users can enter or that git may commit.
    """
    if not hosts and not nodes:
        raise SettingsError("nothing to make: name the server's --host, or a --node, or both")
    folder = folder.expanduser().resolve()
    names = list(dict.fromkeys([*map(_host, hosts), *map(_host, ALWAYS_NAMED)]))
    _check_nodes(nodes)
    files: list[KeyFile] = []
    if hosts:
        _refuse_existing([folder / "server.pem", folder / "server.key"], _ANOTHER_SERVER)
        authority, files = _authority(folder)
        files += _server(folder, names, authority)
    for node in nodes:
        pair = _node(folder / "nodes", node)
        _refuse_existing([file.path for file in pair], f"leave out --node {node}, or move it away")
        files += pair
    _refuse_git(folder, [file.path for file in files if file.private])
    _make_folder(folder)
    if nodes:
        _make_folder(folder / "nodes")
    _write(files)
    return files


_ANOTHER_SERVER = (
    "for a certificate with other names, or a new term, move server.pem and server.key away; the "
    "same CA will issue the new certificate, so nodes need nothing new"
)


def _host(name: str) -> x509.DNSName | x509.IPAddress:
    """Return the name or address as a certificate contains it."""
    with suppress(ValueError):
        return x509.IPAddress(ip_address(name))
    labels = name.lower().split(".")
    looks_like_address = labels[-1].isdigit()
    if looks_like_address or len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise SettingsError(
            f"--host {name!r}: must be a DNS name or an IP address, without port, scheme or "
            "wildcard, for example fl.example.org or 192.0.2.7"
        )
    return x509.DNSName(name.lower())


def _check_nodes(nodes: Sequence[str]) -> None:
    for node in nodes:
        if not re.fullmatch(PLAIN_NAME, node) or len(node) > _LONGEST_NODE_NAME:
            raise SettingsError(
                f"--node {node!r}: must be at most {_LONGEST_NODE_NAME} letters, digits and "
                ". _ = + -, and start with a letter or digit"
            )
        if node.endswith(".pub"):
            raise SettingsError(f"--node {node!r}: .pub is the ending of public keys")
        if nodes.count(node) > 1:
            raise SettingsError(f"--node {node!r}: given twice")


def _authority(folder: Path) -> tuple[_Authority, list[KeyFile]]:
    """Return the folder's CA and no files, or a new CA and its files."""
    certificate, key = folder / "ca.crt", folder / "ca.key"
    existing = [path for path in (certificate, key) if path.exists()]
    if len(existing) == 2:
        return _read_authority(certificate, key), []
    if existing:
        raise SettingsError(
            f"{existing[0]} exists, but its other half is missing ({certificate.name} and "
            f"{key.name} belong together); restore it, or name another folder for a new CA"
        )
    authority = _new_authority()
    machines = "server, every node, and where runs are submitted"
    return authority, [
        KeyFile(certificate, _pem(authority.certificate), False, machines),
        KeyFile(key, _private_pem(authority.key), True, "no machine: keep it apart"),
    ]


def _read_authority(certificate_file: Path, key_file: Path) -> _Authority:
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = load_pem_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"{certificate_file}, {key_file}: cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(f"{key_file}: must be an EC key")
    if key.public_key() != certificate.public_key():
        raise SettingsError(f"{key_file}: is not the key of {certificate_file}")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise SettingsError(
            f"{certificate_file}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}; "
            "name another folder for a new CA"
        )
    return _Authority(certificate, key)


def _new_authority() -> _Authority:
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedproto private CA")
    return _Authority(_issued(name, key, CA_YEARS * _YEAR, name, key, is_ca=True), key)


def _server(
    folder: Path, names: Sequence[x509.GeneralName], authority: _Authority
) -> list[KeyFile]:
    key, issuer = ec.generate_private_key(ec.SECP384R1()), authority.certificate
    certificate = _issued(
        _name("fedproto server"),
        key,
        # A certificate must not outlive its CA.
        min(SERVER_YEARS * _YEAR, issuer.not_valid_after_utc - datetime.now(UTC)),
        issuer.subject,
        authority.key,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName(names),
    )
    until = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    return [
        KeyFile(folder / "server.pem", _pem(certificate), False, f"server; valid until {until}"),
        KeyFile(folder / "server.key", _private_pem(key), True, "server alone"),
    ]


def _node(folder: Path, name: str) -> list[KeyFile]:
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return [
        KeyFile(folder / name, private, True, f"node {name} alone"),
        KeyFile(
            folder / f"{name}.pub", public + f" {name}\n".encode(), False, "where it is registered"
        ),
    ]


def _issued(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    term: timedelta,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
    is_ca: bool = False,
) -> x509.Certificate:
    """Return a certificate for the key, with these extensions and the usual ones."""
    time_now = datetime.now(UTC)
    usage = dict.fromkeys(_USES, False)
    usage |= {"key_cert_sign": is_ca, "crl_sign": is_ca, "digital_signature": not is_ca}
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(time_now - _CLOCKS_APART)
        .not_valid_after(time_now + term)
        .add_extension(x509.BasicConstraints(is_ca, 0 if is_ca else None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
    )
    for extension in (
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
        *extensions,
    ):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer_key, SHA384())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _refuse_existing(paths: Sequence[Path], remedy: str) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise SettingsError(f"{path} already exists and is never overwritten; {remedy}")


def _refuse_git(folder: Path, private: Sequence[Path]) -> None:
    """Refuse a git work tree that does not ignore every private file."""
    tree = next((up for up in (folder, *folder.parents) if (up / ".git").exists()), None)
    if tree is None:
        return
    paths = b"\0".join(os.fsencode(path) for path in private)
    # Remove variables that come from a hook or from another repository.
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GIT_")}
    try:
        result = subprocess.run(
            ["git", "-C", str(tree), "check-ignore", "--stdin", "-z"],
            input=paths,
            env=environment,
            capture_output=True,
            timeout=60,
        )
        ignored = result.stdout.count(b"\0")
    except (OSError, subprocess.TimeoutExpired):  # without git, assume that they are not ignored
        ignored = 0
    if ignored < len(private):
        raise SettingsError(
            f"{folder} lies in the git work tree {tree}, which does not ignore the private keys; "
            "they must never be committed, so name a folder outside, or let git ignore it"
        )


def _make_folder(folder: Path) -> None:
    """Create a folder that no other user can enter."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        raise SettingsError(f"{folder}: {error.strerror}") from None
    if not folder.is_dir():
        raise SettingsError(f"{folder}: is not a folder")
    if mode & 0o077:
        raise SettingsError(
            f"{folder}: other users may enter it (mode {mode:04o}); name a new folder, or close it "
            "with chmod 700"
        )


def _write(files: Sequence[KeyFile]) -> None:
    """Write all files. Each is created with its final mode. If one fails, remove all of them."""
    written: list[Path] = []
    try:
        for file in files:
            mode = 0o600 if file.private else 0o644
            descriptor = os.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(file.path)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(file.content)
            flush(file.path)
        for folder in {file.path.parent for file in files}:
            flush(folder)
    except BaseException as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise SettingsError(f"{file.path}: {error.strerror}; nothing was made") from None
        raise


SOON = timedelta(days=30)
_SECONDS = 5.0  # within which a server must show its certificate


class CertificateEnd(NamedTuple):
    """The name of a certificate's file or server, and the time when it ends."""

    name: str
    ends: datetime

    def is_soon(self, time_now: datetime) -> bool:
        """Return whether the certificate ends within a month, or has ended."""
        return self.ends - time_now < SOON

    def line(self, time_now: datetime) -> str:
        """Return a line with the day and the number of days until then."""
        days = (self.ends - time_now).days
        when = f"ends in {days} days" if days >= 0 else f"ENDED {-days} days ago"
        return f"{self.name} {when}, on {self.ends:%Y-%m-%d}"


def certificates_in(folder: Path) -> list[CertificateEnd]:
    """Return the certificates in a folder (`*.crt`, `*.pem`), or raise `SettingsError` if none."""
    files = sorted(path for path in folder.glob("*.*") if path.suffix in (".crt", ".pem"))
    if not files:
        raise SettingsError(f"{folder}: holds no certificate (*.crt, *.pem)")
    return [CertificateEnd(file.name, _end(file.read_bytes(), file)) for file in files]


def servers_certificate(connection: str) -> CertificateEnd | None:
    """Return the certificate that a server shows, or None if it shows none in time.

    connection: a name in Flower's $FLWR_HOME/config.toml.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        entry = connection_entry(connection)
        host, port = address_of(entry)
        context = ssl.create_default_context(cafile=entry["root-certificates"])
        context.check_hostname = False  # Flower checks the certificate. Here it is only read
        context.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection((host, port), _SECONDS) as plain,
            context.wrap_socket(plain) as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
        if shown:
            ends = x509.load_der_x509_certificate(shown).not_valid_after_utc
            return CertificateEnd(f"the certificate of {host}", ends)
    return None


def warnings(ends: Iterable[CertificateEnd | None]) -> list[str]:
    """Return a line for each certificate that ends within a month."""
    time_now = datetime.now(UTC)
    return [end.line(time_now) for end in ends if end is not None and end.is_soon(time_now)]


def _end(content: bytes, file: Path) -> datetime:
    try:
        return x509.load_pem_x509_certificate(content).not_valid_after_utc
    except ValueError:
        raise SettingsError(f"{file}: no certificate in PEM") from None
