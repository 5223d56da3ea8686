"""``fedproto audit``."""

from __future__ import annotations

from pathlib import Path

from fedproto_app.ops.gate.audit import AuditLog
from tests.cli.conftest import Fedproto


def test_it_names_the_last_hash(tmp_path: Path, fedproto: Fedproto) -> None:
    file = tmp_path / "log"
    log = AuditLog(file)
    log.write("order")
    log.write("reply")
    outcome = fedproto("audit", str(file))
    assert outcome.code == 0, outcome.err
    assert "2 lines from " in outcome.out
    last = outcome.out.split()[-1]
    assert fedproto("audit", str(file), "--noted", last).code == 0
    assert fedproto("audit", str(file), "--noted", "0" * 64).code == 2
    (tmp_path / "other").write_text("root:x:0:0\n" + "[" * 100_000)
    assert "no line is an entry" in fedproto("audit", str(tmp_path / "other")).err
    file.write_text(file.read_text() + "half a li")
    assert "unreadable lines" in fedproto("audit", str(file)).out
    assert "no such file" in fedproto("audit", str(tmp_path / "none")).err
