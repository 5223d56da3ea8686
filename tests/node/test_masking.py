"""A node in masked sums: a sum by hand, and the requests that it must refuse."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.core.messages import MaskingOrder, MaskingReply, PublicKeys
from fedproto_app.node.masking import FILE, Masking, MaskingError
from fedproto_app.settings import AggregationSettings
from fedproto_app.trust.fixed_point import Layout, Sums, Vector, unpacked
from fedproto_app.trust.masks import (
    PRIVATE_BYTES,
    SEED_BYTES,
    added,
    between,
    joined,
    new_private,
    public_of,
    stream,
)
from fedproto_app.trust.signing import Signer

NODES = 4
RULES = AggregationSettings(secure=True, secure_minimum=3)  # of four, three must be left
START = MaskingOrder("run", "token", 1, "a session", "keys")
SHAPE = Layout({"v": (2,)}, {"clients": ()})


def sums_of(value: float) -> Sums:
    return Sums({"v": np.array([value, -value])}, {"clients": np.array(1)})


class Four:
    """Four nodes with a folder each; every call uses a new process's state."""

    def __init__(self, folder: Path, signers: Sequence[Signer | None] = (None,) * NODES) -> None:
        self._folder, self._signers = folder, signers
        self.publics: list[PublicKeys] = []
        self.sealed: list[dict[int, bytes]] = []

    def node(self, number: int) -> Masking:
        return Masking(self._folder / str(number), RULES, self._signers[number])

    def name_keys(self) -> None:
        replies = [self.node(number).answer(START) for number in range(NODES)]
        self.publics = [reply.own for reply in replies if reply.own]

    def share(self) -> None:
        order = replace(START, step="shares", publics=self.publics)
        replies = [self.node(number).answer(order) for number in range(NODES)]
        assert [reply.fault for reply in replies] == [""] * NODES
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

    def unmask(self, number: int, survivors: list[int]) -> MaskingReply:
        return self.node(number).answer(replace(START, step="unmask", survivors=survivors))


@pytest.fixture
def four(tmp_path: Path) -> Four:
    nodes = Four(tmp_path)
    nodes.name_keys()
    nodes.share()
    return nodes


def test_the_server_gets_the_sum_of_three_when_the_fourth_is_lost(four: Four) -> None:
    """1.25 + 2.5 − 10 = −6.25: remove the seeds' masks, and the lost node's masks."""
    values = {0: 1.25, 1: 2.5, 3: -10.0}
    vectors = {number: four.masked(number, value) for number, value in values.items()}
    answers = [four.unmask(number, [0, 1, 3]) for number in values]
    assert {tuple(answer.seeds) for answer in answers} == {(0, 1, 3)}
    assert {tuple(answer.privates) for answer in answers} == {(2,)}
    total = added(vectors.values(), SHAPE.size)
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


def test_a_masked_vector_tells_nothing_and_is_never_the_same(four: Four, tmp_path: Path) -> None:
    vector = four.masked(0, 1.25)
    assert (unpacked(vector, SHAPE, RULES.secure_bits).values["v"] != [1.25, -1.25]).all()
    second = Four(tmp_path / "again")
    second.name_keys()
    second.share()
    assert (second.masked(0, 1.25) != vector).all()


def test_its_secrets_lie_in_a_file_that_nobody_else_reads(four: Four, tmp_path: Path) -> None:
    path = tmp_path / "0" / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    session = replace(START, session="the next")
    before = json.loads(path.read_text())
    four.node(0).answer(session)
    after = json.loads(path.read_text())
    assert after["session"] == "the next"
    assert {before[k] for k in ("seed", "masks")}.isdisjoint({after[k] for k in ("seed", "masks")})
    assert after["heard"] == {}
    assert after["sealed"] == {}
    assert "no keys of this sum" in four.unmask(0, [0, 1, 2]).fault


def test_an_answer_that_was_lost_is_given_again(four: Four) -> None:
    assert four.node(0).answer(START).own == four.publics[0]
    repeated = four.node(0).answer(replace(START, step="shares", publics=four.publics))
    assert repeated.sealed == four.sealed[0]
    four.mask_all(3)
    assert four.unmask(0, [0, 1, 2]) == four.unmask(0, [2, 1, 0])


