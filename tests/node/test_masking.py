"""A node in masked sums: a sum by hand, and the requests that it must refuse."""

from __future__ import annotations

import base64
import json
import math
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.core.messages import MaskingOrder, MaskingReply, PublicKeys
from fedproto_app.node.masking import FILE, Masking, MaskingError
from fedproto_app.settings import AggregationSettings
from fedproto_app.trust.discrete_noise import Noise
from fedproto_app.trust.fixed_point import Layout, Sums, Vector, unpacked
from fedproto_app.trust.masks import (
    PRIVATE_BYTES,
    SEED_BYTES,
    between,
    fewest,
    joined,
    new_private,
    public_of,
    stream,
)
from fedproto_app.trust.signing import Signer, signed_by

NODES = 4
RULES = AggregationSettings(secure=True, secure_minimum=3)  # of four, three must be left
START = MaskingOrder("run", "token", 1, "a session", "keys")
SHAPE = Layout({"v": (2,)}, {"clients": ()})


def sums_of(value: float) -> Sums:
    return Sums({"v": np.array([value, -value])}, {"clients": np.array(1)})


class Nodes:
    """Nodes with a folder each. Every call uses a new process's state."""

    def __init__(
        self,
        folder: Path,
        signers: Sequence[Signer | None] = (None,) * NODES,
        rules: AggregationSettings = RULES,
    ) -> None:
        self.folder, self.signers, self._rules = folder, signers, rules
        self.publics: list[PublicKeys] = []
        self.sealed: list[dict[int, bytes]] = []

    def node(self, number: int, settings: bytes = b"") -> Masking:
        return Masking(self.folder / str(number), self._rules, self.signers[number], settings)

    @property
    def _numbers(self) -> range:
        return range(len(self.signers))

    def name_keys(self) -> None:
        replies = [self.node(number).answer(START) for number in self._numbers]
        self.publics = [reply.own for reply in replies if reply.own]

    def share(self) -> None:
        order = replace(START, step="shares", publics=self.publics)
        replies = [self.node(number).answer(order) for number in self._numbers]
        assert not any(reply.fault for reply in replies)
        self.sealed = [reply.sealed for reply in replies]

    def for_node(self, number: int) -> MaskingOrder:
        sealed_shares = {n: sealed[number] for n, sealed in enumerate(self.sealed) if n != number}
        return replace(START, step="train", sealed=sealed_shares)

    def masked(self, number: int, value: float) -> Vector:
        order = self.for_node(number)
        self.node(number).begin(order)
        return self.node(number).masked(order, sums_of(value))

    def mask_all(self, nodes: int = NODES) -> None:
        for number in range(nodes):
            self.masked(number, 1.0)

    def agree(self, number: int, survivors: Sequence[int]) -> MaskingReply:
        return self.node(number).answer(replace(START, step="agree", survivors=[*survivors]))

    def signatures(self, survivors: Sequence[int]) -> dict[int, bytes]:
        """The survivors' signatures, empty ones of those who refuse."""
        return {number: self.agree(number, survivors).signature for number in survivors}

    def unmask(
        self, number: int, survivors: Sequence[int], signatures: Mapping[int, bytes] | None = None
    ) -> MaskingReply:
        order = replace(START, step="unmask", survivors=[*survivors])
        return self.node(number).answer(replace(order, signatures=dict(signatures or {})))


@pytest.fixture
def four(tmp_path: Path) -> Nodes:
    nodes = Nodes(tmp_path)
    nodes.name_keys()
    nodes.share()
    return nodes


def test_the_server_gets_the_sum_of_three_when_the_fourth_is_lost(four: Nodes) -> None:
    """1.25 + 2.5 − 10 = −6.25: remove the seeds' masks, and the lost node's masks."""
    values = {0: 1.25, 1: 2.5, 3: -10.0}
    vectors = {number: four.masked(number, value) for number, value in values.items()}
    signatures = four.signatures([0, 1, 3])
    answers = [four.unmask(number, [0, 1, 3], signatures) for number in values]
    assert {tuple(answer.seeds) for answer in answers} == {(0, 1, 3)}
    assert {tuple(answer.privates) for answer in answers} == {(2,)}
    total = sum(vectors.values(), np.zeros(SHAPE.size, dtype=np.uint64))
    for number in values:
        seed = joined([answer.seeds[number] for answer in answers], SEED_BYTES)
        total = total - stream(seed, SHAPE.size)
    private = joined([answer.privates[2] for answer in answers], PRIVATE_BYTES)
    assert public_of(private) == four.publics[2].masks
    keys = {number: four.publics[number].masks for number in values}
    total = total + between(private, keys, 2, SHAPE.size)
    result = unpacked(total, SHAPE, RULES.secure_bits)
    assert result.values["v"].tolist() == [-6.25, 6.25]
    assert result.counts["clients"] == 3


