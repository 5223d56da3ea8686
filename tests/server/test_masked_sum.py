"""Masked sums in whole runs: nodes lost in each step, forged answers, what the server sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from flwr.app import Array, ArrayRecord, Message, MessageType
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from safetensors.numpy import load_file

from fedproto_app.core.clients import ClientFacts, ClientKey, of_enough
from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.core.messages import MaskingOrder, MaskingReply, Order, PublicKeys
from fedproto_app.core.methods import METHODS, methods_of
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
from fedproto_app.report.runs import read_rounds
from fedproto_app.server.exchange import Exchange
from fedproto_app.server.masked_sum import MaskedSum
from fedproto_app.settings import TASK_NAMES, AggregationSettings, settings_from
from fedproto_app.tasks.table import small_run
from fedproto_app.trust.masks import PRIVATE_BYTES, SEED_BYTES
from tests.helpers.local_grid import BAD_NODE, LocalGrid, run_small, small_settings, synthetic_nodes
from tests.helpers.reported import fields_of, with_fields

MASKED = {"aggregation.secure": True}
FEDAVG = {"method": "fedavg", "rounds": 2, "local-epochs": 1}
Change = Callable[[Message, Message], Message | None]  # of an order and its reply


def goes_masked(task: str, method: str) -> bool:
    try:
        settings_from({**small_run(task), "method": method, **METHODS[method].small, **MASKED})
    except SettingsError:
        return False
    return True


# Some that are not like FedAvg, then all others.
FIRST = [
    ("forecasting", "fedproto"),
    ("forecasting", "analytic"),
    ("classification", "fedpcl"),
    ("classification", "analytic"),
    ("classification", "census"),
]
PAIRS = [(task, method) for task in TASK_NAMES for method in methods_of(task)]
MORE = [
    pytest.param(*pair, marks=pytest.mark.exhaustive)
    for pair in PAIRS
    if pair not in FIRST and goes_masked(*pair)
]


class TamperingGrid(LocalGrid):
    """A grid whose replies are changed depending on the order."""

    def __init__(self, settings: Any, configs: Any, tamper: Any = None, *, change: Change) -> None:
        super().__init__(settings, configs, tamper)
        self._change = change

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        return None if reply is None else self._change(message, reply)


def run(tmp_path: Path, change: Change, nodes: int = 4, **changes: Any) -> Path:
    """Run FedAvg for two rounds and return the run's folder."""
    grid = partial(TamperingGrid, change=change)
    return run_small(tmp_path, nodes=nodes, grid=grid, **{**FEDAVG, **MASKED, **changes})[0].path


def step_of(message: Message) -> tuple[str, int]:
    """The step of a masked sum that a message to a node is, and its round."""
    order = read_masking_order(message)
    return (order.step, order.server_round) if order else ("", 0)


def from_then_on_silent(begins: Callable[[Message], bool]) -> Change:
    """The bad node is lost with the first such message, for good."""
    lost = False

    def change(message: Message, reply: Message) -> Message | None:
        nonlocal lost
        mine = message.metadata.dst_node_id == BAD_NODE
        lost = lost or (mine and begins(message))
        return None if lost and mine else reply

    return change


def silent_in(step: str) -> Change:
    return from_then_on_silent(lambda message: step_of(message) == (step, 2))


def in_step(step: str, answer: Callable[[MaskingReply], MaskingReply]) -> Change:
    """Another answer of the bad node to this step of every sum."""

    def change(message: Message, reply: Message) -> Message:
        if message.metadata.dst_node_id != BAD_NODE or step_of(message)[0] != step:
            return reply
        return write_masking_reply(answer(read_masking_reply(reply)), reply_to=message)

    return change


def in_training(spoil: Callable[[Message], None]) -> Change:
    """The bad node's reply to every training order, spoilt."""

    def change(message: Message, reply: Message) -> Message:
        if message.metadata.dst_node_id == BAD_NODE and VECTOR in reply.content.array_records:
            spoil(reply)
        return reply

    return change


def in_vector(spoil: Callable[[Any], Any]) -> Change:
    """Another vector of the bad node, of one that may be changed."""

    def put(reply: Message) -> None:
        vector = spoil(reply.content.array_records[VECTOR][VECTOR].numpy().copy())
        reply.content[VECTOR] = ArrayRecord({VECTOR: Array(vector)})

    return in_training(put)