# --- a server that lies -----------------------------------------------------------------------


def test_nobody_gets_two_vectors_under_the_same_masks(four: Four) -> None:
    """Their difference would reveal the difference of two models."""
    four.masked(0, 1.0)
    order = four.for_node(0)
    with pytest.raises(MaskingError, match="sent its vector of this sum already"):
        four.node(0).begin(order)
    with pytest.raises(MaskingError, match="sent its vector of this sum already"):
        four.node(0).masked(order, sums_of(2.0))


def test_an_order_that_comes_twice_before_the_vector_left_is_done_again(four: Four) -> None:
    """This happens when the ClientApp is killed during training."""
    four.node(0).begin(four.for_node(0))
    assert four.masked(0, 1.0).size == SHAPE.size


def test_shares_are_given_for_one_set_of_survivors(four: Four) -> None:
    """With another set the server would get the seed and the private key of one node."""
    four.mask_all()
    answer = four.unmask(0, [0, 1, 2])
    assert answer.seeds.keys().isdisjoint(answer.privates)
    for survivors in ([0, 1, 3], [0, 1, 2, 3]):
        refused = four.unmask(0, survivors)
        assert "revealed its shares for other survivors" in refused.fault
        assert (refused.seeds, refused.privates) == ({}, {})


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        ([0, 1], "2 of 4 nodes survived, at least 3 must"),
        ([0], "1 of 4 nodes survived"),
        ([1, 2, 3], "it is not one of them"),
        ([0, 1, 7], "not nodes of the sum"),
        ([], "not one of them"),
    ],
)
def test_shares_are_not_given_for_too_few_or_for_strangers(
    four: Four, survivors: list[int], why: str
) -> None:
    four.mask_all()
    refused = four.unmask(0, survivors)
    assert why in refused.fault
    assert (refused.seeds, refused.privates) == ({}, {})


def test_who_has_sent_no_vector_gives_no_shares(four: Four) -> None:
    four.node(0).begin(four.for_node(0))
    assert "sent no vector" in four.unmask(0, [0, 1, 2]).fault


def test_keys_are_its_own_everyones_differ_and_enough_nodes_have_some(tmp_path: Path) -> None:
    four = Four(tmp_path)
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
    four = Four(tmp_path, signers)
    four.name_keys()
    order = replace(START, step="shares", publics=four.publics)  # the fourth is known to nobody
    assert (
        "keys that were not signed by a site in masked-sums.known"
        in four.node(0).answer(order).fault
    )
    mine = PublicKeys(public_of(new_private()), public_of(new_private()), *four.publics[1][2:])
    swapped = replace(order, publics=[four.publics[0], mine, four.publics[2]])
    refused = four.node(0).answer(swapped)
    assert "keys with a signature that is not valid for this sum" in refused.fault
    assert refused.sealed == {}
    four.publics = four.publics[:3]
    order = replace(order, publics=four.publics)
    assert [four.node(number).answer(order).fault for number in range(3)] == ["", "", ""]


def test_the_nodes_of_a_sum_do_not_change(four: Four) -> None:
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
    four: Four, change: Callable[[dict[int, bytes]], dict[int, bytes]], why: str
) -> None:
    order = four.for_node(0)
    with pytest.raises(MaskingError, match=why):
        four.node(0).begin(replace(order, sealed=change(order.sealed)))


def test_no_step_is_left_out(tmp_path: Path) -> None:
    four = Four(tmp_path)
    assert "no keys of this sum" in four.unmask(0, [0, 1, 2]).fault
    four.name_keys()
    with pytest.raises(MaskingError, match="no shares have been exchanged"):
        four.node(0).begin(replace(START, step="train"))
    assert (
        "no step 'train' without an order"
        in four.node(0).answer(replace(START, step="train")).fault
    )


def test_a_value_beyond_the_range_stays_here_with_its_name(four: Four) -> None:
    order = four.for_node(0)
    four.node(0).begin(order)
    with pytest.raises(MaskingError, match=r"its 'v' holds 1e\+30; with aggregation.secure-bits"):
        four.node(0).masked(order, sums_of(1e30))
