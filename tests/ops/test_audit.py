"""The audit log: append-only, without control codes, never larger than two files."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.ops.gate import audit
from fedproto_app.ops.gate.audit import AuditLog, verify


def test_lines_are_appended_and_cut(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "deep" / "audit.jsonl")
    log.write("order", run=3, name="a\x1b[31m\nb", settings={"k" * 999: ["x" * 999] * 99})
    log.write("reply", values=7)
    text = (tmp_path / "deep" / "audit.jsonl").read_text()
    assert "\x1b" not in text
    first, second = map(json.loads, text.splitlines())
    assert (first["event"], first["run"], first["name"]) == ("order", 3, "a\x1b[31m\nb")
    ((key, values),) = first["settings"].items()
    assert (len(key), len(values), len(values[0])) == (300, 50, 302)
    assert second["values"] == 7
    assert (tmp_path / "deep" / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_it_has_at_most_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_BYTES", 300)
    log = AuditLog(tmp_path / "log")
    for number in range(20):
        log.write("order", run=number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.lock"]
    assert all(path.stat().st_size <= 300 for path in tmp_path.iterdir())
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1])["run"] == 19


def test_it_counts_what_was_in_the_last_hour(tmp_path: Path) -> None:
    file = tmp_path / "log"
    old = '{"time": "2020-01-01T00:00:00+00:00", "event": "order"}\n'
    file.write_text(old * 3)
    log = AuditLog(file)
    assert log.count_since(["order"], 3600) == 0
    log.write("order")
    log.write("reply")
    log.write("order")
    assert log.count_since(["order"], 3600) == 2
    assert AuditLog(None).count_since(["order"], 3600) == 0
    AuditLog(None).write("order")


@pytest.mark.parametrize(
    "time", ['"2999-01-01T00:00:00+00:00"', '"1970-01-01T00:00:00+00:00"', "null", "7"]
)
def test_lines_of_a_wrong_clock_or_without_a_time_do_not_count(tmp_path: Path, time: str) -> None:
    line, log_file = f'{{"time": {time}, "event": "order"}}\n', tmp_path / "log"
    log_file.write_text(line)
    log = AuditLog(tmp_path / "log")
    assert log.count_since(["order"], 3600) == 0
    log.write("order")
    with log_file.open("a") as file:
        file.write(line)
    assert log.count_since(["order"], 3600) == 1


def test_who_holds_the_folder_or_the_log_holds_up_no_gate(tmp_path: Path) -> None:
    """A run's code may open both for reading, and can lock them."""
    log = AuditLog(tmp_path / "log")
    log.write("order")
    descriptors = [os.open(path, os.O_RDONLY) for path in (tmp_path, tmp_path / "log")]
    for descriptor in descriptors:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    imports = (
        "import sys; from pathlib import Path; from fedproto_app.ops.gate.audit import AuditLog; "
    )
    code = imports + 'AuditLog(Path(sys.argv[1])).write("reply")'
    try:
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], check=True, timeout=60)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert (tmp_path / "log.lock").stat().st_mode & 0o777 == 0o600
    assert log.count_since(["reply"], 3600) == 1


def test_a_line_that_power_cut_costs_only_itself(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = AuditLog(file)
    log.write("order", run=1)
    with file.open("ab") as cut:
        cut.write(b'{"time": "2026-01-')
    log.write("order", run=2)
    assert log.count_since(["order"], 3600) == 2
    assert json.loads(file.read_text().splitlines()[-1])["run"] == 2


def test_a_line_that_does_not_fit_on_the_disk_is_told_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(tmp_path / "log")
    log.write("order", run=1)
    before = (tmp_path / "log").read_bytes()
    write = os.write
    monkeypatch.setattr(audit.os, "write", lambda file, line: write(file, line[:9]))
    with pytest.raises(OSError, match="No space left"):
        log.write("order", run=2)
    assert (tmp_path / "log").read_bytes() == before


def chained(folder: Path, lines: int) -> Path:
    log = AuditLog(folder / "log")
    for number in range(lines):
        log.write("order", run=number, text="x" * 99)
    return folder / "log"


def test_a_chain_goes_on_in_the_next_file_and_over_a_cut_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = chained(tmp_path, 1)
    first = verify(file)
    assert first.lines == 1
    assert first.last == sha256(file.read_bytes()[:-1]).hexdigest()
    assert json.loads(file.read_text())["previous"] == ""
    with file.open("ab") as cut:
        cut.write(b'{"time": "2026-01-')
    monkeypatch.setattr(audit, "MOST_BYTES", 1000)
    monkeypatch.setattr(audit, "_TAIL", 16)  # shorter than a line
    chained(tmp_path, 5)
    assert (tmp_path / "log.1").exists()
    chain = verify(file, first.last)
    assert (chain.lines, chain.unreadable) == (7, 1)
    chained(tmp_path, 9)  # the first file is gone
    assert verify(file).lines < 16
    with pytest.raises(DataError, match=r"no line has the hash .*; if it was noted before 20"):
        verify(file, first.last)


def change(lines: list[str]) -> None:
    lines[1] = lines[1].replace('"run": 1', '"run": 7')


@pytest.mark.parametrize(
    ("forge", "line"),
    [
        (change, 3),
        (lambda lines: lines.pop(1), 2),
        (lambda lines: lines.pop(0), 1),
        (lambda lines: lines.insert(1, lines[0]), 2),
        (lambda lines: lines.insert(0, '{"time": "2020", "event": "order"}'), 1),
        (lambda lines: lines.insert(1, '{"time": "", "event": "order"}'), 2),
        (lambda lines: lines.insert(1, "nonsense"), 3),
        (lambda lines: lines.reverse(), 1),
    ],
)
def test_a_changed_log_is_found_out(
    forge: Callable[[list[str]], object], line: int, tmp_path: Path
) -> None:
    file = chained(tmp_path, 4)
    lines = file.read_text().splitlines()
    forge(lines)
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=f"log, line {line}: does not continue"):
        verify(file)


def test_gates_of_several_orders_lose_no_line(tmp_path: Path) -> None:
    """The file is renamed meanwhile: the lines of each process nearly fill it."""
    code = """
import sys
from pathlib import Path
from fedproto_app.ops.gate import audit
audit.MOST_BYTES = 400_000
for number in range(1000):
    audit.AuditLog(Path(sys.argv[1])).write("order", run=int(sys.argv[2]) * 1000 + number)
"""
    file = tmp_path / "log"
    gates = [
        subprocess.Popen([sys.executable, "-c", code, str(file), str(number)])
        for number in range(4)
    ]
    assert [gate.wait(60) for gate in gates] == [0] * 4
    assert verify(file).lines == 4000
    lines = [*file.read_text().splitlines(), *(tmp_path / "log.1").read_text().splitlines()]
    assert {json.loads(line)["run"] for line in lines} == set(range(4000))