def test_nodes_with_other_settings_cannot_open_its_shares(four: Nodes) -> None:
    """A server that tells a node less noise than the others cannot form a sum with it."""
    with pytest.raises(MaskingError, match="did not seal this for us"):
        four.node(0, settings=b"less noise").begin(four.for_node(0))


def test_each_node_adds_its_share_of_the_noise(four: Nodes) -> None:
    """Three of four nodes must remain, so each share has a third of the variance."""
    sums = Sums({"v": np.zeros(20_000)}, {"clients": np.array(1)})
    seed, noise = bytes(32), {"v": Noise(2.0, 3.0, 20_000)}
    four.node(0).begin(four.for_node(0))
    masked = four.node(0).masked(four.for_node(0), sums, noise, seed)
    secrets = json.loads((four.folder / "0" / FILE).read_text())
    own_seed, private = (base64.urlsafe_b64decode(secrets[name]) for name in ("seed", "masks"))
    other_publics = {n: four.publics[n].masks for n in range(1, NODES)}
    plain = masked - stream(own_seed, masked.size) - between(private, other_publics, 0, masked.size)
    added_noise = unpacked(plain, Layout.from_sums(sums), RULES.secure_bits).values["v"]
    assert added_noise.std() == pytest.approx(6 / math.sqrt(3), rel=0.03)


def test_too_little_noise_is_refused(four: Nodes) -> None:
    four.node(0).begin(four.for_node(0))
    noise = {"v": Noise(1e-6, 1.0, 2)}
    with pytest.raises(MaskingError, match=r"secure-bits = 24: a node's share of the noise"):
        four.node(0).masked(four.for_node(0), sums_of(1.0), noise, bytes(32))


def test_a_masked_vector_tells_nothing_and_is_never_the_same(four: Nodes, tmp_path: Path) -> None:
    vector = four.masked(0, 1.25)
    assert (unpacked(vector, SHAPE, RULES.secure_bits).values["v"] != [1.25, -1.25]).all()
    second = Nodes(tmp_path / "again")
    second.name_keys()
    second.share()
    assert (second.masked(0, 1.25) != vector).all()


def test_its_secrets_lie_in_a_file_that_nobody_else_reads(four: Nodes, tmp_path: Path) -> None:
    path = tmp_path / "0" / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    session = replace(START, session="the next")
    before = json.loads(path.read_text())
    four.node(0).answer(session)
    after = json.loads(path.read_text())
    assert after["session"] == "the next"
    assert {before[k] for k in ("seed", "masks")}.isdisjoint({after[k] for k in ("seed", "masks")})
    assert after["received"] == {}
    assert after["sealed"] == {}
    assert "no keys of this sum" in four.unmask(0, [0, 1, 2]).fault


def test_an_answer_that_was_lost_is_given_again(four: Nodes) -> None:
    assert four.node(0).answer(START).own == four.publics[0]
    repeated = four.node(0).answer(replace(START, step="shares", publics=four.publics))
    assert repeated.sealed == four.sealed[0]
    four.mask_all(3)
    signatures = four.signatures([0, 1, 2])
    assert signatures == four.signatures([2, 1, 0])
    answers = [four.unmask(0, order, signatures) for order in ([0, 1, 2], [2, 1, 0])]
    assert answers[0] == answers[1]
    assert answers[0].privates


# --- a server that lies -----------------------------------------------------------------------


