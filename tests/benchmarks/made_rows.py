"""Finished runs of the rows of a page of results."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from benchmarks.pages import ROOT
from benchmarks.result_page import Experiment
from fedproto_app.settings import flat_settings, settings_from
from fedproto_app.settings.reading import flat
from tests.report.made_runs import make_run


def make_row(
    output: Path,
    experiment: Experiment,
    row: str,
    seed: int = 0,
    figures: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Create the finished run of a row. changes: different settings, None for a setting that
    did not exist yet. figures: of its summary."""
    job = experiment.rows[row].job(experiment, seed, output)
    config = flat(tomllib.loads((ROOT / "configs" / job.config).read_text()))
    texts = {k: str(v) if isinstance(v, Path) else v for k, v in job.changes.items()}
    settings = flat_settings(settings_from(config | texts)) | changes
    kept_settings = {key: value for key, value in settings.items() if value is not None}
    return make_run(output / job.name, settings=kept_settings, seed=seed, **(figures or {}))
