"""What masks are made of: keys, seeds, shares of both (Bonawitz et al., CCS 2017).

Key agreement, Shamir's sharing and sealing are Flower's own (`flwr.common.secure_aggregation`).
Its generator of masks is not used: it folds a seed of 32 bytes into 32 bits and hands these to a
Mersenne Twister, so a server could try all seeds in hours. Masks here are the key stream of AES-256
in counter mode. Nor is its quantisation, which clips silently and counts in 32 bits.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
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

from fedproto_app.trust.fixed_point import Vector

_CURVE = ec.SECP384R1()  # as Flower's own keys
PRIVATE_BYTES, SEED_BYTES = 48, 32


class Forged(ValueError):
    """A key or a share that is not what it should be."""


def new_private() -> bytes:
    """A private key, as its number."""
    number = ec.generate_private_key(_CURVE).private_numbers().private_value
    return number.to_bytes(PRIVATE_BYTES, "big")


def new_seed() -> bytes:
    """Of a node's own mask."""
    return os.urandom(SEED_BYTES)


def public_of(private: bytes) -> bytes:
    """The public key that belongs to a private one."""
    return public_key_to_bytes(_loaded(private).public_key())


def shared(private: bytes, public: bytes) -> bytes:
    """What two nodes agree on, each by its own private and the other's public key."""
    return generate_shared_key(_loaded(private), _loaded_public(public))


def require_public(public: bytes) -> None:
    """Raises `Forged` if nobody can agree on anything by this key."""
    _loaded_public(public)


def fewest(minimum: int, share: float, nodes: int) -> int:
    """Of so many nodes those that a sum must have in the end: more than this share of them, and at
    least the minimum."""
    return max(minimum, int(share * nodes) + 1)


def split(secret: bytes, least: int, nodes: int) -> list[bytes]:
    """A share of the secret for each node; any `least` of them give it back."""
    return create_shares(secret, least, nodes)


def joined(shares: Sequence[bytes], size: int) -> bytes:
    """The secret of so many bytes whose shares these are; raises `Forged` if they have none.

    Joining takes time with the square of a share's length, so that is looked at first.
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
    """Two shares that only who has the key can read."""
    return encrypt(key, share_keys_plaintext_concat(sender, receiver, of_seed, of_private))


@cache
def sealed_bytes() -> int:
    """How long all that `sealed` makes is."""
    key = base64.urlsafe_b64encode(bytes(32))
    shares = bytes(_share_bytes(SEED_BYTES)), bytes(_share_bytes(PRIVATE_BYTES))
    return len(sealed(key, 0, 1, *shares))


def opened(key: bytes, content: bytes, sender: int, receiver: int) -> tuple[bytes, bytes]:
    """What `sealed` made for these two; raises `Forged` for anything else."""
    try:
        source, target, of_seed, of_private = share_keys_plaintext_separate(decrypt(key, content))
    except (InvalidToken, ValueError):
        raise Forged(f"node {sender} of the sum did not seal this for us") from None
    if (source, target) != (sender, receiver):
        raise Forged(f"sealed by node {source} for {target}, not by {sender} for {receiver}")
    return of_seed, of_private


def stream(seed: bytes, size: int) -> Vector:
    """So many numbers, even over 0 … 2⁶⁴ − 1, that only who has the seed can tell from others."""
    cipher = Cipher(AES(seed), CTR(bytes(16))).encryptor()  # a seed is used for one vector only
    return np.frombuffer(cipher.update(bytes(8 * size)), dtype="<u8").astype(np.uint64)


def between(private: bytes, publics: Mapping[int, bytes], own: int, size: int) -> Vector:
    """The masks between one node and others, as that node adds them.

    own: its number; publics: the others' keys by theirs. Of two nodes the one with the lower
    number adds what they agree on, the other subtracts it.
    """
    total = np.zeros(size, dtype=np.uint64)
    for other, public in sorted(publics.items()):
        mask = stream(base64.urlsafe_b64decode(shared(private, public)), size)
        total = total + mask if own < other else total - mask
    return total


def added(vectors: Iterable[Vector], size: int) -> Vector:
    """Their sum modulo 2⁶⁴."""
    total = np.zeros(size, dtype=np.uint64)
    for vector in vectors:
        total = total + vector
    return total


def _loaded(private: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        return ec.derive_private_key(int.from_bytes(private, "big"), _CURVE)
    except ValueError:
        raise Forged("not a private key") from None


def _loaded_public(public: bytes) -> ec.EllipticCurvePublicKey:
    try:
        key = bytes_to_public_key(public)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Forged(f"not a public key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE.name:
        raise Forged("not a public key: of another kind than a sum's")
    return key


def _share_bytes(size: int) -> int:
    """Of a share of a secret of so many bytes: its number, and blocks of 16 with their padding."""
    return 4 + 16 * (size // 16 + 1)
