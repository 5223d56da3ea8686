"""Fresh keys of masked sums that sites sign, so that a server cannot put its own in their place.

A site signs with an Ed25519 key of its own, and knows the others' public keys by a way that does
not lead through the server. A signature is of one sum: run, round, session and both fresh keys.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from fedproto_app.core.messages import MaskingOrder, PublicKeys
from fedproto_app.trust.masks import Forged


@dataclass(frozen=True)
class Signer:
    """A site that signs its fresh keys.

    secret: 32 bytes, its Ed25519 key. known: the public keys (32 bytes) of the sites with which it
    forms sums, its own among them or not; empty: with all that the server names.
    """

    secret: bytes
    known: frozenset[bytes] = frozenset()

    @property
    def public(self) -> bytes:
        """Its own public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    @property
    def line(self) -> str:
        """Its own public key as a line of OpenSSH."""
        return self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()

    def signed(self, order: MaskingOrder, masks: bytes, shares: bytes) -> PublicKeys:
        """Its fresh keys of the sum that the order is of, signed."""
        signature = self._key.sign(_statement(order, masks, shares))
        return PublicKeys(masks, shares, self.public, signature)

    def require_known(self, order: MaskingOrder) -> None:
        """Raise `Forged` unless each pair of keys is signed for this sum, by known sites that
        differ."""
        if not self.known:
            return
        seen = set()
        for pair in order.publics:
            if pair.signer not in self.known | {self.public}:
                raise Forged("keys that no site signed which this one knows")
            try:
                key = Ed25519PublicKey.from_public_bytes(pair.signer)
                key.verify(pair.signature, _statement(order, pair.masks, pair.shares))
            except InvalidSignature:
                raise Forged("keys whose signature is not of this sum") from None
            if pair.signer in seen:
                raise Forged("two pairs of keys that one site signed")
            seen.add(pair.signer)

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)


def public_keys(lines: Sequence[str]) -> frozenset[bytes]:
    """The keys of lines as `Signer.line` has them; raises ValueError, with the line, for others."""
    return frozenset(map(_public_key, lines))


def _public_key(line: str) -> bytes:
    try:
        key = load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{line[:60]!r}: must be a public key as ssh-ed25519 AAAA…")
    return key.public_bytes_raw()


def _statement(order: MaskingOrder, masks: bytes, shares: bytes) -> bytes:
    told = ["fedproto masked sum", order.run, order.token, order.server_round, order.session]
    return json.dumps([*told, masks.hex(), shares.hex()]).encode()
