"""``fedproto data check``: what a run would make of the data of each task."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedproto_app.core.tasks import TaskRecord

if TYPE_CHECKING:
    from fedproto_app.report.check.findings import Checked
    from fedproto_app.settings import Settings


def check(record: TaskRecord, settings: Settings, all_rows: bool) -> Checked:
    """Print what a run of the task would make of the data, with all rows if `all_rows`."""
    module = import_module(f"fedproto_app.report.check.{record.folder}")
    checked: Checked = module.check(settings, all_rows)
    return checked