def model(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model" / "global.safetensors")


def largest_difference(actual: Path, expected: Path) -> float:
    values, reference = model(actual), model(expected)
    return max(float(np.abs(values[name] - reference[name]).max()) for name in reference)


@pytest.fixture(scope="module")
def without_the_bad_node(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Return the same run with plain means. The node is lost in round 2, perhaps after training."""

    def plain(trains: bool) -> Path:
        def begins(message: Message) -> bool:
            metadata = message.metadata
            trained = trains and metadata.message_type == MessageType.TRAIN
            return metadata.group_id == "2" and not trained

        folder = tmp_path_factory.mktemp("plain")
        return run(folder, from_then_on_silent(begins), **{"aggregation.secure": False})

    return cache(plain)


@pytest.mark.parametrize(("task", "method"), [*FIRST, *MORE])
def test_a_masked_run_ends_as_the_plain_one(tmp_path: Path, task: str, method: str) -> None:
    runs = SmallRuns(task, method, tmp_path)
    plain, masked = runs.run("plain", 4), runs.run("masked", 4, **MASKED)
    of_classes = (task, method) in FIRST[-2:]
    deviation = apart(results(masked), results(plain), 1e-6 if of_classes else 1e-5)
    assert deviation.held, deviation
    for line in read_rounds(masked):
        assert line["refused"] == []
        assert line["answered"] == line["asked"]


def test_masks_leave_no_trace_and_a_killed_server_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Every sum has fresh keys. Whole numbers come out the same."""
    runs = SmallRuns("forecasting", "fedrep", tmp_path, **MASKED, rounds=3)
    uninterrupted = everything(runs.run("once", 3))
    assert apart(everything(runs.run("again", 3)), uninterrupted, 0.0).held
    killed = everything(runs.run("killed", 3, deaths=(5,)))
    deviation = apart(killed, uninterrupted, 0.0)
    assert deviation.held, deviation


@pytest.mark.parametrize(
    ("group_names", "sums"),
    [
        ({"abcd": "x", "efg": "y"}, ["abcd", "efg"]),
        ({"abcd": "x", "ef": "y", "g": "z"}, ["abcd", "efg"]),  # both too small, together enough
        ({"abcd": "x", "efg": "y", "h": ""}, ["abcd", "efgh"]),  # one alone would be seen
        ({"ab": "x", "c": ""}, ["abc"]),
    ],
)
def test_nodes_without_a_group_of_enough_form_a_sum_together(
    group_names: dict[str, str], sums: list[str]
) -> None:
    group_of = {node: name for nodes, name in group_names.items() for node in nodes}
    assert sorted("".join(sorted(nodes)) for nodes in of_enough(group_of, 3).values()) == sums


def test_a_node_of_several_groups_is_named(caplog: pytest.LogCaptureFixture) -> None:
    names = {"a": ["x"], "b": ["x"], "c": ["x", "y"], "d": ["", ""], "e": ["y", ""]}
    facts = {
        ClientKey(f"{node}{row}", node): ClientFacts(1, group, 0.0)
        for node, groups in names.items()
        for row, group in enumerate(groups)
    }
    members: Any = SimpleNamespace(facts=facts)
    history: Any = SimpleNamespace(log=SimpleNamespace(server_round=1))
    unused: Any = None
    rules = AggregationSettings(secure=True, secure_minimum=2)
    sums = MaskedSum(rules, ("", ""), members, history, unused, unused, groups_from=1)
    caplog.set_level("INFO", logger="flwr")
    assert sums._groups(sorted(names)) == {"x": ["a", "b"], "": ["c", "d", "e"]}
    assert 'event=several-groups nodes="c, e" reason=' in caplog.text


def test_groups_of_nodes_have_sums_of_their_own(tmp_path: Path) -> None:
    """Three of each kind of site: as in the clear, and the same bits again. A kind that loses a
    node has no sum, and the others go on."""
    groups = {"data.synthetic.clients": 12, "kindred.sharing": "groups", "kindred.features": 4}
    runs = SmallRuns("forecasting", "kindred", tmp_path, **groups)
    plain, masked = runs.run("plain", 12), runs.run("masked", 12, **MASKED)
    deviation = apart(results(masked), results(plain), 1e-5)
    assert deviation.held, deviation
    repeated = runs.run("again", 12, **MASKED)
    assert (repeated / "clients.csv").read_bytes() == (masked / "clients.csv").read_bytes()
    common = runs.run("common", 12, **MASKED, **{"kindred.sharing": "common"})
    assert not apart(results(common), results(masked), 1e-3).held

    lost = from_then_on_silent(lambda message: step_of(message)[0] == "train")
    go_on = {"method": "kindred", "nodes.maximum-failed-share": 1.0}
    [line] = read_rounds(run(tmp_path, lost, nodes=12, rounds=1, **groups, **go_on))
    assert line["clients"] == 9
    reasons = [refusal["reason"] for refusal in line["refused"]]
    assert any("2 of 3 nodes sent masked vectors, fewer than 3" in reason for reason in reasons)


@pytest.mark.parametrize("step", ["keys", "shares", "train", "unmask"])
def test_a_node_is_lost_in_each_step(
    tmp_path: Path, step: str, without_the_bad_node: Callable[[bool], Path]
) -> None:
    """Round 2 completes with three. Who has sent its vector is in the sum all the same."""
    folder = run(tmp_path, silent_in(step))
    first, second = read_rounds(folder)
    assert (first["clients"], first["refused"]) == (8, [])
    reasons = {refusal["node"]: refusal["reason"] for refusal in second["refused"]}
    assert set(reasons) == {"1"}
    assert "no reply within 0.2 s" in reasons["1"]
    assert second["clients"] == (8 if step == "unmask" else 6)
    assert largest_difference(folder, without_the_bad_node(step == "unmask")) < 1e-6


def test_too_few_nodes_give_no_sum_and_the_run_stops_with_the_reason(tmp_path: Path) -> None:
    all_of_four = {"aggregation.secure-share": 0.8}
    why = r"masked sum: 3 of 4 nodes sent masked vectors, fewer than 4 \(aggregation.secure-min"
    with pytest.raises(FederationError, match=why):
        run(tmp_path, silent_in("train"), **all_of_four)
    with pytest.raises(FederationError, match="2 of 2 nodes named keys, fewer than 3"):
        run(tmp_path, lambda _, reply: reply, nodes=2, **{"output.name": "two"})


def test_too_few_nodes_leave_the_model_as_it_was_if_the_run_may_go_on(tmp_path: Path) -> None:
    go_on = {"aggregation.secure-share": 0.8, "nodes.maximum-failed-share": 1.0}
    folder = run(tmp_path, silent_in("train"), **go_on)
    one_round = run(tmp_path, lambda _, reply: reply, rounds=1, **{"output.name": "one"})
    assert largest_difference(folder, one_round) == 0
    second = read_rounds(folder)[1]
    assert second["clients"] == 0
    assert any("the round has no sum" in refusal["reason"] for refusal in second["refused"])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (MaskingReply(fault="I will not"), "masked sum, its signature: I will not"),
        (MaskingReply(signature=bytes(64)), "masked sum: its signature is not valid"),
    ],
)
def test_survivors_that_too_few_sign_give_no_sum(
    tmp_path: Path, answer: MaskingReply, why: str
) -> None:
    """No node reveals anything: without signatures the server does not ask for shares."""
    steps = []

    def change(message: Message, reply: Message) -> Message | None:
        step, _ = step_of(message)
        steps.append(step)
        if step == "agree":
            return write_masking_reply(answer, reply_to=message)
        lost = step == "train" and message.metadata.dst_node_id == BAD_NODE
        return None if lost else reply

    [line] = read_rounds(run(tmp_path, change, rounds=1, **{"nodes.maximum-failed-share": 1.0}))
    reasons = [refusal["reason"] for refusal in line["refused"]]
    assert reasons.count(why) == 3
    assert any("0 of 4 nodes signed the survivors, fewer than 3" in reason for reason in reasons)
    assert steps.count("agree") == 3
    assert "unmask" not in steps


