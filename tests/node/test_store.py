"""The node's store: nothing half-written, nothing lost, no file outside its folder."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import sqlite3
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from fedproto_app.core.errors import FedProtoError
from fedproto_app.data.shape import DataShape
from fedproto_app.node import state_file
from fedproto_app.node.state_file import Tables
from fedproto_app.node.store import ClientRecord, ClientStore, file_name
from tests.node.stored import (
    changed,
    kept_numbers,
    rounds_in,
    shared,
    state,
    state_of,
    train_rounds,
    write_one,
)


def test_clients_that_were_written_apart_are_read_together(tmp_path: Path) -> None:
    """Each comes with its position in the request."""
    store = ClientStore(tmp_path)
    store.write_states(["a", "b", "c"], 1, {"parameters/w": torch.tensor([1.0, 2.0, 3.0])})
    store.write_states(["d", "b"], 2, {"parameters/w": torch.tensor([40.0, 20.0])})
    store.settle()
    request = ["d", "c", "nobody", "b", "a"]
    [(places, tensors)] = ClientStore(tmp_path).read_states(request, upto=2)
    assert (places, tensors["parameters/w"].tolist()) == ([0, 1, 3, 4], [40, 3, 20, 1])


def test_every_dtype_and_shape_comes_back(tmp_path: Path) -> None:
    """Clients of different layouts come apart. A blob is a whole safetensors file."""
    wide = {
        "parameters/w": torch.randn(3, 2, 5)[:, :, 1:4],
        "parameters/half": torch.ones(3, 1, dtype=torch.bfloat16),
        "memory/flag": torch.tensor([True, False, True]),
        "memory/count": torch.tensor([1, 2, 3]),
        "steps/none": torch.zeros(3, 0),
    }
    store = ClientStore(tmp_path)
    store.write_states(["a", "b", "c"], 1, wide)
    store.write_states(["d"], 1, state(4))
    store.settle()
    wide_states, narrow_states = ClientStore(tmp_path).read_states(["c", "d", "b"], upto=1)
    assert (wide_states.places, narrow_states.places) == ([0, 2], [1])
    for name, value in wide.items():
        assert torch.equal(wide_states.tensors[name], value[[2, 1]])
    [(blob,)] = changed(tmp_path, "SELECT tensors FROM models WHERE client = 'c'")
    assert torch.equal(load(blob)["parameters/w"], wide["parameters/w"][2])  # type: ignore[arg-type]


# --- killed, torn, foreign ------------------------------------------------------------------------

# One process that imports, and forks for each of these tests.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


def die_in_round_2(folder: Path, method: str, calls: int) -> None:
    """Write a round's states, and be killed after so many calls of the method."""
    done, call_numbers = getattr(Tables, method), itertools.count(1)

    def die(*arguments: Any) -> None:
        done(*arguments)
        if next(call_numbers) == calls:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(Tables, method, die)
    store = ClientStore(folder)
    store.begin(2)
    store.write_states(["a", "b"], 2, state(2, clients=2))
    store.write_states(["c"], 2, state(2))
    store.keep("a", ClientRecord(2, {"mse": 0.1}))
    store.settle()


@pytest.mark.parametrize(
    ("method", "call"), [("put_states", 1), ("put_states", 2), ("drop", 4), ("put_records", 1)]
)
def test_a_process_killed_in_a_transaction_leaves_the_round_before(
    tmp_path: Path, method: str, call: int
) -> None:
    store = ClientStore(tmp_path)
    store.begin(1)
    store.write_states(["a", "b", "c"], 1, state(1, clients=3))
    store.keep("a", ClientRecord(1, {"mse": 0.5}))
    store.settle()
    process = PROCESSES.Process(target=die_in_round_2, args=(tmp_path, method, call))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    reopened = ClientStore(tmp_path)
    reopened.begin(2)  # the order comes once more
    assert [state_of(reopened, name, upto=2) for name in "abc"] == [1, 1, 1]
    assert reopened.record("a", before=2) == ClientRecord(1, {"mse": 0.5})


