"""Recognise which source reads a path, and which settings read a table.

The result is a proposal to a person, who sees it. A run follows only its settings.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import missing
from fedproto_app.data.format import Answers, Candidate, Fit, Reading, all_formats
from fedproto_app.data.table_form import Question
from fedproto_app.settings import DataSettings
from fedproto_app.settings.reading import flags

_REMEDIES = {
    ".xls": " (save the sheet as .xlsx or CSV)",
    ".feather": " (write it with DataFrame.to_parquet)",
    ".pkl": " (nothing is unpickled; write it with DataFrame.to_parquet)",
    ".json": " (write it with DataFrame.to_csv)",
    ".jsonl": " (write it with DataFrame.to_csv)",
    ".arff": " (the archive has the same data as .ts)",
}
# If nothing shows a path's format, it is taken for this, so that a reader reports what is wrong.
_EMPTY_FOLDER = Reading("csv-folder", is_guess=True)


def reading_of(path: Path, answers: Answers | None = None) -> Reading:
    """Return the settings that read this path.

    answers: settings that the person has made, with dotted keys. A damaged file is not reported
    here, because its reader will name the fault. Raises `DataError` if no format fits the path. If
    a table can be read in several ways, the `DataError` names the setting that decides.
    """
    candidate, formats = Candidate(path), all_formats().values()
    best = max(formats, key=lambda form: form.fit(candidate))
    if best.fit(candidate) is not Fit.NONE:
        answers = answers or {}
        reading = best.read(candidate, answers)
        if reading.form == "wide" and answers.get("data.known"):
            # If columns are clients, all clients share the columns known in advance.
            covariates = {"data.covariates": str(answers.get("data.covariates") or path)}
            reading = replace(reading, settings={**reading.settings, **covariates})
        return reading
    if candidate.is_folder:
        return _EMPTY_FOLDER
    if not path.exists():
        raise DataError(missing(path))
    remedy = _REMEDIES.get(path.suffix.lower(), "")
    readable = "; ".join(form.paths for form in formats if form.paths)
    raise DataError(f"{path}: no source reads such a file{remedy}; these are read: {readable}")


def advice(data: DataSettings) -> str:
    """Suggest settings that may read the path. Return "" if there are none, or if they are set."""
    answers = {"data.columns": data.columns} if data.columns else {}
    try:
        reading = reading_of(Path(data.path), answers)
        fields = reading.fields
    except Question as question:
        return question.text
    except (DataError, OSError):
        return ""
    if reading.is_guess:
        return ""
    lacking = {
        key: value
        for (name, value_in_reading), (key, value) in zip(
            fields.items(), reading.all_settings.items(), strict=True
        )
        if getattr(data, name) != value_in_reading
    }
    return f"it looks as if this read it: {flags(lacking)}" if lacking else ""
