"""Metrics over HTTP, as a scraper reads them."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedproto_app.core.errors import SettingsError
from fedproto_app.ops.gate.audit import AuditLog
from fedproto_app.ops.metrics_server import serve
from fedproto_app.report.listeners import METRICS_FOLDER, MetricsFile

LINE = {"loss": {"total": 0.5}, "clients": 3, "asked": 4, "answered": 3}


def test_runs_and_audit_log_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS_FOLDER, str(tmp_path))
    for run in ("first", "second"):
        MetricsFile(run, "fuels").write(LINE, timestamp=100.0)
    (tmp_path / "other.prom").write_text("of another program {")
    (tmp_path / "gone.prom").symlink_to(tmp_path / "removed")
    old = '{"time": "2020-01-01T00:00:00+00:00", "event": "order"}\nnonsense\n'
    (tmp_path / "audit.jsonl").write_text(old + '{"time": "noon", "event": "order"}\n')
    log = AuditLog(tmp_path / "audit.jsonl")
    for event in ("order", "order", "refused"):
        log.write(event)
    server, thread = serve("127.0.0.1", 0, tmp_path, tmp_path / "audit.jsonl")
    try:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    asked_nodes = {sample.labels["run"]: sample.value for sample in families["fedproto_asked"]}
    assert asked_nodes == {"first": 4, "second": 4}
    events = families["fedproto_audit_events_last_hour"]
    by_event = {sample.labels["event"]: sample.value for sample in events if sample.value}
    assert by_event == {"order": 2, "refused": 1}
    assert families["fedproto_audit_last_event_timestamp_seconds"][0].value > 1.7e9
    assert text.count("# TYPE fedproto_asked_total") == 1


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nothing to serve"):
        serve("127.0.0.1", 0, None, None)
    with pytest.raises(SettingsError, match=r"--folder .*: no such folder"):
        serve("127.0.0.1", 0, tmp_path / "none", None)
    with pytest.raises(SettingsError, match=r"--audit .*: Is a directory"):
        serve("127.0.0.1", 0, None, tmp_path)
    server, _ = serve("127.0.0.1", 0, tmp_path, None)
    try:
        with pytest.raises(SettingsError, match=f"--port {server.server_port}: "):
            serve("127.0.0.1", server.server_port, tmp_path, None)
    finally:
        server.shutdown()
        server.server_close()
