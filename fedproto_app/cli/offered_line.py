"""The line that ``fedproto data check`` ends with: it trains on what was checked."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.tasks import FIRST_TASK, TaskRecord, task_record
from fedproto_app.experiments.run_settings import told
from fedproto_app.report.check.findings import Checked
from fedproto_app.settings import Settings, settings_from
from fedproto_app.settings.changes import flags
from fedproto_app.tasks.table import fitting_task


def offered_line(
    config: Path | None,
    table: Mapping[str, Any],
    asked: Mapping[str, Any],
    record: TaskRecord,
    settings: Settings,
    checked: Checked,
) -> str:
    """`fedproto run` of a file or without one, now or once something is mended.

    table: all that the check was made with, by dotted keys. asked: what of it the command line
    said, which stands last. record, settings: what was checked, and how.
    """
    in_file = told(config, ()) if config else {}
    run: dict[str, Any] = {}
    if "task" not in table and (record := _fitting(record, settings)).name != FIRST_TASK:
        run["task"] = record.name
    if "method" not in table and ("task" in run or config is None):
        run["method"] = record.first_method
    last = {"keep": "last"}
    if not _is_accepted({**table, **run}) and _is_accepted(
        {**table, **run, **last}
    ):  # images in stages
        run |= last
    run |= {key: value for key, value in table.items() if in_file.get(key) != value}
    run |= {key: value for key, value in checked.told.items() if key not in table}
    for key, value in asked.items():
        run.pop(key, None)
        run[key] = value
    words = ["fedproto run", *([shlex.quote(str(config))] if config else []), flags(run)]
    does = "train on it" if checked.could_start else "once that is mended"
    return f"{does}: {' '.join(filter(None, words))}"


def _fitting(record: TaskRecord, settings: Settings) -> TaskRecord:
    """The row of the task that the data's targets fit, where they may be of two kinds."""
    if not record.targets:
        return record
    from fedproto_app.data.sequences.sources import load_sequences
    from fedproto_app.tasks.sequences.clients import targets_of

    return task_record(fitting_task(record.holds, targets_of(load_sequences(settings.data))))


def _is_accepted(table: Mapping[str, Any]) -> bool:
    try:
        settings_from(table)
    except SettingsError:
        return False
    return True