def test_a_survivor_without_a_signing_key_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would refuse a list with its signature."""
    signed = masking.Masking._public

    def unsigned(node: masking.Masking, secrets: Any, order: Any) -> PublicKeys:
        keys = signed(node, secrets, order)
        return keys._replace(signer=b"") if node._file.parent.name == "2" else keys

    monkeypatch.setattr(masking.Masking, "_public", unsigned)
    lost = from_then_on_silent(lambda message: step_of(message)[0] == "train")
    half = {"aggregation.secure-share": 0.5}
    [line] = read_rounds(run(tmp_path, lost, nodes=5, rounds=1, **half))
    assert line["clients"] > 0
    reasons = [refusal["reason"] for refusal in line["refused"] if refusal["node"] == "2"]
    assert reasons == ["masked sum: its signature is not valid"]


def test_as_many_replies_as_the_sum_must_have_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if fewer are enough for `nodes.enough`."""
    orders_seen, ask = [], Exchange.ask

    def watched(
        exchange: Exchange, grid: Grid, messages: Any, *arguments: Any, **options: Any
    ) -> Any:
        sent = list(messages)
        orders_seen.append((sent[0].metadata.message_type, options["least"]))
        return ask(exchange, grid, sent, *arguments, **options)

    monkeypatch.setattr(Exchange, "ask", watched)
    changes = {"aggregation.secure-share": 0.67, "nodes.enough": 0.5, "rounds": 1}
    run(tmp_path, lambda _, reply: reply, **changes)
    steps = [(MASKING, 4), (MASKING, 4), (MessageType.TRAIN, 3), (MASKING, 4)]
    assert orders_seen == [*steps, (MessageType.EVALUATE, 0)]


