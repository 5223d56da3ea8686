"""Sign and check messages in masked sums, as a protection against a server that lies to nodes.

A site signs with its own Ed25519 key, and has received the other sites' public keys by a way that
avoids the server. It signs the public keys of its node, so that the server cannot replace them. It
also signs the list of survivors, so that the server cannot give nodes different lists. A signature
is valid for only one sum, because it covers run, round and session.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedproto_app.core.messages import MaskingOrder, PublicKeys
from fedproto_app.trust.masks import Forged


@dataclass(frozen=True)
class Signer:
    """A site that signs the keys of its sums.

    secret: the site's Ed25519 key, 32 bytes. trusted_keys: the public keys, 32 bytes each, of the
    sites that it forms sums with. Its own key may be among them. If there are none, it forms sums
    with all sites that the server names.
    """

    secret: bytes
    trusted_keys: frozenset[bytes] = frozenset()

    @property
    def public(self) -> bytes:
        """The site's public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    @property
    def line(self) -> str:
        """The site's public key as a line in the OpenSSH format."""
        return self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()

    def signed(self, order: MaskingOrder, masks: bytes, shares: bytes) -> PublicKeys:
        """Sign the site's public keys for the order's sum."""
        signature = self._key.sign(_key_statement(order, masks, shares))
        return PublicKeys(masks, shares, self.public, signature)

    def require_known(self, order: MaskingOrder) -> None:
        """Raise `Forged` unless each pair of keys is signed for this sum, by a trusted site, and no
        site signed two pairs."""
        if not self.trusted_keys:
            return
        signers = set()
        for pair in order.publics:
            if pair.signer not in self.trusted_keys | {self.public}:
                raise Forged("a node's keys were not signed by a site in masked-sums.known")
            try:
                key = Ed25519PublicKey.from_public_bytes(pair.signer)
                key.verify(pair.signature, _key_statement(order, pair.masks, pair.shares))
            except InvalidSignature:
                raise Forged("the signature of a node's keys is not valid for this sum") from None
            if pair.signer in signers:
                raise Forged("the same site signed two pairs of keys")
            signers.add(pair.signer)

    def signed_list(
        self, order: MaskingOrder, keys: Sequence[PublicKeys], members: Collection[int], number: int
    ) -> bytes:
        """Sign the order's list of survivors. See `signed_by` for the other arguments."""
        return self._key.sign(_list_statement(order, keys, members, number))

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)


def public_keys(lines: Sequence[str]) -> frozenset[bytes]:
    """Return the keys in lines that have the format of `Signer.line`. Others raise ValueError."""
    return frozenset(map(_public_key, lines))


def _public_key(line: str) -> bytes:
    try:
        key = load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{line[:60]!r}: must be a public key as ssh-ed25519 AAAA…")
    return key.public_bytes_raw()


def signed_by(
    number: int,
    signature: bytes,
    order: MaskingOrder,
    keys: Sequence[PublicKeys],
    members: Collection[int],
) -> bool:
    """Return whether the site of node `number` signed the order's list of survivors.

    keys: the keys of all nodes of the sum. members: the numbers of the nodes that exchanged shares.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(keys[number].signer)
        key.verify(signature, _list_statement(order, keys, members, number))
    except (ValueError, InvalidSignature):
        return False
    return True


def digest_of(keys: Sequence[PublicKeys]) -> bytes:
    """Return the SHA-256 of a sum's public keys in their order."""
    return hashlib.sha256(json.dumps([[p.hex() for p in pair] for pair in keys]).encode()).digest()


def _list_statement(
    order: MaskingOrder, keys: Sequence[PublicKeys], members: Collection[int], number: int
) -> bytes:
    lists = digest_of(keys).hex(), sorted(members), sorted(set(order.survivors))
    return _statement("fedproto survivors", order, number, *lists)


def _key_statement(order: MaskingOrder, masks: bytes, shares: bytes) -> bytes:
    return _statement("fedproto masked sum", order, masks.hex(), shares.hex())


def _statement(kind: str, order: MaskingOrder, *facts: object) -> bytes:
    """Return the bytes to sign, which differ for every sum."""
    of_sum = kind, order.run, order.token, order.server_round, order.session
    return json.dumps([*of_sum, *facts]).encode()
