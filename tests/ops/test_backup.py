"""docker/bin/backup: what a server writes to meanwhile comes back whole."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.engine.local import nodes_sharing
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.server.checkpoint import Checkpoint, newest_checkpoint, write_checkpoint
from fedproto_app.server_app import conduct
from tests.helpers.local_grid import LocalGrid, small_settings

BACKUP = Path(__file__).parents[2] / "docker" / "bin" / "backup"


def backup(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BACKUP), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def program() -> Any:
    """The program as a module."""
    spec = spec_from_loader("backup", SourceFileLoader("backup", str(BACKUP)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def before_each_file(
    program: Any, monkeypatch: pytest.MonkeyPatch, step: Callable[[str], object]
) -> None:
    """Let something happen between two files of the archive. It gets the next file's name."""
    add = tarfile.TarFile.addfile

    def slow(tar: tarfile.TarFile, entry: tarfile.TarInfo, *content: Any) -> None:
        if entry.isfile():
            step(Path(entry.name).name)
        add(tar, entry, *content)

    monkeypatch.setattr(program.tarfile.TarFile, "addfile", slow)


def write_rounds(run: Path, *rounds: int) -> None:
    for number in rounds:
        model = {"weights": np.full(3, number, np.float32)}
        write_checkpoint(run / "checkpoint", Checkpoint(number, "token", model=model))


def moved_away(*folders: Path) -> list[Path]:
    return [folder.rename(folder.with_name(f"{folder.name}-before")) for folder in folders]