# --- what a hostile node can do ---------------------------------------------------------------


def many_samples(reply: Message) -> None:
    fields = fields_of(reply)
    fields["samples"][0] = 10**8
    with_fields(reply, fields)


def of_another_kind(_: MaskingReply) -> MaskingReply:
    """Other nodes would refuse the step because of these keys, and would be blamed for it."""
    key = public_key_to_bytes(ed25519.Ed25519PrivateKey.generate().public_key())
    return MaskingReply(own=PublicKeys(key, key[:-1]))


def long_shares(answer: MaskingReply) -> MaskingReply:
    """Which would take the server minutes to join."""
    return MaskingReply(sealed={node: 2 * content for node, content in answer.sealed.items()})


def shares_for_some(answer: MaskingReply) -> MaskingReply:
    return MaskingReply(sealed=dict(list(answer.sealed.items())[1:]))


def refuse(_: MaskingReply) -> MaskingReply:
    return MaskingReply(fault="masked sum refused: I will not\x1b[2J")


LEFT_OUT = {
    "its arrays are not masked": in_training(lambda r: r.content.array_records.pop(VECTOR)),
    "array 'vector' has shape (3,)": in_vector(lambda _: np.zeros(3, dtype=np.uint64)),
    "its masked sum includes client": in_training(many_samples),
    "its keys: masked sum refused: I will not\\x1b[2J": in_step("keys", refuse),
    "it sent no keys": in_step("keys", lambda _: MaskingReply()),
    "its keys: not a public key of the kind": in_step("keys", of_another_kind),
    "its shares are too short or too long": in_step("shares", long_shares),
    "its shares are not one for each other node": in_step("shares", shares_for_some),
}


@pytest.mark.parametrize("why", LEFT_OUT)
def test_who_does_not_keep_to_it_is_left_out(tmp_path: Path, why: str) -> None:
    [line] = read_rounds(run(tmp_path, LEFT_OUT[why], rounds=1))
    assert line["clients"] == 6
    [refusal] = line["refused"]
    assert (refusal["node"], why in refusal["reason"]) == ("1", True)


def another_seed(answer: MaskingReply) -> MaskingReply:
    """The first share of the first survivor's seed, changed by a bit."""
    share = bytearray(answer.seeds[0])
    share[4] ^= 1
    return replace(answer, seeds={**answer.seeds, 0: bytes(share)})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        # The reconstructed seed is wrong, and with it the number of clients in the sum.
        (another_seed, r"masked sum: (not one of 8 clients|shares that do)"),
        (lambda answer: MaskingReply(), "its shares are not those that were asked for"),
    ],
)
def test_false_shares_give_no_model(tmp_path: Path, answer: Any, why: str) -> None:
    all_help = {"aggregation.secure-share": 0.8}
    with pytest.raises(FederationError, match=why):
        run(tmp_path, in_step("unmask", answer), **all_help)


