"""Nodes that join, leave, come back, rest, or come with the name or the key of another."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Message

from fedproto_app import __version__
from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.core.messages import NodeRoster, Refusal
from fedproto_app.core.wire import ALIVE, FIELDS, ROSTER
from fedproto_app.server import membership
from fedproto_app.server.federation import Federation
from fedproto_app.server.membership import Roster
from fedproto_app.server.node_register import NodeRegister, fingerprint, time_text
from fedproto_app.settings.paths import OUTPUT_ROOT
from tests.helpers.bad_replies import fail
from tests.helpers.local_grid import small_settings
from tests.helpers.messages import node_roster
from tests.server.fake_grid import RosterGrid


def public_key() -> bytes:
    """As Flower tells the ServerApp of it."""
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


KEYS = [public_key() for _ in range(3)]
NOT_MOUNTED = node_roster("north", error="/data/a.csv: no such file")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "ASK_AGAIN_AFTER", 0.0)


def federation_of(
    tmp_path: Path,
    *nodes: NodeRoster | str,
    keys: list[bytes] | None = None,
    registered: Mapping[int, str] | None = None,
    task: str = "forecasting",
    **changes: Any,
) -> tuple[Federation, RosterGrid]:
    """A server that waits 0.3 s for one of these nodes. Those named alone have clients a and b."""
    settings = small_settings(tmp_path, task, **{"nodes.start-deadline": 0.3, **changes})
    rosters = [node_roster(n, "a", "b") if isinstance(n, str) else n for n in nodes]
    grid = RosterGrid(rosters, KEYS if keys is None else keys, registered)
    return Federation(settings, "run", "token"), grid


def connect(federation: Federation, grid: RosterGrid, *nodes: int) -> None:
    """Connect these nodes alone, and let the server refresh its members twice."""
    grid.connected = set(nodes)
    for _ in range(2):
        federation.members.refresh(grid)


def labels(federation: Federation) -> set[str]:
    return {key.node for key in federation.members.clients()}


def reasons(federation: Federation) -> list[str]:
    return [refusal.reason for refusal in federation.history.log.refused]


def bound(tmp_path: Path) -> dict[str, Any]:
    bindings: dict[str, Any] = json.loads((tmp_path / "runs" / "nodes.json").read_text())["bound"]
    return bindings


# --- the roster by hand ---------------------------------------------------------------------------


def test_clients_are_counted_once_however_often_a_node_comes_and_goes() -> None:
    roster = Roster(connected={1, 2})
    assert roster.clients_with(1, node_roster("a", "x", "y")) == 2
    roster.admit(1, node_roster("a", "x", "y"))
    assert roster.clients_with(3, node_roster("a", "y", "z")) == 3  # the same node, restarted
    assert roster.clients_with(2, node_roster("", "x")) == 3  # a node without a name has its own x
    assert len(roster.facts) == 2  # only looked at


def test_a_clients_name_is_free_when_its_first_node_is_expelled() -> None:
    roster = Roster(connected={1, 2})
    roster.admit(1, node_roster("a", "x", "y"))
    roster.admit(2, node_roster("b", "x"))
    assert roster.first_with == {"x": "a", "y": "a"}
    roster.expel("a")
    assert roster.first_with == {"x": "b"}
    assert ClientKey("y", "a") in roster.facts
    roster.forget("a")
    assert set(roster.facts) == {ClientKey("x", "b")}


# --- joining, leaving, coming back ----------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, 3600])
def test_a_site_that_loads_for_long_is_asked_once_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    federation, grid = federation_of(tmp_path, "south", "north")
    withheld: list[Message] = []
    grid.tamper = lambda node, reply: withheld.append(reply) if node == 1001 else reply
    federation.members.await_nodes(grid)
    later = time.monotonic() + seconds
    if seconds:
        monkeypatch.setattr(time, "monotonic", lambda: later)
    federation.members.await_clients(grid)
    assert labels(federation) == {"south"}
    (loaded,) = (reply for reply in withheld if reply.metadata.message_type == ROSTER)
    grid.replies[loaded.metadata.reply_to_message_id] = loaded
    federation.members.await_clients(grid)
    assert labels(federation) == {"south", "north"}


@pytest.mark.parametrize(
    ("busy", "sent"), [(True, [ROSTER, ALIVE]), (False, [ROSTER, ALIVE, ROSTER])]
)
def test_a_probe_tells_a_lost_query_from_a_busy_node(
    busy: bool, sent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that reads its data answers nothing meanwhile. One that was restarted does."""
    monkeypatch.setattr(membership, "PROBE_AFTER", 0.0)
    federation, grid = federation_of(tmp_path, "south", "north")

    def answered(node: int, reply: Message) -> Message | None:
        lost = busy or reply.metadata.message_type == ROSTER
        return None if node == 1001 and lost else reply

    grid.tamper = answered
    for _ in range(3):
        federation.members.await_clients(grid)
    to_north = [m.metadata for m in grid.sent if m.metadata.dst_node_id == 1001]
    assert [metadata.message_type for metadata in to_north] == sent