def write_rounds(folder: Path, clients: str, rounds: range) -> None:
    for server_round in rounds:
        store = ClientStore(folder)
        store.begin(server_round)
        for client in clients:
            store.write_states([client], server_round, state(server_round))
            store.record(client, before=server_round)
            store.keep(client, ClientRecord(server_round, {"mse": 1.0}))
        store.settle()


def test_killed_at_any_moment_a_node_has_what_was_committed(tmp_path: Path) -> None:
    """All clients of a node stand at the same round, which never falls."""
    newest = 0
    for wait in (0.0, 0.013, 0.029, 0.051):
        arguments = (tmp_path, "abc", range(newest + 1, 10**6))
        process = PROCESSES.Process(target=write_rounds, args=arguments)
        process.start()
        assert process.pid
        while max(rounds_of(tmp_path, "abc")) <= newest:
            time.sleep(0.01)
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        rounds = rounds_of(tmp_path, "abc")
        assert len(set(rounds)) == 1
        assert rounds[0] > newest
        newest = rounds[0]
        store = ClientStore(tmp_path)
        assert [state_of(store, name, upto=newest + 9) for name in "abc"] == [newest] * 3


def rounds_of(folder: Path, clients: str) -> list[int]:
    store = ClientStore(folder)
    return [store.record(client).kept_round for client in clients]


def test_several_processes_write_for_one_node_while_another_reads(tmp_path: Path) -> None:
    processes = [
        PROCESSES.Process(target=write_rounds, args=(tmp_path, clients, range(1, 21)))
        for clients in ("ab", "cd", "ef")
    ]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        for client in "ace":
            store = ClientStore(tmp_path)
            if store.record(client).kept_round:
                model = store.read_kept(client)  # a later round's, if that was written since
                assert model is not None
                assert model["parameters/w"].tolist() == [store.record(client).kept_round] * 2
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert rounds_of(tmp_path, "abcdef") == [20] * 6
    assert rounds_in(tmp_path, "training", "d") == [18, 19, 20]


@pytest.mark.parametrize("size", [100, 5000, 20000, -16384])
def test_a_torn_file_is_refused_in_one_line(tmp_path: Path, size: int) -> None:
    write_one(ClientStore(tmp_path), "a", 1, 1)
    file = tmp_path / "state.sqlite"
    file.write_bytes(file.read_bytes()[:size])
    store = ClientStore(tmp_path)
    for use in (lambda: state_of(store, "a", 1), lambda: write_one(store, "a", 2, 2)):
        with pytest.raises(
            FedProtoError, match=r"^\S*state\.sqlite: is damaged.* clients start anew$"
        ):
            use()


def test_a_damaged_blob_is_refused_in_one_line(tmp_path: Path) -> None:
    write_one(ClientStore(tmp_path), "a", 1, 1)
    write_one(ClientStore(tmp_path), "b", 1, 2)
    shorter = "UPDATE models SET tensors = substr(tensors, 1, length(tensors) - 4) WHERE client = ?"
    for client in "ba":
        changed(tmp_path, shorter, client)
        with pytest.raises(FedProtoError, match=r"^\S*state\.sqlite: is damaged"):
            ClientStore(tmp_path).read_states(["a", "b"], 1)


def test_foreign_files_and_other_formats_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.sqlite"
    file.write_text("These are somebody's notes. " * 100)
    store = ClientStore(tmp_path)
    with pytest.raises(FedProtoError, match=r"state\.sqlite: is damaged or of another program"):
        write_one(store, "a", 1, 1)
    assert file.read_text().startswith("These are somebody's notes.")
    file.unlink()
    changed(tmp_path, "CREATE TABLE notes (text)")
    with pytest.raises(FedProtoError, match=r"state\.sqlite: is the database of another program"):
        write_one(store, "a", 1, 1)
    file.unlink()
    write_one(ClientStore(tmp_path), "a", 1, 1)
    changed(tmp_path, "PRAGMA user_version = 7")
    with pytest.raises(FedProtoError, match=r"has format 7, but this version .* reads 1;"):
        state_of(ClientStore(tmp_path), "a", 1)