def test_nobody_gets_two_vectors_under_the_same_masks(four: Nodes) -> None:
    """Their difference would reveal the difference of two models."""
    four.masked(0, 1.0)
    order = four.for_node(0)
    with pytest.raises(MaskingError, match="already sent its vector of this sum"):
        four.node(0).begin(order)
    with pytest.raises(MaskingError, match="already sent its vector of this sum"):
        four.node(0).masked(order, sums_of(2.0))


def test_an_order_that_comes_twice_before_the_vector_left_is_done_again(four: Nodes) -> None:
    """This happens when the ClientApp is killed during training."""
    four.node(0).begin(four.for_node(0))
    assert four.masked(0, 1.0).size == SHAPE.size


def test_shares_are_given_for_one_set_of_survivors(four: Nodes) -> None:
    """With another set the server would get the seed and the private key of one node."""
    four.mask_all()
    answer = four.unmask(0, [0, 1, 2], four.signatures([0, 1, 2]))
    assert answer.seeds.keys().isdisjoint(answer.privates)
    assert four.unmask(3, range(4)).seeds
    for number, survivors in ((0, [0, 1, 3]), (0, range(4)), (3, [0, 1, 3])):
        refused = four.unmask(number, survivors)
        assert "signed or revealed its shares for other survivors" in refused.fault
        assert (refused.seeds, refused.privates) == ({}, {})
        assert "for other survivors" in four.agree(number, survivors).fault


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        ([0, 1], "2 of 4 nodes survived, at least 3 must"),
        ([0], "1 of 4 nodes survived"),
        ([1, 2, 3], "does not name this node"),
        ([0, 1, 7], "names a node outside of the sum"),
        ([], "does not name this node"),
    ],
)
def test_shares_are_not_given_for_too_few_or_for_strangers(
    four: Nodes, survivors: list[int], why: str
) -> None:
    four.mask_all()
    refused = four.unmask(0, survivors)
    assert why in refused.fault
    assert (refused.seeds, refused.privates) == ({}, {})
    assert why in four.agree(0, survivors).fault


def test_who_has_sent_no_vector_gives_no_shares(four: Nodes) -> None:
    four.node(0).begin(four.for_node(0))
    assert "sent no vector" in four.unmask(0, [0, 1, 2]).fault


def test_keys_are_its_own_everyones_differ_and_enough_nodes_have_some(tmp_path: Path) -> None:
    four = Nodes(tmp_path)
    four.name_keys()
    stranger = PublicKeys(public_of(new_private()), public_of(new_private()))
    for publics, why in (
        ([stranger, *four.publics[1:]], "its own public keys are not among"),
        ([*four.publics, four.publics[1]], "two nodes have the same public key"),
        ([four.publics[0], stranger, stranger._replace(shares=b"x")], "the same public key"),
        ([*four.publics[:3], PublicKeys(b"a", b"b")], "not a public key"),
        (four.publics[:2], "2 of 2 nodes have keys, at least 3 must"),
    ):
        refused = four.node(0).answer(replace(START, step="shares", publics=publics))
        assert why in refused.fault
        assert refused.sealed == {}


def test_sites_that_know_each_other_sum_with_nobody_else(tmp_path: Path) -> None:
    secrets = [bytes([number]) * 32 for number in range(NODES)]
    trusted_keys = frozenset(Signer(secret).public for secret in secrets[:3])
    signers = [Signer(secret, trusted_keys) for secret in secrets]
    four = Nodes(tmp_path, signers)
    four.name_keys()
    order = replace(START, step="shares", publics=four.publics)  # the fourth is known to nobody
    assert "keys were not signed by a site in masked-sums.known" in four.node(0).answer(order).fault
    mine = PublicKeys(public_of(new_private()), public_of(new_private()), *four.publics[1][2:])
    swapped = replace(order, publics=[four.publics[0], mine, four.publics[2]])
    refused = four.node(0).answer(swapped)
    assert "the signature of a node's keys is not valid for this sum" in refused.fault
    assert refused.sealed == {}
    four.publics = four.publics[:3]
    order = replace(order, publics=four.publics)
    assert [four.node(number).answer(order).fault for number in range(3)] == ["", "", ""]