@pytest.mark.parametrize("size", [PRIVATE_BYTES, SEED_BYTES])
def test_shares_of_what_is_no_secret_give_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A node deals shares of the private key 0 and falls out, or of a seed of another length."""
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

    with pytest.raises(FederationError, match=r"masked sum: (not a private key|shares that do)"):
        run_small(tmp_path, nodes=4, grid=Grid, **FEDAVG, **MASKED)


def test_two_nodes_of_one_key_are_both_left_out(tmp_path: Path) -> None:
    """The key has no unique owner, and other nodes would refuse the step."""
    node_keys: list[PublicKeys] = []

    def change(message: Message, reply: Message) -> Message:
        if step_of(message)[0] != "keys":
            return reply
        own = read_masking_reply(reply).own
        assert own is not None
        node_keys.append(own)
        if len(node_keys) != 2:
            return reply
        mixed_keys = PublicKeys(node_keys[1].masks, node_keys[0].masks)
        return write_masking_reply(MaskingReply(own=mixed_keys), reply_to=message)

    [line] = read_rounds(run(tmp_path, change, nodes=5, rounds=1))
    reasons = [refusal["reason"] for refusal in line["refused"]]
    assert reasons[:2] == ["masked sum: another node sent the same keys"] * 2
    assert line["clients"] == 4  # of eight; each of the two refused nodes has two


VALUES, WEIGHT = slice(None, -2), slice(-1, None)  # of the vector, beside the number of clients


@pytest.mark.parametrize(
    ("places", "added", "why"),
    [
        (VALUES, 2**57, "its model has a root mean square of"),
        (VALUES, 2**40, "masked sum of all nodes: its mean model moved by "),
        (WEIGHT, 10**6, "masked sum of all nodes: the weights of its models do not add up to the "),
    ],
)
def test_a_false_vector_gives_no_model(tmp_path: Path, places: slice, added: int, why: str) -> None:
    """The server cannot see it in the vector of one node, but in the sum."""

    def spoil(vector: Any) -> Any:
        vector[places] += np.uint64(added)
        return vector

    folder = run(tmp_path, in_vector(spoil))
    assert why in read_rounds(folder)[0]["refused"][0]["reason"]
    first = run(tmp_path, lambda _, reply: reply, rounds=1, **{"output.name": "first"})
    assert largest_difference(folder, first) < 1  # as it began


# --- what leaves a node -----------------------------------------------------------------------


def test_no_array_leaves_a_node_as_it_is(tmp_path: Path) -> None:
    """Neither what GLDP sends by class, nor which classes a client has, but metrics and samples."""
    replies: list[Message] = []

    def see(node_id: int, reply: Message) -> Message:
        replies.append(reply)
        return reply

    run_small(tmp_path, "classification", nodes=3, tamper=see, rounds=2, **MASKED)
    trained = [reply for reply in replies if reply.metadata.message_type == MessageType.TRAIN]
    assert len(trained) == 2 * 3
    for reply in replies:
        assert set(reply.content.array_records) <= {VECTOR}
    for reply in trained:
        assert fields_of(reply)["classes"] == []
        vector = reply.content.array_records[VECTOR][VECTOR].numpy()
        high = (vector >> np.uint64(56)).astype(int)
        assert abs(np.mean(high) - 127.5) < 5  # even over all there are


def reply_to(message: Message, tmp_path: Path, **changes: Any) -> Message:
    """Return a node's reply to this message in a run of FedAvg."""
    settings = small_settings(tmp_path, **FEDAVG, **changes)
    number(message)
    reply = LocalGrid(settings, synthetic_nodes(3, tmp_path / "state")).answer(message)
    assert reply is not None
    return reply


@pytest.mark.parametrize("kind", [MessageType.TRAIN, QUESTION])
def test_a_node_sends_nothing_for_an_order_without_masks(tmp_path: Path, kind: str) -> None:
    """A server that leaves the protocol out gets no arrays."""
    order = write_order(Order("run", "token", 1, ["any"]), 1000, kind)
    reply = reply_to(order, tmp_path, **MASKED)
    assert not reply.content.array_records
    assert fields_of(reply)["names"] == []
    assert "arrays leave this node only in a masked sum" in fields_of(reply)["failed"]["any"]


def test_a_run_without_masked_sums_has_no_steps_of_one(tmp_path: Path) -> None:
    query = masking_query(MaskingOrder("run", "token", 1, "session", "keys"), 1000)
    reply = reply_to(query, tmp_path)
    assert "aggregation.secure = false" in read_masking_reply(reply).fault