def test_a_lock_that_cannot_be_had_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens on a network disk without locks."""
    write_one(ClientStore(tmp_path), "a", 1, 1)
    monkeypatch.setattr("fedproto_app.node.state_file._LOCK_SECONDS", 0.05)
    with sqlite3.connect(tmp_path / "state.sqlite") as holder:
        holder.execute("BEGIN EXCLUSIVE")
        for use in (lambda s: state_of(s, "a", 1), lambda s: write_one(s, "a", 2, 2)):
            with pytest.raises(FedProtoError, match=r"could not be locked .* network disk"):
                use(ClientStore(tmp_path))
    assert state_of(ClientStore(tmp_path), "a", 1) == 1


def test_files_that_cannot_be_opened_just_now_are_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_one(ClientStore(tmp_path), "a", 1, 1)
    store = ClientStore(tmp_path)
    with monkeypatch.context() as context:
        context.setattr(sqlite3, "connect", unopened)
        with pytest.raises(FedProtoError, match="cannot be read or written: unable to open"):
            store.record("a")
    assert state_of(store, "a", 1) == 1


def unopened(*_: object, **__: object) -> None:
    raise sqlite3.OperationalError("unable to open database file")


def test_a_file_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    """As `fedproto forecast` from a backup."""
    write_one(ClientStore(tmp_path / "node"), "a", 1, 1)
    shutil.copytree(tmp_path / "node", tmp_path / "copy")
    (tmp_path / "copy" / "state.sqlite").chmod(0o444)
    assert state_of(ClientStore(tmp_path / "copy"), "a", 1) == 1


# --- which rounds stay ----------------------------------------------------------------------------


def test_the_kept_model_outlives_later_rounds(tmp_path: Path) -> None:
    train_rounds(ClientStore(tmp_path), range(1, 9), kept={2: 0.5, 4: 0.5})
    reopened = ClientStore(tmp_path)
    assert kept_numbers(reopened) == (4, 4)
    assert reopened.record("a") == ClientRecord(4, {"mse": 0.5})
    assert rounds_in(tmp_path, "training") == [6, 7, 8]
    for table in ("models", "shared"):  # not 2: no server goes back to where that was kept
        assert rounds_in(tmp_path, table) == [4, 6, 7, 8]


@pytest.mark.parametrize(
    ("upto", "lines"), [(0, []), (4, []), (3, ["clients=1 first=a round=3 node_round=6"])]
)
def test_a_state_that_an_old_backup_of_the_server_lost_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, upto: int, lines: list[str]
) -> None:
    """States of three rounds are kept: rounds 4, 5 and 6. A new client is nothing to name."""
    store = ClientStore(tmp_path)
    for server_round in range(1, 7):
        store.begin(server_round)
        write_one(store, "a", server_round, server_round)
    ClientStore(tmp_path).read_states(["a", "new"], upto)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"event=state-lost {line}" for line in lines]


def test_a_round_done_anew_replaces_its_kept_model(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        store = ClientStore(tmp_path)
        store.begin(1)
        store.write_shared(1, shared(value))
        assert store.record("a", before=1) == ClientRecord()
        store.keep("a", ClientRecord(1, {"mse": value}))
        store.settle()
    assert kept_numbers(ClientStore(tmp_path)) == (0, 2)
    assert not list(tmp_path.rglob("*.new"))


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
    assert store.read_first_phase() == {}
    store.write_first_phase({"encoder.a": torch.ones(2), "encoder.b": torch.ones(1)})
    store.write_first_phase({"encoder.a": torch.full((2, 3), 5.0).T})
    encoder = ClientStore(tmp_path).read_first_phase()
    assert set(encoder) == {"encoder.a"}
    assert torch.equal(encoder["encoder.a"], torch.full((3, 2), 5.0))


def test_settings_are_written_once(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    shape = DataShape((2,), ("low", "high"), ("x", "y"), "1 hour")
    store.write_settings({"task": "forecasting", "data": {"period": 24}}, shape)
    store.write_settings({"task": "classification"}, DataShape())
    assert store.read_shape() == shape
    assert tomllib.loads((tmp_path / "settings.toml").read_text()) == {
        "task": "forecasting",
        "data": {"period": 24},
    }
    assert not list(tmp_path.glob("*.new"))


def test_kept_clients_and_their_scales(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    scale = {"mean": 1 / 3, "std": 1e-17}
    store.keep("b", ClientRecord(1, {"mse": 1.0}, scale))
    store.keep("a", ClientRecord(3, {"mse": 1.0}))
    store.record("never", before=1)
    store.settle()
    reopened = ClientStore(tmp_path)
    assert reopened.kept_clients() == ["a", "b"]
    assert reopened.record("b").scale == scale  # to the last bit


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_shared_model_of_a_round_can_be_read_in_that_round(
    tmp_path: Path, in_memory: bool
) -> None:
    store = ClientStore(tmp_path, lasting=in_memory)
    for server_round in (1, 2):
        store.write_shared(server_round, {"parameters/w": torch.full((2,), float(server_round))})
    assert store.read_shared(2)["parameters/w"].tolist() == [2, 2]
    with pytest.raises(FedProtoError, match="the shared model of round 3 is no longer stored"):
        store.read_shared(3)


def test_states_beyond_the_memory_limit_are_written_before_any_record_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is larger than SQLite's page cache, so it locks out a second connection."""
    monkeypatch.setattr(state_file, "_LOCK_SECONDS", 0.5)
    store = ClientStore(tmp_path, limit=2**20, lasting=True, clients=40)
    store.begin(1)
    clients = [f"c{number}" for number in range(40)]
    store.write_states(clients, 1, {"parameters/w": torch.ones(40, 100_000)})
    assert rounds_in(tmp_path, "training", "c39") == [1]


