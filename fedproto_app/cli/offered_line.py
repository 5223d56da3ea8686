"""The last line of ``fedproto data check``: the command that trains on the checked data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.tasks import FIRST_TASK, TaskRecord, task_record
from fedproto_app.experiments.run_settings import changed_settings
from fedproto_app.report.check.findings import Checked
from fedproto_app.settings import Settings, settings_from
from fedproto_app.settings.changes import flags
from fedproto_app.tasks.table import fitting_task


def offered_line(
    config: Path | None,
    table: Mapping[str, Any],
    from_options: Mapping[str, Any],
    record: TaskRecord,
    settings: Settings,
    checked: Checked,
) -> str:
    """Return the `fedproto run` command that trains on the checked data.

    table: all settings of the check, by dotted keys. from_options: the settings from the command
    line, which come last. record, settings: the task and the settings that were checked.
    """
    in_file = changed_settings(config, ()) if config else {}
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
    run |= {key: value for key, value in checked.proposed.items() if key not in table}
    for key, value in from_options.items():
        run.pop(key, None)
        run[key] = value
    words = ["fedproto run", *([shlex.quote(str(config))] if config else []), flags(run)]
    does = "train on it" if checked.could_start else "once that is mended"
    return f"{does}: {' '.join(filter(None, words))}"


def _fitting(record: TaskRecord, settings: Settings) -> TaskRecord:
    """Return the task that fits the data's targets, if there may be two kinds of targets."""
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
