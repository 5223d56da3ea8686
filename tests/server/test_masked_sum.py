"""Masked sums in whole runs: nodes lost in each step, forged answers, what the server sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from flwr.app import Array, ArrayRecord, Message, MessageType
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from safetensors.numpy import load_file

from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import MaskingOrder, MaskingReply, Order, PublicKeys
from fedproto_app.core.methods import METHODS
from fedproto_app.core.wire import (
    MASKING,
    QUESTION,
    VECTOR,
    masking_query,
    read_masking_order,
    read_masking_reply,
    write_masking_reply,
    write_order,
)
from fedproto_app.engine.flower_parts import number
from fedproto_app.experiments.invariants import SmallRuns, apart, everything, results
from fedproto_app.node import masking
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_rounds
from fedproto_app.server_app import conduct
from fedproto_app.trust.masks import PRIVATE_BYTES, SEED_BYTES
from tests.local_grid import BAD_NODE, LocalGrid, run_locally, small_settings, synthetic_nodes
from tests.reported import fields_of, with_fields

MASKED = {"aggregation.secure": True}
FEDAVG = {"method": "fedavg", "rounds": 2, "local-epochs": 1}
Tamper = Callable[[Message, Message], Message | None]  # of the bad node: order and reply

# Two that are not like FedAvg, then all others.
FIRST = [("forecasting", "fedproto"), ("forecasting", "analytic")]
SUMMED = [  # the methods that go with masked sums
    *("gldp", "analytic", "fedavg", "fedavg-ft", "fedprox", "fedrep", "per-fedavg", "pfedme"),
    *("fedproto", "apfl", "ditto", "fcgcn", "fedala", "knn-per"),
]
PAIRS = [
    (task, method)
    for method in SUMMED
    for task in METHODS[method].tasks
    or ("forecasting", "classification", "sequence-classification", "sequence-regression")
]
MORE = [pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in PAIRS if pair not in FIRST]


class TamperingGrid(LocalGrid):
    """A grid with a bad node, whose replies are changed depending on the order."""

    def __init__(self, settings: Any, configs: list[dict[str, Any]], change: Tamper) -> None:
        super().__init__(settings, configs)
        self._change = change

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if reply is None or message.metadata.dst_node_id != BAD_NODE:
            return reply
        return self._change(message, reply)


def run(tmp_path: Path, change: Tamper, name: str = "masked", **changes: Any) -> RunFolder:
    """Run FedAvg for two rounds on four nodes; the replies of one node are changed."""
    table = {**FEDAVG, **MASKED, "output.name": name, **changes}
    settings = small_settings(tmp_path, **table)
    grid = TamperingGrid(settings, synthetic_nodes(4, tmp_path / name), change)
    with RunFolder(settings) as folder:
        conduct(grid, settings, folder)
    return folder


def step_of(message: Message) -> tuple[str, int]:
    """The step of a masked sum that a message to a node is, and its round."""
    order = read_masking_order(message)
    return (order.step, order.server_round) if order else ("", 0)


def silent_in(step: str) -> Tamper:
    """The bad node is lost in this step of round 2, for good."""
    lost = False

    def change(message: Message, reply: Message) -> Message | None:
        nonlocal lost
        lost = lost or step_of(message) == (step, 2)
        return None if lost else reply

    return change


def model(folder: RunFolder) -> dict[str, Any]:
    return load_file(folder.path / "model" / "global.safetensors")


def largest_difference(actual: dict[str, Any], expected: dict[str, Any]) -> float:
    return max(float(np.abs(actual[name] - expected[name]).max()) for name in expected)


def plain_without_the_bad_node(tmp_path: Path, *, trains: bool) -> RunFolder:
    """The same run with plain means; the node is lost before or after its training."""
    lost = False

    def change(message: Message, reply: Message) -> Message | None:
        nonlocal lost
        metadata = message.metadata
        late = metadata.group_id == "2"
        lost = lost or (late and not (trains and metadata.message_type == MessageType.TRAIN))
        return None if lost else reply

    return run(tmp_path, change, "plain", **{"aggregation.secure": False})


@pytest.mark.parametrize(("task", "method"), [*FIRST, *MORE])
def test_a_masked_run_ends_as_the_plain_one(tmp_path: Path, task: str, method: str) -> None:
    runs = SmallRuns(task, method, tmp_path)
    plain, masked = runs.run("plain", 4), runs.run("masked", 4, **MASKED)
    deviation = apart(results(masked), results(plain), 1e-5)
    assert deviation.held, deviation
    for line in read_rounds(masked):
        assert line["refused"] == []
        assert line["answered"] == line["asked"]


def test_masks_leave_no_trace_and_a_killed_server_goes_on_to_the_same_bits(
    tmp_path: Path,
) -> None:
    """Every sum has fresh keys; whole numbers come out the same."""
    runs = SmallRuns("forecasting", "fedrep", tmp_path, **MASKED, rounds=3)
    uninterrupted = everything(runs.run("once", 3))
    assert apart(everything(runs.run("again", 3)), uninterrupted, 0.0).held
    killed = everything(runs.run("killed", 3, deaths=(5,)))
    deviation = apart(killed, uninterrupted, 0.0)
    assert deviation.held, deviation


@pytest.mark.parametrize("step", ["keys", "shares", "train", "unmask"])
def test_a_node_is_lost_in_each_step(tmp_path: Path, step: str) -> None:
    """Round 2 completes with three; who has sent its vector is in the sum all the same."""
    folder = run(tmp_path, silent_in(step))
    first, second = read_rounds(folder.path)
    assert (first["clients"], first["refused"]) == (8, [])
    reasons = {refusal["node"]: refusal["reason"] for refusal in second["refused"]}
    assert set(reasons) == {"1"}
    silence = "no reply within 0.2 s"
    assert silence in reasons["1"]
    assert second["clients"] == (8 if step == "unmask" else 6)
    plain = plain_without_the_bad_node(tmp_path, trains=step == "unmask")
    assert largest_difference(model(folder), model(plain)) < 1e-6


def test_too_few_nodes_give_no_sum_and_the_run_stops_with_the_reason(tmp_path: Path) -> None:
    three = {"aggregation.secure-share": 0.8}  # all four of four
    why = r"masked sum: 3 of 4 nodes sent masked vectors, fewer than 4 \(aggregation.secure-min"
    with pytest.raises(FederationError, match=why):
        run(tmp_path, silent_in("train"), **three)


def test_too_few_nodes_leave_the_model_as_it_was_if_the_run_may_go_on(tmp_path: Path) -> None:
    go_on = {"aggregation.secure-share": 0.8, "nodes.maximum-failed-share": 1.0}
    folder = run(tmp_path, silent_in("train"), **go_on)
    one_round = run(tmp_path, lambda _, reply: reply, "one", rounds=1)
    assert largest_difference(model(folder), model(one_round)) == 0
    second = read_rounds(folder.path)[1]
    assert second["clients"] == 0
    assert any("the round has no sum" in refusal["reason"] for refusal in second["refused"])


def test_fewer_nodes_than_a_sum_must_have_are_told_at_once(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, **FEDAVG, **MASKED)
    with pytest.raises(FederationError, match="2 of 2 nodes named keys, fewer than 3"):
        run_locally(settings, synthetic_nodes(2, tmp_path / "state"))


# --- what a hostile node can do ---------------------------------------------------------------


def without_vector(message: Message, reply: Message) -> Message:
    reply.content.array_records.pop(VECTOR, None)
    return reply


def short_vector(message: Message, reply: Message) -> Message:
    if VECTOR in reply.content.array_records:
        short_vector = np.zeros(3, dtype=np.uint64)
        reply.content[VECTOR] = ArrayRecord({VECTOR: Array(short_vector)})
    return reply


def many_samples(message: Message, reply: Message) -> Message:
    if message.metadata.message_type == MessageType.TRAIN:
        fields = fields_of(reply)
        fields["samples"][0] = 10**8
        with_fields(reply, fields)
    return reply


def error(message: Message, reply: Message) -> Message:
    answer = MaskingReply(fault="masked sum refused: I will not\x1b[2J")
    mine = message.metadata.message_type == MASKING
    return write_masking_reply(answer, to=message) if mine else reply


def empty_reply(message: Message, reply: Message) -> Message:
    mine = message.metadata.message_type == MASKING
    return write_masking_reply(MaskingReply(), to=message) if mine else reply


def keys_of_another_kind(message: Message, reply: Message) -> Message:
    """Other nodes would refuse the step because of these keys, and would be blamed for it."""
    if step_of(message)[0] != "keys":
        return reply
    key = public_key_to_bytes(ed25519.Ed25519PrivateKey.generate().public_key())
    return write_masking_reply(MaskingReply(own=PublicKeys(key, key[:-1])), to=message)


def long_shares(message: Message, reply: Message) -> Message:
    """Which would take the server minutes to join."""
    if step_of(message)[0] != "shares":
        return reply
    long = {node: 2 * content for node, content in read_masking_reply(reply).sealed.items()}
    return write_masking_reply(MaskingReply(sealed=long), to=message)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without_vector, "its arrays are not masked"),
        (short_vector, "array 'vector' has shape (3,), expected"),
        (many_samples, "its masked sum includes client"),
        (error, "masked sum, its keys: masked sum refused: I will not\\x1b[2J"),
        (empty_reply, "masked sum: it names no keys"),
        (keys_of_another_kind, "masked sum: its keys: not a public key: of another kind"),
        (long_shares, "masked sum: its shares are too short or too long"),
    ],
)
def test_who_does_not_keep_to_it_is_left_out(tmp_path: Path, change: Tamper, why: str) -> None:
    folder = run(tmp_path, change)
    for line in read_rounds(folder.path):
        assert line["clients"] == 6
        assert why in line["refused"][0]["reason"]


def shares_of_another_seed(message: Message, reply: Message) -> Message:
    """The first share of the first survivor's seed, changed by a bit."""
    if step_of(message)[0] != "unmask":
        return reply
    answer = read_masking_reply(reply)
    share = bytearray(answer.seeds[0])
    share[4] ^= 1
    answer.seeds[0] = bytes(share)
    return write_masking_reply(answer, to=message)