@pytest.mark.parametrize("values", [10, 2**19])  # waits in memory, or is written at once
def test_a_write_that_fails_loses_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: int
) -> None:
    store = ClientStore(tmp_path, limit=2**20, lasting=True, clients=1)
    store.begin(1)
    store.write_states(["a"], 1, {"parameters/w": torch.zeros(1, 10)})

    @contextmanager
    def full_disk(file: state_file.StateFile) -> Iterator[state_file.Tables]:
        with sound(file) as tables:
            yield tables
            raise OSError(28, "No space left on device")

    def write() -> None:
        if values > 10:
            store.write_states(["a"], 2, {"parameters/w": torch.ones(1, values)})
        store.flush()

    sound = state_file.StateFile.writing
    with monkeypatch.context() as patch:
        patch.setattr(state_file.StateFile, "writing", full_disk)
        with pytest.raises(OSError, match="No space"):
            write()
    store.flush()
    [stored] = ClientStore(tmp_path).read_states(["a"], 1)
    assert stored.tensors["parameters/w"].tolist() == [[0.0] * 10]


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("models", "tensors", None),
        ("training", "tensors", "text"),
        ("records", "record", "{"),
        ("records", "record", '{"kept_round": 1, "unknown": 2}'),
        ("records", "record", '{"kept_round": 1, "metrics": {"mse": "low"}}'),
    ],
)
def test_a_value_of_another_kind_is_refused_in_one_line(
    tmp_path: Path, table: str, column: str, value: str | None
) -> None:
    store = ClientStore(tmp_path)
    write_one(store, "a", 1, 1)
    store.keep("a", ClientRecord(1, {"mse": 0.5}))
    store.settle()
    with sqlite3.connect(tmp_path / state_file.FILE_NAME) as database:
        database.execute(f"UPDATE {table} SET {column} = ?", (value,))
    database.close()
    reader = ClientStore(tmp_path)
    with pytest.raises(FedProtoError, match="damaged"):
        reader.read_kept("a") if table == "records" else reader.read_states(["a"], 1)


def test_only_this_user_may_read_the_clients_models(tmp_path: Path) -> None:
    """SQLite gives the files beside the state the mode of the state's."""
    store = ClientStore(tmp_path / "node")
    write_one(store, "a", 1, 1)
    store.settle()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "node").iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o700
