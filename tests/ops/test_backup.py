"""docker/bin/backup: what a server writes to meanwhile comes back whole."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

BACKUP = Path(__file__).parents[2] / "docker" / "bin" / "backup"


def backup(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BACKUP), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


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
