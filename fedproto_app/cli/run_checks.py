"""What a simulation is refused for before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

from fedproto_app.errors import DataError, SettingsError
from fedproto_app.methods import METHODS, method_named
from fedproto_app.privacy_plan import privacy_plan
from fedproto_app.settings import Settings
from fedproto_app.tasks.table import reasons_against


def folder_of_users_code(settings: Settings) -> Path | None:
    """Where the user stands, if the settings name code of theirs, which lies there."""
    named = (settings.method, settings.data.source, settings.model.module)
    return Path.cwd() if any(":" in one for one in named) else None


def check_encoder(settings: Settings) -> None:
    """Raise `SettingsError` now for an encoder that the server would not find after the start."""
    path = settings.encoder.path
    if not method_named(settings.method).encoder_first or not path:
        return
    if not settings.encoder.file.is_file():
        learners = [name for name, method in METHODS.items() if method.encoder_first]
        raise SettingsError(
            f"encoder.path = {path!r}: there is no {settings.encoder.file}; it must be a file of "
            f"an encoder, or the folder of a run of {', '.join(learners)}"
        )


def check_data(settings: Settings, import_path: Path | None) -> int:
    """How many clients can take part.

    Raises `DataError` now for data that every node would refuse after the start, `SettingsError`
    for fewer clients than the method needs, and for privacy that it cannot give.
    """
    if import_path is not None and str(import_path) not in sys.path:
        sys.path.insert(0, str(import_path))
    privacy_plan(settings)
    reasons = reasons_against(settings)
    if all(reasons.values()):
        name, reason = next(iter(reasons.items()))
        raise DataError(f"none of {len(reasons)} clients can take part; {name!r}: {reason}")
    clients = list(reasons.values()).count(None)
    check_clients = method_named(settings.method).check_clients
    if check_clients is not None:
        check_clients(settings, clients)
    return clients
