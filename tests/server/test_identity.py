"""Names and keys: a hostile node comes with the name of another, before, beside and after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.node_pb2 import NodeInfo

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.node import orders
from fedproto_app.server import membership
from fedproto_app.server.federation import Federation
from fedproto_app.server.node_register import NodeRegister, fingerprint
from fedproto_app.settings import Settings
from fedproto_app.settings.paths import OUTPUT_ROOT
from tests.local_grid import LocalGrid, digits_settings, small_settings
from tests.server.test_membership import csv_node, wide_csv


def public_key() -> bytes:
    """As Flower tells the ServerApp of it."""
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


KEYS = [public_key() for _ in range(3)]


class KeyedGrid(LocalGrid):
    """Deployed nodes: each has a key, and by its id perhaps a name that it is registered under."""

    def __init__(
        self,
        settings: Settings,
        configs: list[dict[str, Any]],
        registered_names: Mapping[int, str] | None = None,
        keys: list[bytes] = KEYS,
    ) -> None:
        super().__init__(settings, configs)
        self.registered_names, self.keys = dict(registered_names or {}), keys

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(
                node_id=i, public_key=self.keys[i - 1000], name=self.registered_names.get(i, "")
            )
            for i in self.get_node_ids()
        ]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "ASK_AGAIN_AFTER", 0.0)


def two(
    tmp_path: Path, *says: str, registered_names: Mapping[int, str] | None = None, **changes: Any
) -> tuple[Federation, KeyedGrid]:
    """Nodes 1000, 1001, … that call themselves so; a server that waits for one of them."""
    wide_csv(tmp_path, "a", "b")
    settings = small_settings(tmp_path, **{"nodes.start-deadline": 0.3, **changes})
    grid = KeyedGrid(settings, [csv_node(tmp_path, name) for name in says], registered_names)
    return Federation(settings, "run", "token"), grid


def connect(federation: Federation, grid: KeyedGrid, *nodes: int) -> None:
    """Connect these nodes alone, and let the server refresh its members twice."""
    grid.connected = set(nodes)
    for _ in range(2):
        federation.members.refresh(grid)


def reasons(federation: Federation) -> list[str]:
    return [refusal.reason for refusal in federation.history.log.refused]


def bound(tmp_path: Path) -> dict[str, Any]:
    bindings: dict[str, Any] = json.loads((tmp_path / "runs" / "nodes.json").read_text())["bound"]
    return bindings


def test_a_name_stays_its_keys_while_its_node_is_away(tmp_path: Path) -> None:
    federation, grid = two(tmp_path, "north", "north")
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
    federation, grid = two(tmp_path, "north", "north")
    connect(federation, grid, 1000)
    elsewhere = {"output.dir": str(tmp_path / "runs" / "mine"), "output.name": "other"}
    later, grid = two(tmp_path, "north", "north", **elsewhere)
    later.recall(federation.memory())  # a resumed run, too
    connect(later, grid, 1001)
    assert later.members.clients() == []
    assert bound(tmp_path)["north"]["key"] == fingerprint(KEYS[0])
    assert bound(tmp_path)["north"]["clients"] == 2
    connect(later, grid, 1000)
    assert len(later.members.clients()) == 2


def test_a_key_goes_by_one_name(tmp_path: Path) -> None:
    """Or it would take the names of all that are still to come."""
    federation, grid = two(tmp_path, "north")
    connect(federation, grid, 1000)
    connect(federation, grid)
    grid.contexts[1000].node_config["node-name"] = "south"
    connect(federation, grid, 1000)
    assert "belongs to the name 'north', and it says 'south'" in reasons(federation)[-1]
    assert list(bound(tmp_path)) == ["north"]
    assert federation.members.clients() == []


def test_the_operators_name_is_stronger_than_what_a_node_says(tmp_path: Path) -> None:
    federation, grid = two(tmp_path, "north", registered_names={1000: "south"})
    connect(federation, grid, 1000)
    assert reasons(federation) == [
        "it calls itself 'north', but its key is registered under the name 'south'"
    ]
    assert federation.history.log.refused[0].node == "south"
    assert federation.members.clients() == []


def test_a_site_that_says_nothing_goes_by_the_name_it_is_registered_under(tmp_path: Path) -> None:
    federation, grid = two(tmp_path, "", registered_names={1000: "north"})
    del grid.contexts[1000].node_config["node-name"]
    connect(federation, grid, 1000)
    assert federation.members.roster.connected_labels() == ["north"]


def test_who_came_first_with_a_registered_name_loses_it(tmp_path: Path) -> None:
    """Its key was registered without one."""
    federation, grid = two(tmp_path, "north", "north", registered_names={1001: "north"})
    connect(federation, grid, 1000)
    assert federation.members.node_id("north") == 1000
    connect(federation, grid, 1000, 1001)
    assert federation.members.node_id("north") == 1001
    assert "another node's, whose key is registered under it" in reasons(federation)[-1]
    later, grid = two(tmp_path, "north", "north", registered_names={1001: "north"})
    connect(later, grid, 1000)  # and while the true one is away
    assert later.members.clients() == []


def test_a_node_does_not_take_the_number_of_one_without_a_name(tmp_path: Path) -> None:
    federation, grid = two(tmp_path, "1001", "")
    del grid.contexts[1001].node_config["node-name"]
    connect(federation, grid, 1000, 1001)
    assert federation.members.node_id("1001") == 1001
    assert "is another node's" in reasons(federation)[-1]


def test_a_rotated_key_takes_the_place_when_the_old_one_is_gone(tmp_path: Path) -> None:
    """Two keys are registered under one name until the operator revokes the old one."""
    federation, grid = two(
        tmp_path, "north", "north", registered_names={1000: "north", 1001: "north"}
    )
    connect(federation, grid, 1000)
    connect(federation, grid, 1000, 1001)
    assert reasons(federation) == ["its name 'north' belongs to another connected node"]
    assert federation.members.node_id("north") == 1000
    connect(federation, grid, 1001)
    assert federation.members.node_id("north") == 1001
    assert bound(tmp_path)["north"]["key"] == fingerprint(KEYS[1])


def test_the_operator_releases_a_name_while_the_server_runs(tmp_path: Path) -> None:
    federation, grid = two(tmp_path, "north", "north")
    connect(federation, grid, 1000)
    connect(federation, grid, 1001)
    with NodeRegister(tmp_path / "runs" / "nodes.json").changing() as names:
        del names.bound["north"]
    connect(federation, grid, 1001)
    assert federation.members.node_id("north") == 1001
    connect(federation, grid, 1000, 1001)  # the old key is a stranger now
    assert federation.members.node_id("north") == 1001
    assert "belongs to the key" in reasons(federation)[-1]


@pytest.mark.parametrize("registered_names", [{}, {1000: "north"}])
def test_a_banned_node_is_out_at_once_by_its_name_and_by_its_key(
    tmp_path: Path, registered_names: dict[int, str]
) -> None:
    federation, grid = two(tmp_path, "north", registered_names=registered_names)
    connect(federation, grid, 1000)
    with NodeRegister(tmp_path / "runs" / "nodes.json").changing() as names:
        names.banned["north"] = [fingerprint(KEYS[0])]
        del names.bound["north"]
    connect(federation, grid, 1000)
    assert federation.members.clients() == []
    assert "'north' is banned from this server" in reasons(federation)[-1]
    grid.contexts[1000].node_config["node-name"] = "south"
    if registered_names:
        grid.registered_names = {1000: "south"}
    connect(federation, grid, 1000)
    assert federation.members.clients() == []


def test_nodes_without_keys_of_their_own_go_by_what_they_say(tmp_path: Path) -> None:
    federation, grid = two(tmp_path, "north", "north", **{"nodes.bind-names": False})
    connect(federation, grid, 1000)
    connect(federation, grid, 1001)
    assert federation.members.node_id("north") == 1001
    assert not (tmp_path / "runs" / "nodes.json").exists()


def test_a_simulation_leaves_no_register(tmp_path: Path) -> None:
    federation, grid = two(tmp_path, "north", "north")
    grid.keys = [b"\x93" * 32] * 2  # what Flower's own simulation has for keys
    connect(federation, grid, 1000)
    connect(federation, grid, 1001)
    assert federation.members.node_id("north") == 1001
    assert not (tmp_path / "runs" / "nodes.json").exists()


def test_a_damaged_register_opens_no_name(tmp_path: Path) -> None:
    federation, grid = two(tmp_path, "north")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "nodes.json").write_text('{"bound": {"north": 3}, "banned": {}}')
    with pytest.raises(SettingsError, match="register of nodes cannot be read"):
        connect(federation, grid, 1000)


def test_one_node_does_not_take_all_the_room(tmp_path: Path) -> None:
    federation, grid = two(tmp_path, "north", **{"nodes.maximum-clients": 7})  # a quarter is 1
    connect(federation, grid, 1000)
    assert reasons(federation) == [
        "with its 2 clients it would have brought 2, more than nodes.maximum-clients-per-node = 0 "
        "allows: 1"
    ]
    roomier = {"nodes.maximum-clients": 7, "nodes.maximum-clients-per-node": 3}
    federation, grid = two(tmp_path, "north", **roomier)
    connect(federation, grid, 1000)
    assert len(federation.members.clients()) == 2
    connect(federation, grid)
    wide_csv(tmp_path, "c", "d")  # other names each time it comes
    grid.contexts[1000].node_config["data-path"] = str((tmp_path / "site.csv").resolve())
    orders._cached_shard.cache_clear()  # a real node is a new process
    connect(federation, grid, 1000)
    assert federation.members.clients() == []
    assert "it would have brought 4" in reasons(federation)[-1]


def image_nodes(tmp_path: Path, *kinds: str) -> list[dict[str, Any]]:
    for kind in set(kinds):
        pixels = np.zeros((80, 8, 8), dtype=np.uint8)
        labels = np.array([f"{kind}-1", f"{kind}-2"] * 40)
        np.savez(
            tmp_path / f"{kind}.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels
        )
    return [
        {
            "data-source": "image-npz",
            "data-path": str(tmp_path / f"{kind}.npz"),
            "node-name": f"n{row}",
            "state-dir": str(tmp_path / "state"),
        }
        for row, kind in enumerate(kinds)
    ]


def test_the_classes_are_those_of_most_nodes_not_of_the_fastest(tmp_path: Path) -> None:
    settings = digits_settings(tmp_path, method="fedavg", **{"nodes.minimum": 3})
    grid = KeyedGrid(settings, image_nodes(tmp_path, "cat", "dog", "dog"))
    federation = Federation(settings, "run", "token")
    connect(federation, grid, 1000)  # the first
    grid.connected = {1000, 1001, 1002}
    federation.members.await_nodes(grid)
    assert federation.shape.classes == ("dog-1", "dog-2")
    assert federation.members.roster.connected_labels() == ["n1", "n2"]
    assert {key.node for key in federation.members.facts} == {"n1", "n2"}
    (reason,) = reasons(federation)
    assert "with classes cat-1, cat-2; the run's are (1, 8, 8) with classes dog-1" in reason

    resumed = Federation(settings, "run", "token")
    resumed.recall(federation.memory())
    connect(resumed, grid, 1000)
    assert resumed.members.roster.connected_labels() == []


def test_where_no_kind_of_data_is_in_the_majority_nobody_decides(tmp_path: Path) -> None:
    settings = digits_settings(
        tmp_path, method="fedavg", **{"nodes.minimum": 2, "nodes.start-deadline": 0.3}
    )
    grid = KeyedGrid(settings, image_nodes(tmp_path, "cat", "dog"))
    with pytest.raises(FederationError, match=r"no kind is in the majority: n0: .*cat-1.*; n1: "):
        Federation(settings, "run", "token").members.await_nodes(grid)


def test_a_fingerprint_is_that_of_ssh_keygen() -> None:
    """`ssh-keygen -lf` said so of the public key that belongs to the private number 1."""
    key = ec.derive_private_key(1, ec.SECP384R1()).public_key()
    ssh = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    expected = "SHA256:vnUJs0Z9d/fcfX8fr8n5mGCtID9OxLbsrPpLZ0HA7DM"
    assert fingerprint(ssh) == fingerprint(pem) == expected
    assert fingerprint(b"no key") == fingerprint(b"") == ""
