"""A run's numbers for Prometheus, as its own client library reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedproto_app.report.listeners import METRICS_FOLDER, MetricsFile
from tests.helpers.local_grid import run_locally, small_settings, synthetic_nodes

LINE: dict[str, Any] = {
    "loss": {"total": 0.5},
    "clients": 3,
    "asked": 4,
    "answered": 3,
    "late": 1,
    "shortened": 2,
    "refused": [{"node": "a", "client": "", "reason": "x"}],
    "bytes_up": 10**12,
    "bytes_down": 7,
    "seconds": {"total": 1.5},
}


def read(file: Path) -> dict[str, float]:
    families = text_string_to_metric_families(file.read_text())
    samples = [sample for family in families for sample in family.samples]
    (labels,) = {tuple(sorted(sample.labels.items())) for sample in samples}
    assert dict(labels).keys() == {"run", "method"}
    return {sample.name.removeprefix("fedproto_"): sample.value for sample in samples}


def test_totals_and_the_last_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS_FOLDER, str(tmp_path / "deep"))
    metrics = MetricsFile("a run", 'odd"\\method\n', before=[LINE])
    metrics.write(LINE, timestamp=100.0)
    metrics.write({**LINE, "loss": {}, "privacy": {"epsilon": 2.5}}, timestamp=200.0)
    assert read(tmp_path / "deep" / "a run.prom") == {
        "rounds_total": 3,
        "asked_total": 12,
        "answered_total": 9,
        "refused_total": 3,
        "late_total": 3,
        "shortened_total": 6,
        "received_bytes_total": 3e12,
        "sent_bytes_total": 21,
        "round_seconds_total": 4.5,
        "clients": 3,
        "epsilon": 2.5,
        "last_round_timestamp_seconds": 200,
    }


def test_a_run_writes_it_only_where_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_locally(small_settings(tmp_path), synthetic_nodes(2, tmp_path / "state"))
    assert not list(tmp_path.rglob("*.prom"))
    monkeypatch.setenv(METRICS_FOLDER, str(tmp_path / "metrics"))
    settings = small_settings(tmp_path, **{"output.name": "second"})
    run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    numbers = read(tmp_path / "metrics" / "second.prom")
    assert numbers["rounds_total"] == settings.rounds
    assert numbers["clients"] == 8
    assert numbers["loss"] > 0
