"""Whether and with what a run can be resumed."""

from __future__ import annotations

import tomllib
from pathlib import Path

from fedproto_app.errors import SettingsError
from fedproto_app.settings import Settings, flat_settings, settings_from

# What may differ from before: who must be there, and where the folder is by now.
FREE = ("nodes.", "output.")


def stored_settings(folder: Path) -> Settings:
    """The settings of the run in this folder; `SettingsError` if there is none to resume."""
    file = folder / "settings.toml"
    if not file.is_file():
        raise SettingsError(f"{folder}: holds no run that could be resumed, no settings.toml")
    if (folder / "summary.json").exists():
        raise SettingsError(f"{folder}: this run is finished; there is nothing to resume")
    try:
        return settings_from(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise SettingsError(f"{file}: {error}") from None


def require_resumable(settings: Settings, folder: Path) -> None:
    """`SettingsError` if the run in the folder is not one of these settings, half done."""
    before, now = flat_settings(stored_settings(folder)), flat_settings(settings)
    differing = [
        f"{key} = {now[key]!r}, was {before[key]!r}"
        for key in now
        if now[key] != before.get(key) and not key.startswith(FREE)
    ]
    if differing:
        raise SettingsError(
            f"{folder} cannot be resumed with other settings: {'; '.join(differing)}"
        )
