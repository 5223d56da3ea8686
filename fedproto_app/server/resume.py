"""Whether a run can be resumed or made longer, and with which settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from fedproto_app.core.errors import SettingsError
from fedproto_app.server.checkpoint import newest_checkpoint
from fedproto_app.settings import Settings, flat_settings, settings_from
from fedproto_app.tasks.table import task_class

# What may differ from before: which nodes must be there, and where the folder is by now.
FREE = ("nodes.", "output.")
# What may be raised: it says when the run ends, not what happens in it.
MAX_EPSILON = "privacy.max-epsilon"
RAISABLE = ("rounds", "patience", MAX_EPSILON)


def stored_settings(folder: Path) -> Settings:
    """The settings of the run in this folder; `SettingsError` if there is none to resume."""
    file = folder / "settings.toml"
    if not file.is_file():
        raise SettingsError(f"{folder}: holds no run that could be resumed, no settings.toml")
    try:
        return settings_from(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise SettingsError(f"{file}: {error}") from None


def longer(stored: Settings, settings: Settings) -> Settings:
    """The stored settings, with what `settings` raise."""
    limit = {"max_epsilon": settings.privacy.max_epsilon}
    return stored.model_copy(
        update={
            "rounds": settings.rounds,
            "patience": settings.patience,
            "privacy": stored.privacy.model_copy(update=limit),
        }
    )


def require_resumable(settings: Settings, folder: Path) -> None:
    """`SettingsError` if the run in the folder is not one of these settings that can go on.

    A finished run can go on if it gets more of what ended it: rounds, patience, or
    `privacy.max-epsilon`.
    """
    stored = stored_settings(folder)
    before, now = flat_settings(stored), flat_settings(settings)
    differing = [
        f"{key} = {now[key]!r}, was {before[key]!r}"
        for key in now
        if now[key] != before.get(key) and not key.startswith(FREE) and key not in RAISABLE
    ]
    if differing:
        raise SettingsError(
            f"{folder} cannot be resumed with other settings: {'; '.join(differing)}"
        )
    _require_raised(stored, settings, folder)
    if (folder / "summary.json").exists():
        _require_something_to_do(stored, settings, folder)


def _require_raised(before: Settings, now: Settings, folder: Path) -> None:
    if now.rounds < before.rounds:
        raise SettingsError(
            f"rounds = {now.rounds}: {folder} was to have {before.rounds}; it can only get more"
        )
    if now.patience != before.patience and not _is_more_patient(now, before):
        raise SettingsError(
            f"patience = {now.patience}: {folder} had {before.patience}; it can only get more "
            "(0: any number)"
        )
    limits = before.privacy.max_epsilon, now.privacy.max_epsilon
    if limits[0] != limits[1] and not _allows_more(now, before):
        raise SettingsError(
            f"{MAX_EPSILON} = {limits[1]:g}: {folder} had {limits[0]:g}; it can only get more "
            "(0: any)"
        )
    if now.rounds > before.rounds and before.privacy.is_on and before.privacy.epsilon:
        raise SettingsError(
            f"rounds = {now.rounds}, was {before.rounds}: the noise was made for so many by "
            "privacy.epsilon; a run with privacy.noise-multiplier can get more"
        )
    if now.rounds > before.rounds and (fault := task_class(now.task).longer_fault(now)):
        raise SettingsError(f"rounds = {now.rounds}, was {before.rounds}: {fault}")


def _require_something_to_do(before: Settings, now: Settings, folder: Path) -> None:
    """Refuse a finished run whose end would not change."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    done = summary.get("rounds", before.all_rounds)
    finished = f"{folder}: this run is finished"
    if summary.get("stopped") == "patience" and not _is_more_patient(now, before):
        raise SettingsError(
            f"{finished}: its patience = {before.patience} ended it after round {done}; to go on "
            "raise patience (0: any number)"
        )
    if summary.get("stopped") == "privacy" and not _allows_more(now, before):
        raise SettingsError(
            f"{finished}: its {MAX_EPSILON} = {before.privacy.max_epsilon:g} ended it after round "
            f"{done}; to go on raise it (0: any)"
        )
    if now.all_rounds <= done:
        raise SettingsError(f"{finished}: all {done} rounds are done; to go on raise rounds")
    if newest_checkpoint(folder / "checkpoint")[0] is None:
        raise SettingsError(f"{finished}, and has no checkpoint that is whole to go on from")


def _is_more_patient(now: Settings, before: Settings) -> bool:
    return before.patience > 0 and (now.patience == 0 or now.patience > before.patience)


def _allows_more(now: Settings, before: Settings) -> bool:
    limit, was = now.privacy.max_epsilon, before.privacy.max_epsilon
    return was > 0 and (limit == 0 or limit > was)
