"""``fedproto data check``: show how a run would use the data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedproto_app.core.tasks import TaskRecord

if TYPE_CHECKING:
    from fedproto_app.report.check.findings import Checked
    from fedproto_app.settings import Settings


def check(record: TaskRecord, settings: Settings, all_rows: bool) -> Checked:
    """Print how a run of the task would use the data. all_rows: print long tables in full."""
    module = import_module(f"fedproto_app.report.check.{record.folder}")
    checked: Checked = module.check(settings, all_rows)
    return checked
