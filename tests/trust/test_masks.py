"""Masks: they cancel, a lost node's masks can be restored, and shares stay secret."""

from __future__ import annotations

import base64
import itertools
from typing import Any, cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedproto_app.trust.masks import (
    PRIVATE_BYTES,
    SEED_BYTES,
    Forged,
    between,
    fewest,
    joined,
    loaded_public,
    new_private,
    new_seed,
    opened,
    public_of,
    sealed,
    sealed_bytes,
    shared,
    split,
    stream,
)

# Private keys that never change, so the masks of these tests do not.
PRIVATES = [number.to_bytes(PRIVATE_BYTES, "big") for number in (5, 7, 11)]
PUBLICS = [public_of(private) for private in PRIVATES]


def view(
    number: int, other_numbers: list[int], size: int = 4
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return between(PRIVATES[number], {n: PUBLICS[n] for n in other_numbers}, number, size)


def test_three_nodes_masks_cancel_and_hide_each_value() -> None:
    """x = (1, 2, 3), (10, 20, 30), (100, 200, 300): only the sum is revealed."""
    plain = [np.array([1, 2, 3, 0], dtype=np.uint64) * np.uint64(10**n) for n in range(3)]
    masked = [x + view(n, [m for m in range(3) if m != n]) for n, x in enumerate(plain)]
    assert np.sum(masked, axis=0).tolist() == [111, 222, 333, 0]
    of_two = masked[0] + masked[2]
    # What the lost node would have added is made of its key.
    assert (of_two + view(1, [0, 2])).tolist() == [101, 202, 303, 0]
    for vector, pair in itertools.product(masked, itertools.combinations(masked, 2)):
        assert min(vector) > 10**6
        assert min(np.sum(pair, axis=0)) > 10**6


def test_two_agree_by_elliptic_curves() -> None:
    """5·(7·G) = 7·(5·G), and another key gives something else."""
    assert shared(PRIVATES[0], PUBLICS[1]) == shared(PRIVATES[1], PUBLICS[0])
    assert shared(PRIVATES[0], PUBLICS[1]) != shared(PRIVATES[0], PUBLICS[2])
    with pytest.raises(Forged, match="not a public key"):
        shared(PRIVATES[0], b"no key")


def test_a_stream_is_aes_in_counter_mode() -> None:
    """The counter 0, 1, … encrypted block by block, read as little-endian numbers."""
    seed = bytes(range(32))
    blocks = b"".join(number.to_bytes(16, "big") for number in range(3))
    by_hand = Cipher(AES(seed), ECB()).encryptor().update(blocks)
    assert stream(seed, 5).tolist() == np.frombuffer(by_hand, dtype="<u8").tolist()[:5]
    assert stream(bytes(32), 5).tolist() != stream(seed, 5).tolist()


def test_seeds_differ_in_every_bit_that_counts() -> None:
    """Flower's own generator folds a seed to 32 bits by XOR: these two would give one mask."""
    swapped = bytes(range(4, 8)) + bytes(range(4)) + bytes(24)
    assert stream(bytes(range(8)) + bytes(24), 3).tolist() != stream(swapped, 3).tolist()


def test_any_threshold_of_shares_gives_a_secret_back_and_fewer_do_not() -> None:
    for secret in (new_seed(), new_private()):
        shares = split(secret, 3, 5)
        for chosen in itertools.combinations(shares, 3):
            assert joined(chosen, len(secret)) == secret
        assert joined(shares, len(secret)) == secret
        for too_few in itertools.combinations(shares, 2):
            try:
                assert joined(too_few, len(secret)) != secret
            except Forged:
                continue


def test_shares_that_do_not_fit_are_told() -> None:
    shares, other_shares = split(new_seed(), 2, 3), split(new_private(), 2, 3)
    for wrong in ([shares[0], other_shares[1]], [shares[0], shares[0]], [b"", b""], [b"abc"]):
        with pytest.raises(Forged):
            joined(wrong, SEED_BYTES)
    with pytest.raises(Forged):
        joined(other_shares[:2], SEED_BYTES)
    with pytest.raises(Forged):  # in no time: joining these would take hours
        joined([number.to_bytes(4, "big") + bytes(2**24) for number in (1, 2)], SEED_BYTES)


def test_keys_are_of_the_curve_and_not_0() -> None:
    other_curve = ec.generate_private_key(ec.SECP256R1()).public_key()
    edwards = ed25519.Ed25519PrivateKey.generate().public_key()
    for wrong in (b"", b"x", *map(public_key_to_bytes, (other_curve, cast(Any, edwards)))):
        with pytest.raises(Forged, match="not a public key"):
            loaded_public(wrong)
    loaded_public(PUBLICS[0])
    for number in (0, 2**384 - 1):  # the curve has fewer points
        with pytest.raises(Forged, match="not a private key"):
            public_of(number.to_bytes(PRIVATE_BYTES, "big"))


def test_all_that_is_sealed_has_one_length() -> None:
    """So the server can refuse other lengths without opening any."""
    key = shared(PRIVATES[0], PUBLICS[1])
    [seed, *_], [private, *_] = split(new_seed(), 2, 3), split(new_private(), 2, 3)
    assert {len(sealed(key, *pair, seed, private)) for pair in ((0, 1), (999, 1))} == {
        sealed_bytes()
    }


def test_who_lacks_the_key_opens_nothing() -> None:
    key, other_key = shared(PRIVATES[0], PUBLICS[1]), shared(PRIVATES[0], PUBLICS[2])
    content = sealed(key, 0, 1, b"of the seed", b"of the key")
    assert opened(key, content, 0, 1) == (b"of the seed", b"of the key")
    with pytest.raises(Forged, match="did not seal"):
        opened(other_key, content, 0, 1)
    with pytest.raises(Forged, match="sealed by node 0 for 1, not by 1 for 0"):
        opened(key, content, 1, 0)
    broken = base64.urlsafe_b64encode(base64.urlsafe_b64decode(content)[:-1] + b"x")
    for garbage in (b"", b"garbage", broken):
        with pytest.raises(Forged):
            opened(key, garbage, 0, 1)


@pytest.mark.parametrize(
    ("minimum", "share", "nodes", "least"),
    [
        (3, 0.5, 3, 3),
        (3, 0.5, 4, 3),
        (3, 0.5, 10, 6),
        (3, 0.67, 10, 7),
        (2, 0.5, 2, 2),
        (2, 0.5, 3, 2),
        (2, 0.99, 3, 3),
        (3, 0.5, 2, 3),  # so that a sum of two never comes about
    ],
)
def test_how_many_must_be_left(minimum: int, share: float, nodes: int, least: int) -> None:
    assert fewest(minimum, share, nodes) == least
