"""The log of a run ends with its table: it is all that ``flwr run`` shows."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fedproto_app.core.events import parse_event
from fedproto_app.server_app import log_table
from tests.report.made_runs import make_run


def test_the_table_and_where_the_report_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path / "run")
    (run / "report.html").touch()
    with caplog.at_level(logging.INFO, "flwr"):
        log_table(run)
    *table, last = [record.getMessage() for record in caplog.records]
    assert any("test MSE (best validation)" in line and "0.3750" in line for line in table)
    assert max(map(len, table)) <= 80
    assert parse_event(last) == {
        "event": "finished",
        "folder": str(run),
        "report": str(run / "report.html"),
    }
