"""Do a node's side of masked sums: keep its secrets in the current sum, and refuse bad requests.

A sum has four or five steps (docs/secure-sum.md). The node's process may end between two steps, so
its secrets lie in a file, which holds only the newest sum's secrets and never leaves the node. A
node sends one masked vector per sum, and its shares for one list of survivors. It reveals shares of
private keys only if enough nodes have signed the same list. Nobody can thus get two vectors under
the same masks, or both the seed and the private key of one node.

A SuperNode starts a process for each step, so this module imports nothing slow. The training is in
`orders.train_masked`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from logging import INFO
from pathlib import Path

from flwr.app import Context
from pydantic import BaseModel, ConfigDict, ValidationError

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.core.events import tell
from fedproto_app.core.messages import MaskingOrder, MaskingReply, PublicKeys
from fedproto_app.core.whole_file import make_private, write_whole
from fedproto_app.node.folder import name_of, own_secret, state_dir, state_root
from fedproto_app.node.site import Site, read_site
from fedproto_app.settings import AggregationSettings, settings_from
from fedproto_app.trust.discrete_noise import KeyStream, Noise, TooLittleNoise
from fedproto_app.trust.fixed_point import Layout, NoiseShare, OutOfRange, Sums, Vector, packed
from fedproto_app.trust.masks import (
    Forged,
    between,
    fewest,
    new_private,
    new_seed,
    opened,
    public_of,
    sealed,
    sealing_key,
    split,
    stream,
)
from fedproto_app.trust.signing import Signer, digest_of, public_keys, signed_by

FILE = "masked-sum.json"
SIGNING = "masked-sums"  # the folder of the signing key, in the site's state directory


class MaskingError(FedProtoError):
    """The node refuses a request of the server in a masked sum."""


class _Secrets(BaseModel):
    """The node's secrets of one sum.

    masks, shares: the node's private keys. seed: the seed of its own mask. number: its place in
    `keys`, the public keys of all nodes. sealed: the shares that it has sent to the other nodes.
    own_shares: its shares of its own seed and private key. received: its shares of the seeds and
    private keys of all nodes. masked: whether it has sent its vector. survivors: the list that it
    has signed or revealed shares for.
    """

    model_config = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    session: str
    masks: bytes
    shares: bytes
    seed: bytes
    number: int = -1
    keys: list[PublicKeys] = []
    sealed: dict[int, bytes] = {}
    own_shares: tuple[bytes, bytes] = (b"", b"")
    received: dict[int, tuple[bytes, bytes]] = {}
    masked: bool = False
    survivors: list[int] = []


class Masking:
    """The node's side of the masked sums of one run.

    rules: the run's settings, which the server cannot change between sums. signer: signs the keys
    of the site's nodes. It is None in a simulation. settings: a digest of all of the run's
    settings. Only nodes with the same digest can open each other's shares. Each node can thus rely
    on the noise of the others.
    """

    def __init__(
        self,
        folder: Path,
        rules: AggregationSettings,
        signer: Signer | None = None,
        settings: bytes = b"",
    ) -> None:
        self._file, self._rules, self._signer = folder / FILE, rules, signer
        self._settings = settings

    def answer(self, order: MaskingOrder) -> MaskingReply:
        """Carry out one step other than the training. If it is refused, `fault` says why."""
        steps = {
            "keys": self._offer,
            "shares": self._share,
            "agree": self._agree,
            "unmask": self._reveal,
        }
        try:
            if order.step not in steps:
                raise MaskingError(f"a masked sum has no step {order.step!r} without an order")
            return steps[order.step](order)
        except (MaskingError, Forged) as refusal:
            return MaskingReply(fault=f"masked sum refused: {refusal}")

    def begin(self, order: MaskingOrder) -> None:
        """Open the shares sealed for this node, before it trains. Raises `MaskingError`."""
        secrets = self._secrets_of(order)
        if secrets.masked:
            raise MaskingError("it has already sent its vector of this sum")
        if order.step != "train" or not secrets.keys:
            raise MaskingError("no shares have been exchanged")
        strangers = order.sealed.keys() - (set(range(len(secrets.keys))) - {secrets.number})
        if strangers:
            raise MaskingError(f"shares of node {min(strangers)}, which is not in the sum")
        received = {}
        for sender, content in order.sealed.items():
            key = secrets.keys[sender].shares
            try:
                seal = sealing_key(secrets.shares, key, digest_of(secrets.keys) + self._settings)
                received[sender] = opened(seal, content, sender, secrets.number)
            except Forged as error:
                raise MaskingError(str(error)) from None
        received[secrets.number] = secrets.own_shares
        self._require_enough(len(received), keys=len(secrets.keys), condition="exchanged shares")
        self._write(secrets.model_copy(update={"received": received}))

    def masked(
        self,
        order: MaskingOrder,
        sums: Sums,
        noise: Mapping[str, Noise | None] | None = None,
        seed: bytes = b"",
    ) -> Vector:
        """Return this node's masked sums. A second call for the same sum raises `MaskingError`.

        noise: the noise for each array, None in a run without noise. seed: the seed of this node's
        share of the noise.
        """
        secrets = self._secrets_of(order)
        if secrets.masked or not secrets.received:
            raise MaskingError("it has already sent its vector of this sum")
        share = None
        if noise is not None:
            share = NoiseShare(noise, self._fewest(len(secrets.keys)), KeyStream(seed))
        try:
            plain = packed(sums, self._rules.secure_bits, len(secrets.received), share)
        except (OutOfRange, TooLittleNoise) as error:
            raise MaskingError(str(error)) from None
        size, number = Layout.from_sums(sums).size, secrets.number
        other_keys = {n: secrets.keys[n].masks for n in secrets.received if n != number}
        masks = between(secrets.masks, other_keys, number, size)
        vector = plain + stream(secrets.seed, size) + masks  # modulo 2⁶⁴
        self._write(secrets.model_copy(update={"masked": True}))  # before anything leaves
        return vector

    # --- the steps ------------------------------------------------------------------------------

    def _offer(self, order: MaskingOrder) -> MaskingReply:
        """Draw the keys of a new sum, and delete the keys of the previous sum."""
        secrets = self._read()
        if secrets is None or secrets.session != order.session:
            secrets = _Secrets(
                session=order.session, masks=new_private(), shares=new_private(), seed=new_seed()
            )
            self._write(secrets)
        return MaskingReply(own=self._public(secrets, order))

    def _share(self, order: MaskingOrder) -> MaskingReply:
        """Return shares of this node's seed and private key, sealed for each other node."""
        secrets = self._secrets_of(order)
        if secrets.keys:  # the server repeats its request, because the reply was lost
            if secrets.keys != order.publics:
                raise MaskingError("the sum has other nodes than before")
            return MaskingReply(sealed=secrets.sealed)
        keys = order.publics
        public_keys = [key for pair in keys for key in (pair.masks, pair.shares)]
        if len(set(public_keys)) != len(public_keys):
            raise MaskingError("two nodes have the same public key")
        if (public_pair := self._public(secrets, order)) not in keys:
            raise MaskingError("its own public keys are not among those of the sum")
        if self._signer is not None:
            self._signer.require_known(order)
        number, least = keys.index(public_pair), self._fewest(len(keys))
        self._require_enough(len(keys), keys=len(keys), condition="have keys")
        seeds = split(secrets.seed, least, len(keys))
        privates = split(secrets.masks, least, len(keys))
        content = {
            receiver: sealed(
                sealing_key(secrets.shares, key.shares, digest_of(keys) + self._settings),
                number,
                receiver,
                seeds[receiver],
                privates[receiver],
            )
            for receiver, key in enumerate(keys)
            if receiver != number
        }
        mine = (seeds[number], privates[number])
        changes = {"number": number, "keys": keys, "sealed": content, "own_shares": mine}
        self._write(secrets.model_copy(update=changes))
        return MaskingReply(sealed=content)

    def _agree(self, order: MaskingOrder) -> MaskingReply:
        """Sign the list of survivors. The node then reveals shares for no other list."""
        secrets = self._with_survivors(order)
        self._write(secrets)
        if self._signer is None:
            return MaskingReply()
        signature = self._signer.signed_list(order, secrets.keys, secrets.received, secrets.number)
        return MaskingReply(signature=signature)

    def _reveal(self, order: MaskingOrder) -> MaskingReply:
        """Return shares of the survivors' seeds and of the lost nodes' private keys.

        If no node is lost, no private key is revealed, so no signatures are needed. The masks
        between nodes cancel only in the sum over all nodes.
        """
        secrets = self._with_survivors(order)
        lost = sorted(secrets.received.keys() - set(secrets.survivors))
        if lost:
            self._require_signed(secrets, order)
        self._write(secrets)
        return MaskingReply(
            seeds={n: secrets.received[n][0] for n in secrets.survivors},
            privates={n: secrets.received[n][1] for n in lost},
        )

    def _with_survivors(self, order: MaskingOrder) -> _Secrets:
        """Return the secrets with the order's list of survivors. A sum has only one list."""
        secrets = self._secrets_of(order)
        survivors = sorted(set(order.survivors))
        if not secrets.masked:
            raise MaskingError("it has sent no vector of this sum")
        if secrets.survivors and secrets.survivors != survivors:
            raise MaskingError("it has signed or revealed its shares for other survivors")
        if not set(survivors) <= secrets.received.keys() or secrets.number not in survivors:
            raise MaskingError(
                "the list of survivors names a node outside of the sum, or does not name this node"
            )
        self._require_enough(len(survivors), keys=len(secrets.keys), condition="survived")
        return secrets.model_copy(update={"survivors": survivors})

    def _require_signed(self, secrets: _Secrets, order: MaskingOrder) -> None:
        """Refuse the order unless enough survivors have signed the list of survivors."""
        if not order.signatures.keys() <= set(secrets.survivors):
            raise MaskingError("its list of survivors was signed by a node that is not on the list")
        for number, signature in order.signatures.items():
            if self._signer is not None and not signed_by(
                number, signature, order, secrets.keys, secrets.received
            ):
                raise MaskingError(f"node {number} of the sum did not sign these survivors")
        self._require_enough(
            len(order.signatures), keys=len(secrets.keys), condition="signed the survivors"
        )

    def _public(self, secrets: _Secrets, order: MaskingOrder) -> PublicKeys:
        public_pair = public_of(secrets.masks), public_of(secrets.shares)
        return (
            self._signer.signed(order, *public_pair) if self._signer else PublicKeys(*public_pair)
        )

    def _fewest(self, keys: int) -> int:
        return fewest(self._rules.secure_minimum, self._rules.secure_share, keys)

    def _require_enough(self, count: int, *, keys: int, condition: str) -> None:
        if count < self._fewest(keys):
            raise MaskingError(
                f"{count} of {keys} nodes {condition}, at least {self._fewest(keys)} must"
            )

    # --- the file -------------------------------------------------------------------------------

    def _secrets_of(self, order: MaskingOrder) -> _Secrets:
        secrets = self._read()
        if secrets is None or secrets.session != order.session:
            raise MaskingError("it has no keys of this sum")
        return secrets

    def _read(self) -> _Secrets | None:
        """Return the secrets, or None if the file is missing or damaged. The next sum draws new."""
        try:
            return _Secrets.model_validate_json(self._file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def _write(self, secrets: _Secrets) -> None:
        make_private(self._file.parent)
        content = secrets.model_dump_json().encode()
        write_whole(self._file, content, durable=True, private=True)


def secrets_of(order: MaskingOrder, context: Context, *, simulated: bool) -> Masking:
    """Return the node's side of the run's masked sums.

    Raises `FedProtoError` if the run has no masked sums.
    """
    site = read_site(context.node_config, deployed=not simulated)
    run = settings_from(context.run_config)
    if not run.aggregation.secure:
        raise SettingsError("aggregation.secure = false: this run has no masked sums")
    folder = state_dir(context, run, site, order.run, order.token, simulated=simulated)
    signer = None if simulated else signer_of(site)
    digest = hashlib.sha256(run.model_dump_json(exclude={"output"}).encode()).digest()
    return Masking(folder, run.aggregation, signer, digest)


def signer_of(site: Site) -> Signer:
    """Return the signer for the site's nodes. The first call draws its key."""
    return Signer(own_secret(state_root(site) / SIGNING), public_keys(site.masked_sums.known))


def answer_masking(order: MaskingOrder, context: Context, *, simulated: bool) -> MaskingReply:
    """Carry out one step. If the step is refused or fails, the reply gives the reason."""
    try:
        reply = secrets_of(order, context, simulated=simulated).answer(order)
    except FedProtoError as fault:
        reply = MaskingReply(fault=str(fault))
    except OSError as fault:
        reply = MaskingReply(fault=f"cannot write its secrets: {fault.strerror}")
    if not simulated:
        node = name_of(context, read_site(context.node_config, deployed=True))
        fields = {"survivors": len(order.survivors) or None, "refused": reply.fault or None}
        tell("masking", INFO, round=order.server_round, node=node, step=order.step, **fields)
    return reply