def test_a_node_that_cannot_take_part_is_asked_again_and_told_of_once(tmp_path: Path) -> None:
    """Its data volume is mounted late."""
    federation, grid = federation_of(tmp_path, "south", NOT_MOUNTED)
    federation.members.await_nodes(grid)
    for _ in range(2):
        federation.members.await_clients(grid)
    assert reasons(federation) == ["/data/a.csv: no such file"]
    grid.rosters[1001] = node_roster("north", "a")
    federation.members.await_clients(grid)
    assert labels(federation) == {"south", "north"}


def test_a_run_for_some_sites_does_not_ask_others_or_wait_for_them(tmp_path: Path) -> None:
    """The server knows the operator's name of "west" beforehand, and "east" says its own."""
    registered = {1001: "west"}
    federation, grid = federation_of(
        tmp_path, "north", "west", "east", registered=registered, **{"nodes.names": "north"}
    )
    federation.members.await_nodes(grid)
    assert labels(federation) == {"north"}
    assert {message.metadata.dst_node_id for message in grid.sent} == {1000, 1002}
    assert reasons(federation) == ["nodes.names = 'north' does not name 'east'"]


def test_a_named_site_that_does_not_come_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="flwr")
    nodes, registered = ["north", "west"], {1001: "west"}
    federation, grid = federation_of(
        tmp_path, *nodes, registered=registered, **{"nodes.names": "north,south"}
    )
    federation.members.await_nodes(grid)
    assert labels(federation) == {"north"}
    assert 'event=missing node=south seconds=0.3 nodes="north, west"' in caplog.text

    federation, grid = federation_of(
        tmp_path, *nodes, registered=registered, **{"nodes.names": "suoth"}
    )
    message = "suoth did not come, and this server knows north, west; fedproto nodes list"
    with pytest.raises(FederationError, match=message):
        federation.members.await_nodes(grid)
    with pytest.raises(SettingsError, match=r"nodes\.names = 'a,a': 'a' is named twice"):
        small_settings(tmp_path, **{"nodes.names": "a,a"})


@pytest.mark.parametrize(("registered", "counts"), [({}, False), ({1001: "south"}, True)])
def test_a_site_without_data_that_may_not_be_named_does_not_count_as_arrived(
    tmp_path: Path, registered: dict[int, str], counts: bool
) -> None:
    """One named site is there, and a node that cannot read its data may be another one."""
    no_data = node_roster("", error="/data/a.csv: no such file")
    federation, grid = federation_of(
        tmp_path,
        "north",
        no_data,
        registered=registered,
        **{"nodes.names": "north,south", "nodes.minimum": 2},
    )
    if counts:
        federation.members.await_nodes(grid)
    else:
        with pytest.raises(FederationError, match=r"^1 of 2 nodes came .*a\.csv: no such file"):
            federation.members.await_nodes(grid)
    assert labels(federation) == {"north"}


def test_a_resumed_run_waits_for_the_nodes_that_are_named_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation, grid = federation_of(tmp_path, "north", "west")
    federation.members.await_nodes(grid)
    later, grid = federation_of(tmp_path, "north", "west", **{"nodes.names": "north"})
    later.recall(federation.memory())
    later.members.await_nodes(grid)
    assert labels(later) == {"north"}
    assert "event=missing" not in caplog.text


