"""The node's disk: nothing half-written, nothing lost, no name escapes."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError

from fedproto_app.core.errors import FedProtoError
from fedproto_app.node import records
from fedproto_app.node.blocks import Block, read_block
from fedproto_app.node.memory_store import MemoryStore
from fedproto_app.node.records import ClientRecord
from fedproto_app.node.state_log import StateLog
from fedproto_app.node.store import ClientStore, file_name
from tests.node.stored import state, state_of, write_one


def test_a_state_comes_back_as_of_the_round_asked_for(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    assert state_of(store, "a", upto=99) is None
    for server_round in (1, 2, 3):
        write_one(store, "a", server_round, server_round)
    again = ClientStore(tmp_path)
    assert [state_of(again, "a", upto) for upto in (0, 1, 2, 3, 99)] == [None, 1, 2, 3, 3]


def test_clients_who_were_written_apart_are_read_together(tmp_path: Path) -> None:
    """Those of one block come as one, and each with where it stands in the question."""
    store = ClientStore(tmp_path)
    store.write_states(["a", "b", "c"], 1, {"parameters/w": torch.tensor([1.0, 2.0, 3.0])})
    store.write_states(["d", "b"], 2, {"parameters/w": torch.tensor([40.0, 20.0])})
    found = ClientStore(tmp_path).read_states(["d", "c", "nobody", "b", "a"], upto=2)
    told = {tuple(places): tensors["parameters/w"].tolist() for places, tensors in found}
    assert told == {(0, 3): [40, 20], (1, 4): [3, 1]}


@pytest.mark.parametrize("reads_before", [False, True])
@pytest.mark.parametrize("left", [0, 5, 20, -1])
def test_a_damaged_block_costs_a_round_not_its_clients(
    tmp_path: Path, left: int, reads_before: bool
) -> None:
    store = ClientStore(tmp_path)
    for server_round in (1, 2):
        store.write_states(["a", "b"], server_round, state(server_round, clients=2))
    store = ClientStore(tmp_path)
    if reads_before:
        assert state_of(store, "a", upto=2) == 2
    newest = max(tmp_path.rglob("state-*"))
    newest.write_bytes(newest.read_bytes()[:left])
    assert [state_of(store, name, upto=2) for name in ("a", "b")] == [1, 1]
    store.begin(2)
    write_one(store, "a", 2, 22)
    again = ClientStore(tmp_path)
    assert [state_of(again, name, upto=2) for name in ("a", "b")] == [22, 1]


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from fedproto_app.node.records import ClientRecord
from fedproto_app.node.store import ClientStore
store = ClientStore(Path(sys.argv[1]))
store.begin(2)
replace = os.replace
def die(source, target):
    if sys.argv[2] in str(target):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = die
store.write_shared(2, {"parameters/s": torch.full((1,), 2.0)})
store.write_states(["a", "b"], 2, {"parameters/w": torch.full((2, 2), 2.0)})
store.keep("a", ClientRecord(2, {"mse": 0.1}))
store.settle()
"""


def test_a_kept_model_that_cannot_be_read_is_not_replaced_by_an_older_one(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for server_round in (1, 2):
        store.begin(server_round)
        store.write_states(["a", "b"], server_round, state(server_round, clients=2))
    store.keep("a", ClientRecord(2, {"mse": 0.5}))
    store.settle()
    newest = max(tmp_path.glob("state-*"))
    newest.write_bytes(newest.read_bytes()[:20])
    with pytest.raises(SafetensorError, match="cannot be read"):
        ClientStore(tmp_path).read_kept("a")
    assert ClientStore(tmp_path).read_kept("b") is None


@pytest.mark.parametrize("file", ["shared-", "state-", "kept-"])
def test_a_process_killed_in_the_middle_of_a_write_leaves_the_round_before(
    tmp_path: Path, file: str
) -> None:
    store = ClientStore(tmp_path)
    store.begin(1)
    store.write_shared(1, {"parameters/s": torch.full((1,), 1.0)})
    store.write_states(["a", "b"], 1, state(1, clients=2))
    store.keep("a", ClientRecord(1, {"mse": 0.5}))
    store.settle()
    died = subprocess.run([sys.executable, "-c", KILLED, tmp_path, file], check=False)
    assert died.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("*.new"))

    again = ClientStore(tmp_path)
    again.begin(2)  # the order comes once more
    assert not list(tmp_path.glob("*.new"))
    assert [state_of(again, name, upto=1) for name in ("a", "b")] == [1, 1]
    assert again.record("a", before=2) == ClientRecord(1, {"mse": 0.5})
    kept = again.read_kept("a")
    assert kept is not None
    assert {n: v.tolist() for n, v in kept.items()} == {"parameters/s": [1], "parameters/w": [1, 1]}


