"""Signed keys of a masked sum: a server cannot replace them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedproto_app.core.messages import MaskingOrder, PublicKeys
from fedproto_app.trust.masks import Forged
from fedproto_app.trust.signing import Signer, public_keys

ORDER = MaskingOrder("run", "token", 3, "a session", "keys")
SECRETS = [bytes([number]) * 32 for number in range(1, 5)]
SIGNERS = [Signer(secret) for secret in SECRETS]
# The first of the test vectors of RFC 8032.
RFC_SECRET = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
RFC_PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")


def offered(number: int, order: MaskingOrder = ORDER) -> PublicKeys:
    return SIGNERS[number].signed(order, b"masks %d" % number, b"shares %d" % number)


def order_with(*keys: PublicKeys) -> MaskingOrder:
    return replace(ORDER, step="shares", publics=list(keys))


TRUSTED_KEYS = frozenset(signer.public for signer in SIGNERS[:3])
NODE = Signer(SECRETS[0], TRUSTED_KEYS)


def test_the_key_is_ed25519_and_its_line_is_read_back() -> None:
    signer = Signer(RFC_SECRET)
    assert signer.public == RFC_PUBLIC
    assert signer.line.startswith("ssh-ed25519 AAAA")
    assert public_keys([signer.line, f"{SIGNERS[0].line} harbour"]) == {
        RFC_PUBLIC,
        SIGNERS[0].public,
    }


def test_signed_keys_of_known_sites_pass() -> None:
    NODE.require_known(order_with(*map(offered, range(3))))
    NODE.require_known(order_with(offered(0), offered(2)))
    Signer(SECRETS[0]).require_known(order_with(PublicKeys(b"a", b"b")))  # it demands nothing


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (offered(3), "not signed by a site in masked-sums.known"),
        (PublicKeys(b"masks", b"shares"), "not signed by a site in masked-sums.known"),
        (offered(1)._replace(masks=b"the server's"), "not valid for this sum"),
        (offered(1)._replace(shares=b"the server's"), "not valid for this sum"),
        (offered(1)._replace(signer=SIGNERS[2].public), "not valid for this sum"),
        (offered(1)._replace(signature=b""), "not valid for this sum"),
        (offered(1, replace(ORDER, session="an older one")), "not valid for this sum"),
        (offered(1, replace(ORDER, server_round=2)), "not valid for this sum"),
        (offered(1, replace(ORDER, run="another")), "not valid for this sum"),
        (SIGNERS[0].signed(ORDER, b"other", b"keys"), "two pairs of keys"),
    ],
)
def test_what_a_server_may_put_in_their_place(forged: PublicKeys, why: str) -> None:
    with pytest.raises(Forged, match=why):
        NODE.require_known(order_with(offered(0), forged, offered(2)))


@pytest.mark.parametrize(
    "line", ["", "harbour", "ssh-ed25519 AAAA", "ecdsa-sha2-nistp256 AAAA", "ssh-ed25519"]
)
def test_a_line_that_is_no_such_key_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="must be a public key as ssh-ed25519"):
        public_keys([line])