def test_a_node_whose_app_breaks_may_still_join(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, "north")
    grid.tamper = lambda node, reply: fail(reply)
    connect(federation, grid, 1000)
    assert reasons(federation) == ["roster: it broke"]
    grid.tamper = lambda node, reply: reply
    connect(federation, grid, 1000)
    assert labels(federation) == {"north"}


def test_unusable_clients_are_refused_by_name_and_remarks_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = node_roster("north", "a", refused={"c": "only 3 steps"}, notes={"a": "half is missing"})
    federation, grid = federation_of(tmp_path, odd)
    federation.members.await_nodes(grid)
    assert federation.members.clients() == [ClientKey("a", "north")]
    assert federation.history.log.refused == [Refusal("north", "c", "only 3 steps")]
    assert 'event=note node=north client=a note="half is missing"' in caplog.text


@pytest.mark.parametrize(
    ("nodes", "minimum", "message"),
    [
        ([], 1, r"0 of 1 nodes came within nodes\.start-deadline = 0\.3 s; fedproto nodes list"),
        ([NOT_MOUNTED], 1, r"no node has a client that can train: .*no such file"),
        ([NOT_MOUNTED], 2, r"1 of 2 nodes came within .* = 0\.3 s: .*no such file"),
    ],
)
def test_why_a_run_cannot_begin_is_told(
    tmp_path: Path, nodes: list[NodeRoster], minimum: int, message: str
) -> None:
    federation, grid = federation_of(tmp_path, *nodes, **{"nodes.minimum": minimum})
    with pytest.raises(FederationError, match=message):
        federation.members.await_nodes(grid)


def test_a_slow_host_has_longer_for_its_first_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, grid = federation_of(tmp_path, "north", registered={1000: "north"})
    answers = grid.pull_messages
    monkeypatch.setattr(
        grid, "pull_messages", lambda ids: answers(ids) if "event=slow" in caplog.text else []
    )
    federation.members.await_nodes(grid)
    assert "event=slow nodes=north seconds=0.3" in caplog.text
    assert labels(federation) == {"north"}

    federation, grid = federation_of(tmp_path, "north", registered={1000: "north"})
    monkeypatch.setattr(grid, "pull_messages", lambda ids: [])
    with pytest.raises(FederationError, match=r"within 0\.9 s: north; their hosts"):
        federation.members.await_nodes(grid)


def test_a_node_of_an_earlier_version_is_turned_away_with_both_versions(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, "north")

    def silent_on_protocol(node_id: int, reply: Message) -> Message:
        del reply.content[FIELDS]["protocol"]
        return reply

    grid.tamper = silent_on_protocol
    connect(federation, grid, 1000)
    [reason] = reasons(federation)
    assert reason.startswith(f"the node runs fedproto-app {__version__}, this server {__version__}")


def test_a_node_that_was_away_is_asked_for_its_clients_anew(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, "north", "south")
    federation.members.await_nodes(grid)
    connect(federation, grid, 1001)
    assert labels(federation) == {"south"}
    grid.rosters[1000] = node_roster("north", "b", "c")
    connect(federation, grid, 1000, 1001)
    keys = set(federation.members.clients())
    assert ClientKey("c", "north") in keys
    assert ClientKey("a", "north") not in keys


def test_who_rests_is_asked_where_the_others_have_no_clients_and_stays_known(
    tmp_path: Path,
) -> None:
    federation, grid = federation_of(tmp_path, "south", NOT_MOUNTED)
    federation.members.await_nodes(grid)
    federation.pipeline.exchange._rests[1000] = time.monotonic() + 3600
    federation.members.await_clients(grid)
    assert labels(federation) == {"south"}
    assert federation.memory()["nodes"] == ["south"]


def test_the_name_of_a_node_that_rests_is_not_free(tmp_path: Path) -> None:
    nodes = ["north", node_roster("north", "q"), node_roster("x", "q")]
    federation, grid = federation_of(tmp_path, *nodes, **{"nodes.bind-names": False})
    connect(federation, grid, 1000, 1002)
    federation.pipeline.exchange._rests[1000] = time.monotonic() + 3600
    connect(federation, grid, 1000, 1001, 1002)
    assert federation.members.node_id("north") == 1000
    assert labels(federation) == {"x"}


