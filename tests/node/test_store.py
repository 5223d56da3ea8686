"""The node's disk: nothing half-written, nothing lost, no name escapes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from fedproto_app.errors import FedProtoError
from fedproto_app.node.memory_store import MemoryStore
from fedproto_app.node.store import ClientRecord, ClientStore, file_name


def state(value: float) -> dict[str, torch.Tensor]:
    return {"parameters/w": torch.full((2,), value)}


def test_a_state_comes_back_as_of_the_round_asked_for(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    assert store.read_state("a", upto=99) is None
    for server_round in (1, 2, 3):
        store.write_state("a", server_round, state(server_round))
    again = ClientStore(tmp_path)
    latest, before = again.read_state("a", upto=99), again.read_state("a", upto=2)
    assert latest is not None
    assert before is not None
    assert latest["parameters/w"].tolist() == [3, 3]
    assert before["parameters/w"].tolist() == [2, 2]
    assert again.read_state("a", upto=0) is None


def test_a_damaged_state_costs_a_round_not_the_client(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.write_state("a", 1, state(1))
    store.write_state("a", 2, state(2))
    newest = max(tmp_path.rglob("state-*"))
    newest.write_bytes(newest.read_bytes()[:20])
    found = store.read_state("a", upto=2)
    assert found is not None
    assert found["parameters/w"].tolist() == [1, 1]


def test_the_kept_model_outlives_later_rounds(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for server_round in range(1, 8):
        store.write_state("a", server_round, state(server_round))
        store.write_shared(server_round, {"parameters/s": torch.full((1,), float(server_round))})
        if server_round in (2, 4):
            store.keep("a", ClientRecord(server_round, {"mse": 0.5}))
    again = ClientStore(tmp_path)
    kept = again.read_kept("a")
    assert kept is not None
    assert kept["parameters/w"].tolist() == [4, 4]
    assert kept["parameters/s"].tolist() == [4]
    assert again.record("a") == ClientRecord(4, {"mse": 0.5})
    kept_and_newest = [2, 4, 5, 6, 7]  # 2: kept before 4
    assert sorted(int(path.name[6:12]) for path in tmp_path.rglob("state-*")) == kept_and_newest


def test_a_kept_model_may_come_from_a_round_the_client_sat_out(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)  # FedRep: evaluated in round 5 with its head of round 3
    store.write_state("a", 3, state(3))
    store.write_shared(5, {"parameters/s": torch.full((1,), 5.0)})
    store.keep("a", ClientRecord(5, {}))
    kept = store.read_kept("a")
    assert kept is not None
    assert kept["parameters/w"].tolist() == [3, 3]
    assert kept["parameters/s"].tolist() == [5]


def test_damaged_records_fall_back_to_those_before(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for server_round in (1, 2):
        store.keep("a", ClientRecord(server_round, {"mse": 0.5}))
    first, second = sorted(tmp_path.rglob("kept-*.json"))
    second.write_text('{"client": ')
    assert store.record("a").kept_round == 1
    first.write_text("[1]")
    assert store.record("a").kept_round == 0


def test_noting_a_client_costs_the_same_however_many_there_are(tmp_path: Path) -> None:
    """Each record is a file of its own: nothing of the other clients is written or read."""
    store = ClientStore(tmp_path)
    store.keep("a", ClientRecord(1, {"mse": 0.5}))
    for number in range(20):
        store.keep(f"other {number}", ClientRecord(1, {"mse": 0.5}))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    store.keep("a", ClientRecord(2, {"mse": 0.4}))
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert after.keys() - before.keys() == {tmp_path / "c-a" / "kept-000002.json"}
    assert all(after[path] == time for path, time in before.items())


def test_several_processes_write_for_one_node(tmp_path: Path) -> None:
    first, second = ClientStore(tmp_path, 0), ClientStore(tmp_path, 1)
    for store, name in ((first, "a"), (second, "b")):
        store.write_shared(1, {"parameters/s": torch.ones(1)})
        store.keep(name, ClientRecord(1, {"mse": 0.5}))
    assert ClientStore(tmp_path).kept_clients() == ["a", "b"]


def test_a_server_that_goes_back_finds_what_was_before(tmp_path: Path) -> None:
    """Rounds 1 to 6, kept 2, 4 and 5; then 5 and 6 are done anew, and 5 is no longer good."""
    store = ClientStore(tmp_path)
    for server_round in range(1, 7):
        store.write_state("a", server_round, state(server_round))
        store.write_shared(server_round, {"parameters/s": torch.full((1,), float(server_round))})
        if server_round in (2, 4, 5):
            store.keep("a", ClientRecord(server_round, {"mse": 1 / server_round}))

    again = ClientStore(tmp_path)
    before = again.read_state("a", upto=4)
    assert before is not None
    assert before["parameters/w"].tolist() == [4, 4]
    again.write_state("a", 5, state(50))
    again.write_shared(5, {"parameters/s": torch.full((1,), 50.0)})
    assert again.record("a", before=5) == ClientRecord(4, {"mse": 0.25})
    newest = again.read_state("a", upto=99)
    assert newest is not None
    assert newest["parameters/w"].tolist() == [50, 50]  # not that of the old round 6
    kept = ClientStore(tmp_path).read_kept("a")
    assert kept is not None
    assert kept["parameters/w"].tolist() == [4, 4]
    assert kept["parameters/s"].tolist() == [4]


def test_a_round_done_anew_replaces_its_kept_model(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for value in (1.0, 2.0):
        store.write_shared(1, {"parameters/s": torch.full((1,), value)})
        assert store.record("a", before=1) == ClientRecord()
        store.keep("a", ClientRecord(1, {"mse": value}))
    kept = store.read_kept("a")
    assert kept is not None
    assert kept["parameters/s"].tolist() == [2]
    assert not list(tmp_path.rglob("*.new"))


def test_a_full_disk_is_told_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ClientStore(tmp_path)
    store.write_state("a", 1, state(1))

    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr("fedproto_app.node.store.save_file", full)
        with pytest.raises(OSError, match="No space left on device"):
            store.write_state("a", 2, state(2))
    assert not list(tmp_path.rglob("*.new"))
    found = store.read_state("a", upto=99)
    assert found is not None
    assert found["parameters/w"].tolist() == [1, 1]


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
    again = ClientStore(tmp_path)
    assert again.kept_clients() == ["a", "b"]
    assert again.record("b").scale == scale  # to the last bit


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_shared_model_of_a_round_can_be_read_in_that_round(
    tmp_path: Path, in_memory: bool
) -> None:
    store = MemoryStore(tmp_path, limit=10**6) if in_memory else ClientStore(tmp_path)
    for server_round in (1, 2):
        store.write_shared(server_round, state(server_round))
    assert store.read_shared(2)["parameters/w"].tolist() == [2, 2]
    with pytest.raises(FedProtoError, match="the shared model of round 3 is not here any more"):
        store.read_shared(3)