def test_a_false_share_gives_no_model(tmp_path: Path) -> None:
    """The reconstructed seed is wrong, and with it the number of clients in the sum."""
    with pytest.raises(FederationError, match=r"masked sum: (not one of 8 clients|shares that do)"):
        run(tmp_path, shares_of_another_seed)


@pytest.mark.parametrize("size", [PRIVATE_BYTES, SEED_BYTES])
def test_shares_of_what_is_no_secret_give_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A node deals shares of the private key 0 and falls out; or of a seed of other length."""
    true_split = masking.split

    def split(secret: bytes, least: int, nodes: int) -> list[bytes]:
        dealt = secret if len(secret) != size else bytes(size if size == PRIVATE_BYTES else 40)
        return true_split(dealt, least, nodes)

    class Grid(LocalGrid):
        def answer(self, message: Message) -> Message | None:
            bad = message.metadata.dst_node_id == BAD_NODE
            with monkeypatch.context() as patched:
                if bad and step_of(message)[0] == "shares":
                    patched.setattr(masking, "split", split)
                reply = super().answer(message)
            falls_out = bad and size == PRIVATE_BYTES and reply is not None
            return None if falls_out and VECTOR in reply.content.array_records else reply

    settings = small_settings(tmp_path, **{**FEDAVG, **MASKED})
    with (
        RunFolder(settings) as folder,
        pytest.raises(FederationError, match=r"masked sum: (not a private key|shares that do)"),
    ):
        conduct(Grid(settings, synthetic_nodes(4, tmp_path / "nodes")), settings, folder)


def test_two_nodes_of_one_key_are_both_left_out(tmp_path: Path) -> None:
    """The key has no unique owner, and other nodes would refuse the step."""
    node_keys: list[PublicKeys] = []

    class Grid(LocalGrid):
        def answer(self, message: Message) -> Message | None:
            reply = super().answer(message)
            if reply is None or step_of(message)[0] != "keys":
                return reply
            node_keys.append(cast(PublicKeys, read_masking_reply(reply).own))
            if len(node_keys) != 2:
                return reply
            mixed_keys = PublicKeys(node_keys[1].masks, node_keys[0].masks)
            return write_masking_reply(MaskingReply(own=mixed_keys), to=message)

    settings = small_settings(tmp_path, **{**FEDAVG, **MASKED, "rounds": 1})
    with RunFolder(settings) as folder:
        conduct(Grid(settings, synthetic_nodes(5, tmp_path / "nodes")), settings, folder)
    [line] = read_rounds(folder.path)
    reasons = [refusal["reason"] for refusal in line["refused"]]
    assert reasons[:2] == ["masked sum: its keys are not its own alone"] * 2
    assert line["clients"] == 4  # of eight; each of the two refused nodes has two


def test_a_huge_vector_gives_no_model(tmp_path: Path) -> None:
    """The server cannot see it in the vector of one node, but in the sum."""

    def huge(message: Message, reply: Message) -> Message:
        if VECTOR in reply.content.array_records:
            vector = reply.content.array_records[VECTOR][VECTOR].numpy() + np.uint64(2**57)
            vector[-2:] -= np.uint64(2**57)  # the counts are as they should be
            reply.content[VECTOR] = ArrayRecord({VECTOR: Array(vector)})
        return reply

    folder = run(tmp_path, huge)
    first = model(run(tmp_path, lambda _, reply: reply, "initial", rounds=1))
    assert (
        "its model has a root mean square of" in read_rounds(folder.path)[0]["refused"][0]["reason"]
    )
    assert largest_difference(model(folder), first) < 1  # as it began


def test_a_false_weight_gives_no_model(tmp_path: Path) -> None:
    """Who would count a million times in the mean."""

    def heavy(message: Message, reply: Message) -> Message:
        if VECTOR in reply.content.array_records:
            vector = reply.content.array_records[VECTOR][VECTOR].numpy().copy()
            vector[-1] += np.uint64(10**6)
            reply.content[VECTOR] = ArrayRecord({VECTOR: Array(vector)})
        return reply

    folder = run(tmp_path, heavy)
    reason = read_rounds(folder.path)[0]["refused"][0]["reason"]
    assert reason.startswith("masked sum of all nodes: the weights of its models are not ")


# --- what leaves a node -----------------------------------------------------------------------


def test_no_array_leaves_a_node_as_it_is(tmp_path: Path) -> None:
    """Neither what GLDP sends by class, nor which classes a client has; metrics and samples do."""
    replies: list[Message] = []

    def see(node_id: int, reply: Message) -> Message:
        replies.append(reply)
        return reply

    settings = small_settings(
        tmp_path, "classification", **{"method": "gldp", "rounds": 2, **MASKED}
    )
    run_locally(settings, synthetic_nodes(3, tmp_path / "state", "digits"), tamper=see)
    trained = [reply for reply in replies if reply.metadata.message_type == MessageType.TRAIN]
    assert len(trained) == 2 * 3
    for reply in replies:
        assert set(reply.content.array_records) <= {VECTOR}
    for reply in trained:
        assert fields_of(reply)["classes"] == []
        vector = reply.content.array_records[VECTOR][VECTOR].numpy()
        high = (vector >> np.uint64(56)).astype(int)
        assert abs(np.mean(high) - 127.5) < 5  # even over all there are


@pytest.mark.parametrize("kind", [MessageType.TRAIN, QUESTION])
def test_a_node_sends_nothing_for_an_order_without_masks(tmp_path: Path, kind: str) -> None:
    """A server that leaves the protocol out gets no arrays."""
    settings = small_settings(tmp_path, **FEDAVG, **MASKED)
    grid = LocalGrid(settings, synthetic_nodes(3, tmp_path / "state"))
    message = write_order(Order("run", "token", 1, ["any"]), 1000, kind)
    number(message)
    reply = grid.answer(message)
    assert reply is not None
    assert not reply.content.array_records
    assert fields_of(reply)["names"] == []
    assert "arrays leave this node only in a masked sum" in fields_of(reply)["failed"]["any"]


def test_a_run_without_masked_sums_has_no_steps_of_one(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, **FEDAVG)
    grid = LocalGrid(settings, synthetic_nodes(3, tmp_path / "state"))
    message = masking_query(MaskingOrder("run", "token", 1, "session", "keys"), 1000)
    number(message)
    reply = grid.answer(message)
    assert reply is not None
    assert "aggregation.secure = false" in read_masking_reply(reply).fault
