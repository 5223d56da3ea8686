"""Make masks from keys and seeds, and secret shares of keys and seeds (Bonawitz et al., CCS 2017).

Key agreement, Shamir's sharing and sealing are Flower's own (`flwr.common.secure_aggregation`).
Flower's generator of masks is not used. It reduces a seed of 32 bytes to 32 bits for a Mersenne
Twister, so a server could try all seeds in hours. Here a mask is the key stream of AES-256 in
counter mode. Flower's quantisation is not used either, because it clips silently and counts in 32
bits.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes

from fedproto_app.trust.discrete_noise import KeyStream
from fedproto_app.trust.fixed_point import Vector

_CURVE = ec.SECP384R1()  # the curve of Flower's keys
PRIVATE_BYTES, SEED_BYTES = 48, 32


class Forged(ValueError):
    """A key, a share or a signature is not valid."""


def new_private() -> bytes:
    """Draw a private key. It is returned as the bytes of its number."""
    number = ec.generate_private_key(_CURVE).private_numbers().private_value
    return number.to_bytes(PRIVATE_BYTES, "big")


def new_seed() -> bytes:
    """Draw the seed of a node's own mask, or of its noise."""
    return os.urandom(SEED_BYTES)


def public_of(private: bytes) -> bytes:
    """Return the public key of a private key."""
    return public_key_to_bytes(_loaded(private).public_key())


def shared(private: bytes, public: bytes) -> bytes:
    """Return the shared key of two nodes, from one node's private and the other's public key."""
    return generate_shared_key(_loaded(private), loaded_public(public))


def sealing_key(private: bytes, public: bytes, nodes: bytes) -> bytes:
    """Return the key that seals shares between two nodes.

    nodes: the digest of the sum's public keys. If the server gave two nodes different lists of
    nodes, they cannot open each other's shares.
    """
    key = hmac.digest(shared(private, public), nodes, hashlib.sha256)
    return base64.urlsafe_b64encode(key)


def fewest(minimum: int, share: float, nodes: int) -> int:
    """Return how many of these nodes a sum needs: the minimum, and more than this share."""
    return max(minimum, int(share * nodes) + 1)


def split(secret: bytes, least: int, nodes: int) -> list[bytes]:
    """Return a share of the secret for each node. Any `least` shares restore it."""
    return create_shares(secret, least, nodes)


def joined(shares: Sequence[bytes], size: int) -> bytes:
    """Return the secret of `size` bytes from its shares. Raise `Forged` if they do not match.

    The time grows with the square of a share's length, so the lengths are checked first.
    """
    if any(len(share) != _share_bytes(size) for share in shares):
        raise Forged("shares that do not fit together")
    try:
        secret = combine_shares(list(shares))
    except (ValueError, IndexError) as error:
        raise Forged(f"shares that do not fit together: {error}") from None
    if len(secret) != size:
        raise Forged("shares that do not fit together")
    return secret


def sealed(key: bytes, sender: int, receiver: int, of_seed: bytes, of_private: bytes) -> bytes:
    """Encrypt a share of a seed and a share of a private key."""
    return encrypt(key, share_keys_plaintext_concat(sender, receiver, of_seed, of_private))


@cache
def sealed_bytes() -> int:
    """Return the length that every result of `sealed` has."""
    key = base64.urlsafe_b64encode(bytes(32))
    shares = bytes(_share_bytes(SEED_BYTES)), bytes(_share_bytes(PRIVATE_BYTES))
    return len(sealed(key, 0, 1, *shares))


def opened(key: bytes, content: bytes, sender: int, receiver: int) -> tuple[bytes, bytes]:
    """Decrypt the shares that `sender` sealed for `receiver`. Other content raises `Forged`."""
    try:
        source, target, of_seed, of_private = share_keys_plaintext_separate(decrypt(key, content))
    except (InvalidToken, ValueError):
        raise Forged(f"node {sender} of the sum did not seal this for us") from None
    if (source, target) != (sender, receiver):
        raise Forged(f"sealed by node {source} for {target}, not by {sender} for {receiver}")
    return of_seed, of_private


def stream(seed: bytes, size: int) -> Vector:
    """Return `size` numbers, uniform over 0 … 2⁶⁴ − 1, and unpredictable without the seed."""
    return KeyStream(seed).words(size)


def between(private: bytes, publics: Mapping[int, bytes], number: int, size: int) -> Vector:
    """Return the sum of the masks between this node and other nodes, as this node adds them.

    number: this node's number. publics: the other nodes' public keys, by their numbers. Of two
    nodes, the node with the lower number adds the mask between them, and the other subtracts it.
    """
    total = np.zeros(size, dtype=np.uint64)
    for peer, public in sorted(publics.items()):
        mask = stream(base64.urlsafe_b64decode(shared(private, public)), size)
        total = total + mask if number < peer else total - mask
    return total


def _loaded(private: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        return ec.derive_private_key(int.from_bytes(private, "big"), _CURVE)
    except ValueError:
        raise Forged("not a private key") from None


def loaded_public(public: bytes) -> ec.EllipticCurvePublicKey:
    """Return the public key, or raise `Forged` if these bytes are not a valid one."""
    try:
        key = bytes_to_public_key(public)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Forged(f"not a public key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE.name:
        raise Forged("not a public key of the kind that masked sums use")
    return key


def _share_bytes(size: int) -> int:
    """Return the length of a secret's share, which is a number and padded blocks of 16 bytes."""
    return 4 + 16 * (size // 16 + 1)