def test_a_server_that_goes_on_leaves_a_whole_checkpoint_in_the_archive(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checkpoints follow before each file is read, so those that were listed are gone."""
    runs, archive = tmp_path / "runs", tmp_path / "all.tar.gz"
    write_rounds(runs / "first", 1)
    (runs / "first" / "all-before.txt").write_text("is read before the checkpoints")
    written = [1]

    def go_on(_: str) -> None:
        written.extend((written[-1] + 1, written[-1] + 2))
        write_rounds(runs / "first", *written[-2:])

    before_each_file(program, monkeypatch, go_on)
    output = program.main(["save", str(archive), str(runs)])
    assert "runs with a whole checkpoint: 1" in output
    assert len(written) > 5
    moved_away(runs)
    program.main(["restore", str(archive)])
    checkpoint, faults = newest_checkpoint(runs / "first" / "checkpoint")
    assert checkpoint is not None
    assert faults == []
    assert checkpoint.server_round == 3  # the newest when the checkpoints were reached
    assert checkpoint.model["weights"].tolist() == [3, 3, 3]


def test_a_restored_run_ends_as_if_nothing_had_happened(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with eight rounds is saved while it goes on, and resumed from the archive."""
    may_write, written = threading.Semaphore(0), threading.Semaphore(0)
    write = RunFolder.write_checkpoint

    def write_when_allowed(folder: RunFolder, checkpoint: Checkpoint) -> None:
        assert may_write.acquire(timeout=120)
        write(folder, checkpoint)
        written.release()

    def rounds(count: int) -> None:
        for _ in range(count):
            may_write.release()
            assert written.acquire(timeout=120)

    def conducted(*, resume: bool = False) -> None:
        changes = {"rounds": 8, "output.name": "test", "output.resume": resume}
        settings = small_settings(tmp_path, **changes)
        grid = LocalGrid(settings, nodes_sharing(settings.data, 2, state))
        with RunFolder(settings) as folder:
            conduct(grid, folder)

    runs, state, archive = tmp_path / "runs", tmp_path / "state", tmp_path / "all.tar.gz"
    monkeypatch.setattr(RunFolder, "write_checkpoint", write_when_allowed)
    reached = 0

    def go_on(name: str) -> None:
        nonlocal reached
        reached += name == "digests.json"
        if name == "digests.json" and reached == 1:
            rounds(2)  # the nodes keep their states of three rounds

    before_each_file(program, monkeypatch, go_on)
    with ThreadPoolExecutor(1) as server:
        running = server.submit(conducted)
        rounds(3)
        program.main(["save", str(archive), str(runs), str(state)])
        rounds(3)
        running.result(timeout=120)
    uninterrupted, _ = moved_away(runs, state)
    program.main(["restore", str(archive)])
    checkpoint, _ = newest_checkpoint(runs / "test" / "checkpoint")
    assert checkpoint is not None
    assert checkpoint.server_round == 3
    monkeypatch.setattr(RunFolder, "write_checkpoint", write)
    conducted(resume=True)
    clients = Path("test", "clients.csv")
    assert (runs / clients).read_bytes() == (uninterrupted / clients).read_bytes()


def test_a_run_without_a_whole_checkpoint_is_named(program: Any, tmp_path: Path) -> None:
    runs, archive = tmp_path / "runs", tmp_path / "all.tar.gz"
    write_rounds(runs / "sound", 1, 2)
    write_rounds(runs / "damaged", 1, 2)
    (runs / "just-begun" / "checkpoint").mkdir(parents=True)
    files = sorted((runs / "damaged").glob("checkpoint/*/server.json"))
    files[0].write_text("{}")
    assert "whole checkpoint: 2" in program.main(["save", str(archive), str(runs)])
    files[1].unlink()
    with pytest.raises(SystemExit) as ended:
        program.main(["save", str(archive), str(runs)])
    assert str(ended.value) == (
        f"backup: {runs / 'damaged'}: no checkpoint is whole in {archive}, so the run could not be "
        "resumed from it; everything else was saved"
    )
    moved_away(runs)
    program.main(["restore", str(archive)])
    assert newest_checkpoint(runs / "sound" / "checkpoint")[0] is not None


def test_two_backups_at_once_are_both_whole_and_on_the_disk(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, archive = tmp_path / "runs", tmp_path / "all.tar.gz"
    write_rounds(runs / "first", 1)
    flushed: list[Path] = []
    monkeypatch.setattr(
        "fedproto_app.core.whole_file.os.fsync",
        lambda handle: flushed.append(Path(os.readlink(f"/proc/self/fd/{handle}"))),
    )
    first_is_open = True

    def save_another(_: str) -> None:
        nonlocal first_is_open
        if first_is_open:
            first_is_open = False
            program.main(["save", str(archive), str(runs)])

    before_each_file(program, monkeypatch, save_another)
    program.main(["save", str(archive), str(runs)])
    assert program.runs_in(archive) == {runs / "first": True}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.tar.gz", "runs"]
    partial, folder = flushed[-2:]
    assert (partial.suffix, folder) == (".part", tmp_path)


def test_a_database_in_use_is_restored_whole(tmp_path: Path) -> None:
    runs, superlink, archive = tmp_path / "runs", tmp_path / "superlink", tmp_path / "all.tar.gz"
    (runs / "first").mkdir(parents=True)
    (runs / "first" / "rounds.jsonl").write_text("{}\n")
    superlink.mkdir()
    ended = threading.Event()
    with closing(sqlite3.connect(superlink / "state.db", check_same_thread=False)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE pairs (number INTEGER)")
        database.commit()

        def write() -> None:
            while not ended.is_set():
                with database:  # always an even number of rows
                    database.executemany("INSERT INTO pairs VALUES (?)", [(1,), (2,)])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            saved = backup("save", archive, runs, superlink)
        finally:
            ended.set()
            writer.join()
    assert saved.returncode == 0, saved.stderr
    assert f"2 files of {runs}, {superlink}" in saved.stdout
    assert archive.stat().st_mode & 0o777 == 0o600

    refused = backup("restore", archive)
    assert refused.returncode == 1
    assert f"{runs}: is not empty; restore into new volumes" in refused.stderr
    shutil.rmtree(runs)
    shutil.rmtree(superlink)
    superlink.mkdir()  # as a new volume is
    assert backup("restore", archive).returncode == 0
    assert (runs / "first" / "rounds.jsonl").read_text() == "{}\n"
    assert [path.name for path in superlink.iterdir()] == ["state.db"]
    with closing(sqlite3.connect(superlink / "state.db")) as restored:
        assert restored.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (rows,) = restored.execute("SELECT count(*) FROM pairs").fetchone()
    assert rows % 2 == 0
    assert rows > 0


def test_what_cannot_be_saved_is_said_in_one_line(tmp_path: Path) -> None:
    for arguments in (("save", tmp_path / "a", tmp_path / "none"), ("restore", tmp_path / "none")):
        ended = backup(*arguments)
        assert ended.returncode == 1
        assert ended.stderr.startswith("backup: ")
        assert ended.stderr.count("\n") == 1
