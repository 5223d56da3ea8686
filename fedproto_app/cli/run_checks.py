"""What a simulation is refused for before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

from fedproto_app.core.errors import DataError
from fedproto_app.core.methods import method_named
from fedproto_app.settings import Settings
from fedproto_app.tasks.table import reasons_against
from fedproto_app.trust.privacy_plan import privacy_plan


def folder_of_users_code(settings: Settings) -> Path | None:
    """Where the user stands, if the settings name code of theirs, which lies there."""
    named = (settings.method, settings.data.source, settings.model.module)
    return Path.cwd() if any(":" in one for one in named) else None


def check_pretraining(settings: Settings) -> None:
    """Raise `SettingsError` now for what the server would not find of a first phase later."""
    pretraining = method_named(settings.method).pretraining
    if pretraining is not None:
        pretraining.check(settings)


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