def test_the_nodes_of_a_sum_do_not_change(four: Nodes) -> None:
    order = replace(START, step="shares", publics=list(reversed(four.publics)))
    assert "other nodes than before" in four.node(0).answer(order).fault


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda mine: {**mine, 1: mine[2]}, "did not seal this for us"),
        (lambda mine: {**mine, 1: b"made up"}, "did not seal this for us"),
        (lambda mine: {**mine, 9: mine[1]}, "shares of node 9, which is not in the sum"),
        (lambda mine: {**mine, 0: mine[1]}, "shares of node 0, which is not in the sum"),
        (lambda mine: {1: mine[1]}, "2 of 4 nodes exchanged shares, at least 3 must"),
    ],
)
def test_shares_that_are_too_few_or_were_changed_on_their_way_are_refused(
    four: Nodes, change: Callable[[dict[int, bytes]], dict[int, bytes]], why: str
) -> None:
    order = four.for_node(0)
    with pytest.raises(MaskingError, match=why):
        four.node(0).begin(replace(order, sealed=change(order.sealed)))


def test_no_step_is_left_out(tmp_path: Path) -> None:
    four = Nodes(tmp_path)
    assert "no keys of this sum" in four.unmask(0, [0, 1, 2]).fault
    four.name_keys()
    with pytest.raises(MaskingError, match="no shares have been exchanged"):
        four.node(0).begin(replace(START, step="train"))
    assert (
        "no step 'train' without an order"
        in four.node(0).answer(replace(START, step="train")).fault
    )


def test_a_value_beyond_the_range_stays_here_with_its_name(four: Nodes) -> None:
    order = four.for_node(0)
    four.node(0).begin(order)
    with pytest.raises(MaskingError, match=r"its 'v' holds 1e\+30; with aggregation.secure-bits"):
        four.node(0).masked(order, sums_of(1e30))


# --- who must collude with the server to read a site's vector ------------------------------------


def signing_nodes(folder: Path, total: int, share: float) -> Nodes:
    """Return nodes that know each other's keys and have sent their vectors. Node 0 sent 1.25."""
    secrets = [bytes([number]) * 32 for number in range(total)]
    trusted_keys = frozenset(Signer(secret).public for secret in secrets)
    signers = [Signer(secret, trusted_keys) for secret in secrets]
    nodes = Nodes(folder, signers, RULES.model_copy(update={"secure_share": share}))
    nodes.name_keys()
    nodes.share()
    return nodes


def shares_at(nodes: Nodes, number: int) -> tuple[bytes, bytes]:
    """Return the shares of the victim's seed and private key in the file of a hostile node."""
    seed, private = json.loads((nodes.folder / str(number) / FILE).read_text())["received"]["0"]
    return base64.urlsafe_b64decode(seed), base64.urlsafe_b64decode(private)


def stolen(nodes: Nodes, colluding: int, share: float) -> list[float] | None:
    """Return the victim's vector as a server reads it that tells nodes different lists, None if it
    cannot.

    The last nodes collude: they hand over their shares and sign every list. As few honest nodes as
    possible get a list without the victim, the others get all nodes.
    """
    total = len(nodes.signers)
    vector = nodes.masked(0, 1.25)
    for number in range(1, total):
        nodes.masked(number, 1.0)
    least, honest = fewest(3, share, total), total - colluding
    lie = range(1, total)
    deceived = range(1, min(1 + least - colluding, honest))
    signatures = {number: nodes.agree(number, lie).signature for number in deceived}
    order = replace(START, step="agree", survivors=[*lie])
    for number, signer in enumerate(nodes.signers[honest:], honest):
        assert signer is not None
        signatures[number] = signer.signed_list(order, nodes.publics, range(total), number)
    of_hostile = [shares_at(nodes, number) for number in range(honest, total)]
    seeds, privates = ([shares[kind] for shares in of_hostile] for kind in (0, 1))
    for number in range(honest):
        if number in deceived:
            reply = nodes.unmask(number, lie, signatures)
        else:
            reply = nodes.unmask(number, range(total))
        seeds += [share for owner, share in reply.seeds.items() if owner == 0]
        privates += [share for owner, share in reply.privates.items() if owner == 0]
    if min(len(seeds), len(privates)) < least:
        return None
    private = joined(privates[:least], PRIVATE_BYTES)
    keys = {number: nodes.publics[number].masks for number in range(1, total)}
    vector = vector - stream(joined(seeds[:least], SEED_BYTES), SHAPE.size)
    vector = vector - between(private, keys, 0, SHAPE.size)
    read: list[float] = unpacked(vector, SHAPE, RULES.secure_bits).values["v"].tolist()
    return read


