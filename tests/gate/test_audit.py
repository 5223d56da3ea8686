"""The audit log: only appended, no codes in it, never larger than two files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedproto_app.gate import audit
from fedproto_app.gate.audit import AuditLog


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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]
    assert all(path.stat().st_size <= 300 for path in tmp_path.iterdir())
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1])["run"] == 19


def test_it_counts_what_was_in_the_last_hour(tmp_path: Path) -> None:
    file = tmp_path / "log"
    old = '{"time": "2020-01-01T00:00:00+00:00", "event": "order"}\n'
    file.write_text(old * 3)
    log = AuditLog(file)
    assert log.count_since("order", 3600) == 0
    log.write("order")
    log.write("reply")
    log.write("order")
    assert log.count_since("order", 3600) == 2
    assert AuditLog(None).count_since("order", 3600) == 0
    AuditLog(None).write("order")