@pytest.mark.parametrize("how", ["rests", "overdue"])
def test_a_node_that_was_quiet_and_comes_back_with_other_data_is_asked_for_it(
    tmp_path: Path, how: str
) -> None:
    federation, grid = federation_of(tmp_path, "north", "south")
    federation.members.await_nodes(grid)
    if how == "rests":
        federation.pipeline.exchange._rests[1000] = time.monotonic() + 3600
    else:
        federation.pipeline.exchange._overdue["an order"] = 1000
    connect(federation, grid, 1000, 1001)
    connect(federation, grid, 1001)
    grid.rosters[1000] = node_roster("north", "b", "c")
    federation.pipeline.exchange._rests.clear()
    connect(federation, grid, 1000, 1001)
    assert {key.client for key in federation.members.clients() if key.node == "north"} == {"b", "c"}


# --- names and keys -------------------------------------------------------------------------------


def test_a_name_stays_its_keys_while_its_node_is_away(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, "north", "north")
    connect(federation, grid, 1000)
    connect(federation, grid, 1001)
    assert federation.members.clients() == []  # neither its orders nor its clients
    assert federation.members.node_id("north") == 1000
    (reason,) = reasons(federation)
    assert f"its name 'north' belongs to the key {fingerprint(KEYS[0])}" in reason
    assert "fedproto nodes release north" in reason
    connect(federation, grid, 1000, 1001)
    assert federation.members.clients() == [ClientKey("a", "north"), ClientKey("b", "north")]


def test_a_name_stays_its_keys_over_runs_and_in_the_operators_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUT_ROOT, str(tmp_path / "runs"))
    federation, grid = federation_of(tmp_path, "north", "north")
    connect(federation, grid, 1000)
    elsewhere = {"output.dir": str(tmp_path / "runs" / "mine"), "output.name": "other"}
    later, grid = federation_of(tmp_path, "north", "north", **elsewhere)
    later.recall(federation.memory())  # a resumed run, too
    connect(later, grid, 1001)
    assert later.members.clients() == []
    assert bound(tmp_path)["north"]["key"] == fingerprint(KEYS[0])
    assert bound(tmp_path)["north"]["clients"] == 2
    connect(later, grid, 1000)
    assert len(later.members.clients()) == 2


def test_a_key_goes_by_one_name(tmp_path: Path) -> None:
    """Or it would take the names of all that are still to come."""
    federation, grid = federation_of(tmp_path, "north")
    connect(federation, grid, 1000)
    connect(federation, grid)
    grid.rosters[1000] = node_roster("south", "a")
    connect(federation, grid, 1000)
    assert "belongs to the name 'north', and it says 'south'" in reasons(federation)[-1]
    assert list(bound(tmp_path)) == ["north"]
    assert federation.members.clients() == []


def test_the_operators_name_is_stronger_than_what_a_node_says(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, "north", registered={1000: "south"})
    connect(federation, grid, 1000)
    reason = "it calls itself 'north', but its key is registered under the name 'south'"
    assert federation.history.log.refused == [Refusal("south", "", reason)]
    assert federation.members.clients() == []


def test_a_site_that_says_nothing_goes_by_the_name_it_is_registered_under(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, "", "", registered={1000: "north"})
    connect(federation, grid, 1000, 1001)
    assert federation.members.roster.connected_labels() == ["1001", "north"]


def test_who_came_first_with_a_registered_name_loses_it(tmp_path: Path) -> None:
    """Its key was registered without one."""
    federation, grid = federation_of(tmp_path, "north", "north", registered={1001: "north"})
    connect(federation, grid, 1000)
    assert federation.members.node_id("north") == 1000
    connect(federation, grid, 1000, 1001)
    assert federation.members.node_id("north") == 1001
    assert "is another node's registered name" in reasons(federation)[-1]
    later, grid = federation_of(tmp_path, "north", "north", registered={1001: "north"})
    connect(later, grid, 1000)  # and while the true one is away
    assert later.members.clients() == []


def test_a_node_does_not_take_the_number_of_one_without_a_name(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, "1001", "")
    connect(federation, grid, 1000, 1001)
    assert federation.members.node_id("1001") == 1001
    assert "is another node's" in reasons(federation)[-1]