def test_the_kept_model_outlives_later_rounds(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for server_round in range(1, 9):
        store.begin(server_round)
        write_one(store, "a", server_round, server_round)
        store.write_shared(server_round, {"parameters/s": torch.full((1,), float(server_round))})
        if server_round in (2, 4):
            store.keep("a", ClientRecord(server_round, {"mse": 0.5}))
        store.settle()
    again = ClientStore(tmp_path)
    kept = again.read_kept("a")
    assert kept is not None
    assert kept["parameters/w"].tolist() == [4, 4]
    assert kept["parameters/s"].tolist() == [4]
    assert again.record("a") == ClientRecord(4, {"mse": 0.5})
    kept_and_newest = [4, 6, 7, 8]  # not 2: no server goes back to where that was kept
    for kind in ("state", "shared"):
        files = tmp_path.glob(f"{kind}-*")
        assert sorted(int(one.stem.split("-")[1]) for one in files) == kept_and_newest


def test_a_kept_model_may_come_from_a_round_the_client_sat_out(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)  # FedRep: evaluated in round 5 with its head of round 3
    write_one(store, "a", 3, 3)
    store.write_shared(5, {"parameters/s": torch.full((1,), 5.0)})
    store.keep("a", ClientRecord(5, {}))
    kept = store.read_kept("a")
    assert kept is not None
    assert kept["parameters/w"].tolist() == [3, 3]
    assert kept["parameters/s"].tolist() == [5]


def test_damaged_records_fall_back_to_those_before(tmp_path: Path) -> None:
    for server_round in (1, 2):
        store = ClientStore(tmp_path)
        store.begin(server_round)
        store.keep("a", ClientRecord(server_round, {"mse": 0.5}))
        store.settle()
    first, second = sorted(tmp_path.glob("kept-*.jsonl"))
    second.write_text('{"client": ')
    assert ClientStore(tmp_path).record("a").kept_round == 1
    first.write_text("[1]")
    assert ClientStore(tmp_path).record("a").kept_round == 0


def test_records_that_could_not_be_opened_once_are_there_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without a file descriptor left must not take its clients for new ones."""
    for writer, client in enumerate("ab"):
        store = ClientStore(tmp_path, writer)
        store.begin(1)
        store.keep(client, ClientRecord(1, {"mse": 0.5}))
        store.settle()
    store = ClientStore(tmp_path)
    with monkeypatch.context() as short:
        short.setattr(records, "require_access", Mock(side_effect=FedProtoError("no more files")))
        with pytest.raises(FedProtoError, match="no more files"):
            store.record("a")
    assert [store.record(client).kept_round for client in "ab"] == [1, 1]


def test_several_processes_write_for_one_node(tmp_path: Path) -> None:
    first, second = ClientStore(tmp_path, 0), ClientStore(tmp_path, 1)
    for store, name in ((first, "a"), (second, "b")):
        store.begin(1)
        store.write_shared(1, {"parameters/s": torch.ones(1)})
        write_one(store, name, 1, ord(name))
        store.keep(name, ClientRecord(1, {"mse": 0.5}))
        store.settle()
    again = ClientStore(tmp_path)
    assert again.kept_clients() == ["a", "b"]
    assert [state_of(again, name, upto=1) for name in ("a", "b")] == [97, 98]


@pytest.mark.parametrize("moved", ["after the look", "amid the look"])
def test_what_another_process_has_moved_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    """One process copies rows of sparse blocks while another is about to read them."""
    monkeypatch.setattr("fedproto_app.node.state_log._SPARSE_BLOCKS", 1)
    store = ClientStore(tmp_path)
    store.begin(1)
    store.write_states(["a", "b", "c"], 1, state(1, clients=3))
    [first_block] = tmp_path.glob("state-000001-*")
    for server_round in (2, 3):
        store.begin(server_round)
        store.write_states(["a", "c"], server_round, state(server_round, clients=2))
    reader, mover = ClientStore(tmp_path, 1), ClientStore(tmp_path, 0)
    models = StateLog(tmp_path, 2)
    assert models.read_model("b", 4)["parameters/w"].tolist() == [1, 1]
    mover.begin(4)

    def move() -> None:  # now of the first round b's is needed
        mover.write_states(["a", "c"], 4, state(4, clients=2))
        assert not first_block.exists()

    if moved == "after the look":
        assert state_of(reader, "a", upto=3) == 3
        move()
    else:
        assert state_of(mover, "a", upto=3) == 3

        def moved_first(path: Path) -> Block:
            monkeypatch.setattr("fedproto_app.node.state_log.read_block", read_block)
            move()
            return read_block(path)

        monkeypatch.setattr("fedproto_app.node.state_log.read_block", moved_first)
    assert state_of(reader, "b", upto=4) == 1
    assert models.read_model("b", 4)["parameters/w"].tolist() == [1, 1]
    reader.begin(4)
    write_one(reader, "b", 4, 44)
    again = ClientStore(tmp_path)
    assert [state_of(again, name, upto=4) for name in "abc"] == [4, 44, 4]
    assert [state_of(again, name, upto=3) for name in "abc"] == [3, 1, 3]


def test_a_server_that_goes_back_finds_what_was_before(tmp_path: Path) -> None:
    """Rounds 1 to 6, kept 2, 4 and 5; then 5 and 6 are done anew, and 5 is no longer good."""
    store = ClientStore(tmp_path)
    for server_round in range(1, 7):
        store.begin(server_round)
        write_one(store, "a", server_round, server_round)
        store.write_shared(server_round, {"parameters/s": torch.full((1,), float(server_round))})
        if server_round in (2, 4, 5):
            store.keep("a", ClientRecord(server_round, {"mse": 1 / server_round}))
        store.settle()

    again = ClientStore(tmp_path)
    again.begin(5)
    assert state_of(again, "a", upto=4) == 4
    write_one(again, "a", 5, 50)
    again.write_shared(5, {"parameters/s": torch.full((1,), 50.0)})
    assert again.record("a", before=5) == ClientRecord(4, {"mse": 0.25})
    again.settle()
    assert state_of(again, "a", upto=99) == 50  # not that of the old round 6
    assert ClientStore(tmp_path).record("a") == ClientRecord(4, {"mse": 0.25})
    kept = ClientStore(tmp_path).read_kept("a")
    assert kept is not None
    assert kept["parameters/w"].tolist() == [4, 4]
    assert kept["parameters/s"].tolist() == [4]


def test_a_round_done_anew_replaces_its_kept_model(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        store = ClientStore(tmp_path)
        store.begin(1)
        store.write_shared(1, {"parameters/s": torch.full((1,), value)})
        assert store.record("a", before=1) == ClientRecord()
        store.keep("a", ClientRecord(1, {"mse": value}))
        store.settle()
    kept = ClientStore(tmp_path).read_kept("a")
    assert kept is not None
    assert kept["parameters/s"].tolist() == [2]
    assert not list(tmp_path.rglob("*.new"))


def test_a_full_disk_is_told_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ClientStore(tmp_path)
    write_one(store, "a", 1, 1)

    def full(tensors: object, path: Path, metadata: Mapping[str, str]) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr("fedproto_app.node.blocks.save_file", full)
        with pytest.raises(OSError, match="No space left on device"):
            write_one(store, "a", 2, 2)
    assert not list(tmp_path.rglob("*.new"))
    assert state_of(store, "a", upto=99) == 1


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/passwd", "..", "a/b", "a\\b", "é", "x" * 400, ""]
)
def test_no_client_name_leaves_the_folder(tmp_path: Path, name: str) -> None:
    inside = (tmp_path / file_name(name)).resolve()
    assert inside.parent == tmp_path.resolve()
    assert len(file_name(name)) < 200


def test_long_names_with_equal_beginnings_stay_apart() -> None:
    assert file_name("x" * 300 + "a") != file_name("x" * 300 + "b")


def test_the_encoder_kept_last_comes_back(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    assert store.read_encoder() == {}
    store.write_encoder({"encoder.a": torch.ones(2), "encoder.b": torch.ones(1)})
    store.write_encoder({"encoder.a": torch.full((2, 3), 5.0).T})
    found = ClientStore(tmp_path).read_encoder()
    assert set(found) == {"encoder.a"}
    assert torch.equal(found["encoder.a"], torch.full((3, 2), 5.0))


def test_vectors_belong_to_a_client_and_an_encoder(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    assert store.read_vectors("a", "first") is None
    store.write_vectors("a", "first", torch.ones(2, 3))
    store.write_vectors("b", "first", torch.zeros(1, 3))
    again = ClientStore(tmp_path)
    found = again.read_vectors("a", "first")
    assert found is not None
    assert torch.equal(found, torch.ones(2, 3))
    assert again.read_vectors("a", "second") is None
    again.write_vectors("a", "second", torch.zeros(2, 3))
    assert again.read_vectors("a", "first") is None  # of one encoder alone
    assert again.read_vectors("b", "first") is not None


def test_damaged_vectors_and_encoders_are_as_good_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ClientStore(tmp_path)
    store.write_encoder({"encoder.a": torch.ones(2)})
    store.write_vectors("a", "first", torch.ones(2, 3))
    for path in tmp_path.rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:20])
    assert store.read_encoder() == {}
    assert store.read_vectors("a", "first") is None
    for name in ("encoder", "vectors"):
        assert f"{name}.safetensors is damaged" in caplog.text


def test_settings_are_written_once(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.write_settings({"task": "forecasting", "data": {"period": 24}})
    store.write_settings({"task": "classification"})
    assert tomllib.loads((tmp_path / "settings.toml").read_text()) == {
        "task": "forecasting",
        "data": {"period": 24},
    }
    assert not list(tmp_path.glob("*.new"))


def test_who_has_a_kept_model_on_which_scale(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    scale = {"mean": 1 / 3, "std": 1e-17}
    store.keep("b", ClientRecord(1, {"mse": 1.0}, scale))
    store.keep("a", ClientRecord(3, {"mse": 1.0}))
    store.record("never", before=1)
    store.settle()
    again = ClientStore(tmp_path)
    assert again.kept_clients() == ["a", "b"]
    assert again.record("b").scale == scale  # to the last bit


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_shared_model_of_a_round_can_be_read_in_that_round(
    tmp_path: Path, in_memory: bool
) -> None:
    store = MemoryStore(tmp_path, limit=10**6) if in_memory else ClientStore(tmp_path)
    for server_round in (1, 2):
        store.write_shared(server_round, {"parameters/w": torch.full((2,), float(server_round))})
    assert store.read_shared(2)["parameters/w"].tolist() == [2, 2]
    with pytest.raises(FedProtoError, match="the shared model of round 3 is not here any more"):
        store.read_shared(3)


def test_state_of_an_earlier_version_is_not_lost_silently(tmp_path: Path) -> None:
    (tmp_path / "c-harbour").mkdir()
    (tmp_path / "c-harbour" / "vectors.safetensors").touch()
    ClientStore(tmp_path).begin(2)
    (tmp_path / "c-harbour" / "state-000001.safetensors").touch()
    with pytest.raises(FedProtoError, match="holds state of an earlier version"):
        ClientStore(tmp_path).begin(2)