@pytest.mark.parametrize(
    "total", [5, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (7, 9))]
)
def test_with_a_share_of_a_half_one_accomplice_reads_a_vector(tmp_path: Path, total: int) -> None:
    assert stolen(signing_nodes(tmp_path, total, 0.5), 1, 0.5) == [1.25, -1.25]


@pytest.mark.parametrize(
    ("total", "accomplices"),
    [
        *((3, 3), (4, 2), (5, 3), (6, 4)),
        *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in ((7, 3), (8, 4), (9, 5))),
    ],
)
def test_who_must_collude_by_default(tmp_path: Path, total: int, accomplices: int) -> None:
    """By lists that differ: 2t − N of N nodes, if a sum needs t. docs/secure-sum.md has the table.

    Of three nodes t − 1 = 2 suffice otherwise, in a sum with the victim alone.
    """
    share = RULES.secure_share
    for colluding in {1, accomplices - 1}:
        nodes = signing_nodes(tmp_path / str(colluding), total, share)
        assert stolen(nodes, colluding, share) is None
    if accomplices < total:
        nodes = signing_nodes(tmp_path / "enough", total, share)
        assert stolen(nodes, accomplices, share) == [1.25, -1.25]


def test_lists_that_differ_are_signed_by_too_few(tmp_path: Path) -> None:
    """Each node gets a list without another node. The server collects all their signatures."""
    nodes = signing_nodes(tmp_path, 5, 0.67)
    nodes.mask_all(5)
    lists = [sorted(set(range(5)) - {(number + 1) % 5}) for number in range(5)]
    signatures = {number: nodes.agree(number, lists[number]).signature for number in range(5)}
    assert all(signatures.values())
    for number, survivors in enumerate(lists):
        pooled = {signer: signatures[signer] for signer in survivors}
        refused = nodes.unmask(number, survivors, pooled)
        assert "did not sign these survivors" in refused.fault
        mine = {number: signatures[number]}
        refused = nodes.unmask(number, survivors, mine)
        assert "1 of 5 nodes signed the survivors, at least 4 must" in refused.fault
        assert (refused.seeds, refused.privates) == ({}, {})


def test_a_signature_is_of_a_survivor_for_this_sum_and_these_nodes(tmp_path: Path) -> None:
    nodes = signing_nodes(tmp_path, 4, 0.67)
    nodes.mask_all(4)
    signatures = nodes.signatures([0, 1, 2])
    assert "is not on the list" in nodes.unmask(0, [0, 1, 2], {**signatures, 3: b""}).fault
    for wrong in (signatures[1][::-1], b"", signatures[2]):
        refused = nodes.unmask(0, [0, 1, 2], {**signatures, 1: wrong})
        assert "node 1 of the sum did not sign these survivors" in refused.fault
    order = replace(START, step="agree", survivors=[0, 1, 2])
    assert signed_by(1, signatures[1], order, nodes.publics, range(4))
    for changed in (replace(order, session="other"), replace(order, server_round=2)):
        assert not signed_by(1, signatures[1], changed, nodes.publics, range(4))
    assert not signed_by(1, signatures[1], order, nodes.publics, range(3))
    assert not signed_by(1, signatures[1], order, nodes.publics[::-1], range(4))
    assert nodes.unmask(0, [0, 1, 2], signatures).privates.keys() == {3}


def test_nodes_with_other_lists_of_keys_cannot_open_shares(tmp_path: Path) -> None:
    """A server that tells some nodes of fewer nodes gets no shares across the two lists."""
    nodes = Nodes(tmp_path, (None,) * 5)
    nodes.name_keys()
    for number in range(5):
        publics = nodes.publics[: 4 if number == 3 else 5]
        reply = nodes.node(number).answer(replace(START, step="shares", publics=publics))
        nodes.sealed.append(reply.sealed)
    with pytest.raises(MaskingError, match="node 3 of the sum did not seal this for us"):
        nodes.node(0).begin(nodes.for_node(0))