@pytest.mark.parametrize("registered", [{1000: "north", 1001: "north"}, None])
def test_a_node_of_the_same_name_takes_the_place_when_the_old_one_is_gone(
    tmp_path: Path, registered: dict[int, str] | None
) -> None:
    """Two keys are registered under one name until the operator revokes the old one, or nodes
    without keys are restarted, and Flower still believes in the old one."""
    keys = KEYS if registered else []
    federation, grid = federation_of(tmp_path, "north", "north", keys=keys, registered=registered)
    connect(federation, grid, 1000)
    connect(federation, grid, 1000, 1001)
    assert reasons(federation) == ["its name 'north' belongs to another connected node"]
    assert federation.members.node_id("north") == 1000
    connect(federation, grid, 1001)
    assert federation.members.node_id("north") == 1001
    if registered:
        assert bound(tmp_path)["north"]["key"] == fingerprint(KEYS[1])


def test_the_operator_releases_a_name_while_the_server_runs(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, "north", "north")
    connect(federation, grid, 1000)
    connect(federation, grid, 1001)
    with NodeRegister(tmp_path / "runs" / "nodes.json").changing() as names:
        del names.bound["north"]
    connect(federation, grid, 1001)
    assert federation.members.node_id("north") == 1001
    connect(federation, grid, 1000, 1001)  # the old key is a stranger now
    assert federation.members.node_id("north") == 1001
    assert "belongs to the key" in reasons(federation)[-1]


@pytest.mark.parametrize("registered", [{}, {1000: "north"}])
def test_a_banned_node_is_out_at_once_by_its_name_and_by_its_key(
    tmp_path: Path, registered: dict[int, str]
) -> None:
    federation, grid = federation_of(tmp_path, "north", registered=registered)
    connect(federation, grid, 1000)
    with NodeRegister(tmp_path / "runs" / "nodes.json").changing() as names:
        names.banned["north"] = [fingerprint(KEYS[0])]
        del names.bound["north"]
    connect(federation, grid, 1000)
    assert federation.members.clients() == []
    assert "'north' is banned from this server" in reasons(federation)[-1]
    grid.rosters[1000] = node_roster("south", "a")
    if registered:
        grid.registered = {1000: "south"}
    connect(federation, grid, 1000)
    assert federation.members.clients() == []


def test_an_old_key_serves_until_its_end_and_the_new_one_takes_over(tmp_path: Path) -> None:
    two_keys = {1000: "north", 1001: "north"}
    federation, grid = federation_of(tmp_path, "north", "north", keys=KEYS, registered=two_keys)
    with NodeRegister(tmp_path / "runs" / "nodes.json").changing() as names:
        names.ends[fingerprint(KEYS[0])] = time_text(days=1)
    connect(federation, grid, 1000)
    assert federation.members.node_id("north") == 1000
    with NodeRegister(tmp_path / "runs" / "nodes.json").changing() as names:
        names.ends[fingerprint(KEYS[0])] = time_text()
    connect(federation, grid, 1000)
    assert federation.members.clients() == []
    assert "the site needs a new key" in reasons(federation)[-1]
    connect(federation, grid, 1001)
    assert federation.members.node_id("north") == 1001


@pytest.mark.parametrize(
    ("keys", "binds"),
    [(KEYS, False), ([b"\x93" * 32] * 2, True)],  # what Flower's own simulation has for keys
)
def test_without_keys_of_their_own_nodes_go_by_what_they_say_and_leave_no_register(
    tmp_path: Path, keys: list[bytes], binds: bool
) -> None:
    changes = {"nodes.bind-names": binds}
    federation, grid = federation_of(tmp_path, "north", "north", keys=keys, **changes)
    connect(federation, grid, 1000)
    connect(federation, grid, 1001)
    assert federation.members.node_id("north") == 1001
    assert not (tmp_path / "runs" / "nodes.json").exists()


def test_a_damaged_register_opens_no_name(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, "north")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "nodes.json").write_text('{"bound": {"north": 3}, "banned": {}}')
    with pytest.raises(SettingsError, match="register of nodes cannot be read"):
        connect(federation, grid, 1000)


def test_a_fingerprint_is_that_of_ssh_keygen() -> None:
    """`ssh-keygen -lf` said so of the public key that belongs to the private number 1."""
    key = ec.derive_private_key(1, ec.SECP384R1()).public_key()
    ssh = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    expected = "SHA256:vnUJs0Z9d/fcfX8fr8n5mGCtID9OxLbsrPpLZ0HA7DM"
    assert fingerprint(ssh) == fingerprint(pem) == expected
    assert fingerprint(b"no key") == fingerprint(b"") == ""


