"""A node's part in masked sums: its secrets of the present one, and what it refuses.

A sum has four steps (docs/secure-sum.md). Between two of them the node's process may end, so what
it knows lies in a file of its own, which holds the newest sum alone and never leaves the node. A
node sends one masked vector a sum, and its shares for one set of survivors. So nobody gets two
vectors under the same masks, nor both the seed and the private key of one node.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.messages import MaskingOrder, MaskingReply, PublicKeys
from fedproto_app.core.whole_file import write_whole
from fedproto_app.settings import AggregationSettings
from fedproto_app.trust.fixed_point import Layout, OutOfRange, Sums, Vector, packed
from fedproto_app.trust.masks import (
    Forged,
    added,
    between,
    fewest,
    new_private,
    new_seed,
    opened,
    public_of,
    sealed,
    shared,
    split,
    stream,
)
from fedproto_app.trust.signing import Signer

FILE = "masked-sum.json"


class MaskingError(FedProtoError):
    """What the server asks of a masked sum is not granted."""


class _Secrets(BaseModel):
    """What the node knows of one sum.

    masks, shares: its private keys. seed: of its own mask. number: its own among the nodes, whose
    public keys are `keys`. sealed: what it has sent to the others. heard: its shares of others'
    seeds and private keys, and of its own. masked: whether it has sent its vector. survivors: for
    whom it has given shares away.
    """

    model_config = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    session: str
    masks: bytes
    shares: bytes
    seed: bytes
    number: int = -1
    keys: list[PublicKeys] = []
    sealed: dict[int, bytes] = {}
    own: tuple[bytes, bytes] = (b"", b"")
    heard: dict[int, tuple[bytes, bytes]] = {}
    masked: bool = False
    survivors: list[int] = []


class Masking:
    """The node's part in the sums of one run.

    rules: the run's, which the server does not choose anew from sum to sum. signer: the site, whose
    nodes sign their keys; None in a simulation.
    """

    def __init__(
        self, folder: Path, rules: AggregationSettings, signer: Signer | None = None
    ) -> None:
        self._file, self._rules, self._signer = folder / FILE, rules, signer

    def answer(self, order: MaskingOrder) -> MaskingReply:
        """Do one step other than the training; a refusal is the answer's fault."""
        steps = {"keys": self._offer, "shares": self._share, "unmask": self._reveal}
        try:
            if order.step not in steps:
                raise MaskingError(f"a masked sum has no step {order.step!r} without an order")
            return steps[order.step](order)
        except (MaskingError, Forged) as refusal:
            return MaskingReply(fault=f"masked sum refused: {refusal}")

    def begin(self, order: MaskingOrder) -> None:
        """Take in what others sealed for this node, before it trains; raises `MaskingError`."""
        try:
            self._take_in(order)
        except Forged as error:
            raise MaskingError(str(error)) from None

    def _take_in(self, order: MaskingOrder) -> None:
        secrets = self._known(order)
        if secrets.masked:
            raise MaskingError("it has sent its vector of this sum already")
        if order.step != "train" or not secrets.keys:
            raise MaskingError("no shares have been exchanged")
        strangers = order.sealed.keys() - (set(range(len(secrets.keys))) - {secrets.number})
        if strangers:
            raise MaskingError(f"shares of node {min(strangers)}, which is not in the sum")
        heard = {}
        for sender, content in order.sealed.items():
            key = shared(secrets.shares, secrets.keys[sender].shares)
            heard[sender] = opened(key, content, sender, secrets.number)
        heard[secrets.number] = secrets.own
        self._require_enough(len(heard), keys=len(secrets.keys), what="exchanged shares")
        self._write(secrets.model_copy(update={"heard": heard}))

    def masked(self, order: MaskingOrder, sums: Sums) -> Vector:
        """This node's sums under its masks, once; raises `MaskingError`."""
        secrets = self._known(order)
        if secrets.masked or not secrets.heard:
            raise MaskingError("it has sent its vector of this sum already")
        try:
            plain = packed(sums, self._rules.secure_bits, len(secrets.heard))
        except OutOfRange as error:
            raise MaskingError(str(error)) from None
        size, own = Layout.of(sums).size, secrets.number
        others = {n: secrets.keys[n].masks for n in secrets.heard if n != own}
        vector = added(
            [plain, stream(secrets.seed, size), between(secrets.masks, others, own, size)], size
        )
        self._write(secrets.model_copy(update={"masked": True}))  # before anything leaves
        return vector

    # --- the steps ------------------------------------------------------------------------------

    def _offer(self, order: MaskingOrder) -> MaskingReply:
        """Fresh keys; those of the sum before are forgotten."""
        secrets = self._read()
        if secrets is None or secrets.session != order.session:
            secrets = _Secrets(
                session=order.session, masks=new_private(), shares=new_private(), seed=new_seed()
            )
            self._write(secrets)
        return MaskingReply(own=self._public(secrets, order))

    def _share(self, order: MaskingOrder) -> MaskingReply:
        """Shares of its seed and private key, sealed for each of the others."""
        secrets = self._known(order)
        if secrets.keys:  # asked again: the answer was lost
            if secrets.keys != order.publics:
                raise MaskingError("the sum has other nodes than before")
            return MaskingReply(sealed=secrets.sealed)
        keys = order.publics
        every = [key for pair in keys for key in (pair.masks, pair.shares)]
        if len(set(every)) != len(every):
            raise MaskingError("two nodes have the same public key")
        if (own := self._public(secrets, order)) not in keys:
            raise MaskingError("its own public keys are not among those of the sum")
        if self._signer is not None:
            self._signer.require_known(order)
        number, least = keys.index(own), self._fewest(len(keys))
        self._require_enough(len(keys), keys=len(keys), what="have keys")
        seeds = split(secrets.seed, least, len(keys))
        privates = split(secrets.masks, least, len(keys))
        content = {
            other: sealed(
                shared(secrets.shares, key.shares), number, other, seeds[other], privates[other]
            )
            for other, key in enumerate(keys)
            if other != number
        }
        mine = (seeds[number], privates[number])
        told = {"number": number, "keys": keys, "sealed": content, "own": mine}
        self._write(secrets.model_copy(update=told))
        return MaskingReply(sealed=content)

    def _reveal(self, order: MaskingOrder) -> MaskingReply:
        """Shares of the survivors' seeds and of the others' private keys, for one set alone."""
        secrets = self._known(order)
        survivors = sorted(set(order.survivors))
        if not secrets.masked:
            raise MaskingError("it has sent no vector of this sum")
        if secrets.survivors and secrets.survivors != survivors:
            raise MaskingError("it has given its shares for other survivors")
        if not set(survivors) <= secrets.heard.keys() or secrets.number not in survivors:
            raise MaskingError("the survivors are not nodes of the sum, or it is not one of them")
        self._require_enough(len(survivors), keys=len(secrets.keys), what="survived")
        self._write(secrets.model_copy(update={"survivors": survivors}))
        fallen = secrets.heard.keys() - set(survivors)
        return MaskingReply(
            seeds={n: secrets.heard[n][0] for n in survivors},
            privates={n: secrets.heard[n][1] for n in sorted(fallen)},
        )

    def _public(self, secrets: _Secrets, order: MaskingOrder) -> PublicKeys:
        fresh = public_of(secrets.masks), public_of(secrets.shares)
        return self._signer.signed(order, *fresh) if self._signer else PublicKeys(*fresh)

    def _fewest(self, keys: int) -> int:
        return fewest(self._rules.secure_minimum, self._rules.secure_share, keys)

    def _require_enough(self, there: int, *, keys: int, what: str) -> None:
        if there < self._fewest(keys):
            raise MaskingError(
                f"{there} of {keys} nodes {what}, at least {self._fewest(keys)} must"
            )

    # --- the file -------------------------------------------------------------------------------

    def _known(self, order: MaskingOrder) -> _Secrets:
        secrets = self._read()
        if secrets is None or secrets.session != order.session:
            raise MaskingError("it has no keys of this sum")
        return secrets

    def _read(self) -> _Secrets | None:
        """None if there is none, or it is damaged: the next sum has new ones."""
        try:
            return _Secrets.model_validate_json(self._file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def _write(self, secrets: _Secrets) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        before = os.umask(0o077)  # nobody else reads it
        try:
            write_whole(self._file, secrets.model_dump_json().encode(), durable=True)
        finally:
            os.umask(before)