# --- room, and the shape of the data --------------------------------------------------------------


def test_one_node_does_not_take_all_the_room(tmp_path: Path) -> None:
    room = {"nodes.maximum-clients": 7}  # a quarter is 1
    federation, grid = federation_of(tmp_path, "north", **room)
    connect(federation, grid, 1000)
    assert reasons(federation) == [
        "with its 2 clients it would have declared 2 clients in all; "
        "nodes.maximum-clients-per-node = 0 allows 1"
    ]
    room["nodes.maximum-clients-per-node"] = 3
    federation, grid = federation_of(tmp_path, "north", **room)
    connect(federation, grid, 1000)
    assert len(federation.members.clients()) == 2
    connect(federation, grid)
    grid.rosters[1000] = node_roster("north", "c", "d")  # other names each time it comes
    connect(federation, grid, 1000)
    assert federation.members.clients() == []
    assert "it would have declared 4" in reasons(federation)[-1]


@pytest.mark.parametrize("room", [3, 4])
def test_a_node_whose_clients_are_too_many_is_turned_away(tmp_path: Path, room: int) -> None:
    """What the server keeps of clients grows with their number, in clusters with its square."""
    changes = {"nodes.maximum-clients": room}
    federation, grid = federation_of(tmp_path, "north", "south", keys=[], **changes)
    connect(federation, grid, 1000, 1001)
    assert labels(federation) == ({"north", "south"} if room == 4 else {"north"})
    refused = ["with its 2 clients there would be 4, more than nodes.maximum-clients = 3"]
    assert reasons(federation) == ([] if room == 4 else refused)


def images(label: str, kind: str) -> NodeRoster:
    return node_roster(label, "a", inputs=(1, 8, 8), classes=(f"{kind}-1", f"{kind}-2"))


def test_the_classes_are_those_of_most_nodes_not_of_the_fastest(tmp_path: Path) -> None:
    nodes = [images("n0", "cat"), images("n1", "dog"), images("n2", "dog")]
    federation, grid = federation_of(
        tmp_path, *nodes, task="classification", method="fedavg", **{"nodes.minimum": 3}
    )
    connect(federation, grid, 1000)  # the first
    grid.connected = {1000, 1001, 1002}
    federation.members.await_nodes(grid)
    assert federation.shape.classes == ("dog-1", "dog-2")
    assert federation.members.roster.connected_labels() == ["n1", "n2"]
    assert {key.node for key in federation.members.facts} == {"n1", "n2"}
    (reason,) = reasons(federation)
    assert "with classes cat-1, cat-2; the run's are (1, 8, 8) with classes dog-1" in reason

    resumed = Federation(federation.settings, "run", "token")
    resumed.recall(federation.memory())
    connect(resumed, grid, 1000)
    assert resumed.members.roster.connected_labels() == []


def test_nodes_whose_columns_differ_are_turned_away_with_the_column(tmp_path: Path) -> None:
    known = ("temperature", "weather=fog")
    nodes = [node_roster(f"n{number}", f"c{number}", columns=known) for number in range(3)]
    lacking = node_roster("bare", "x", columns=known[:1])
    further = node_roster("more", "y", columns=(*known, "weather=sun"))
    federation, grid = federation_of(tmp_path, *nodes, lacking, further, **{"nodes.minimum": 5})
    connect(federation, grid, *range(1000, 1005))
    federation.members.await_nodes(grid)
    assert federation.shape.columns == known
    of_run = "the run's data are series with temperature, weather=fog known in advance"
    assert sorted(reasons(federation)) == [
        f"its column 'weather=sun' is not in the run's data; {of_run}",
        f"its data have no column 'weather=fog' that is known in advance; {of_run}",
    ]
    resumed = Federation(federation.settings, "run", "token")
    resumed.recall(federation.memory())
    assert resumed.shape.columns == known


def test_nodes_whose_sequences_have_another_order_of_columns_are_turned_away(
    tmp_path: Path,
) -> None:
    shape = {"inputs": (2,), "classes": ("fall", "walk")}
    columns = (("x", "y"), ("x", "y"), ("x", "y"), ("y", "x"), ("x", "z"), (), ("x", "y", "z"))
    nodes = [node_roster(f"n{n}", f"c{n}", columns=c, **shape) for n, c in enumerate(columns)]
    federation, grid = federation_of(
        tmp_path, *nodes, task="sequence-classification", method="fedavg", **{"nodes.minimum": 7}
    )
    connect(federation, grid, *range(1000, 1007))
    federation.members.await_nodes(grid)
    of_run = "the run's data are (2,) of x, y with classes fall, walk"
    assert sorted(reasons(federation)) == [
        "it names 3 of its 2 columns",
        f"its columns come in another order; data.columns = 'x,y' in its file sets it; {of_run}",
        f"its data have no column 'x'; {of_run}",
        f"its data have no column 'y'; {of_run}",
    ]


def test_nodes_with_another_pretrained_encoder_are_turned_away(tmp_path: Path) -> None:
    vectors = ("vectors of the pretrained encoder 0a",)
    shapes: list[tuple[tuple[int, ...], tuple[str, ...]]] = [
        ((512, 1, 1), vectors),
        ((512, 1, 1), vectors),
        ((512, 1, 1), ("vectors of the pretrained encoder 1b",)),
        ((3, 8, 8), ()),
        ((512, 1, 1), ()),
        ((5000, 1, 1), vectors),
    ]
    nodes = [
        node_roster(f"n{n}", f"c{n}", inputs=inputs, columns=columns, classes=("fall", "walk"))
        for n, (inputs, columns) in enumerate(shapes)
    ]
    federation, grid = federation_of(
        tmp_path, *nodes, task="classification", method="fedavg", **{"nodes.minimum": 6}
    )
    connect(federation, grid, *range(1000, 1006))
    federation.members.await_nodes(grid)
    assert federation.shape.inputs == (512, 1, 1)
    of_run = f"the run's data are (512, 1, 1) of {vectors[0]} with classes fall, walk"
    assert sorted(reasons(federation)) == [
        *[f"it does not make {vectors[0]} of its images; {of_run}"] * 2,
        "its samples are (512, 1, 1), not images of 1 or 3 channels",
        "its vectors have 5000 values, more than 4096",
    ]


def test_nodes_whose_series_have_another_step_are_turned_away(tmp_path: Path) -> None:
    nodes = [node_roster(f"n{number}", f"c{number}", step="1 month") for number in range(2)]
    weekly = node_roster("weekly", "x", step="7 days")
    federation, grid = federation_of(tmp_path, *nodes, weekly, **{"nodes.minimum": 3})
    connect(federation, grid, *range(1000, 1003))
    federation.members.await_nodes(grid)
    assert reasons(federation) == [
        "its series have a step of 7 days, but the run's have a step of 1 month"
    ]
    resumed = Federation(federation.settings, "run", "token")
    resumed.recall(federation.memory())
    assert resumed.shape.step == "1 month"


def test_where_no_kind_of_data_is_in_the_majority_nobody_decides(tmp_path: Path) -> None:
    nodes = [images("n0", "cat"), images("n1", "dog")]
    federation, grid = federation_of(
        tmp_path, *nodes, task="classification", method="fedavg", **{"nodes.minimum": 2}
    )
    with pytest.raises(FederationError, match=r"no kind is in the majority: n0: .*cat-1.*; n1: "):
        federation.members.await_nodes(grid)


def test_the_weight_of_a_client_is_bounded_by_the_median_of_what_all_declare(
    tmp_path: Path,
) -> None:
    liar = node_roster("liar", "x", "y")
    liar = replace(liar, samples=dict.fromkeys(liar.samples, 24 * 10**7))
    federation, grid = federation_of(tmp_path, "a", liar, node_roster("b", "c"))
    connect(federation, grid, 1000)
    assert federation.members.most_samples == 48  # no client has more
    connect(federation, grid, 1000, 1001, 1002)
    assert federation.members.most_samples == 5 * 48  # not what the liar says
    federation, grid = federation_of(tmp_path, "a", **{"aggregation.weight-limit": 0.0})
    connect(federation, grid, 1000)
    assert federation.members.most_samples == 0
