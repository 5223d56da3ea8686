"""Checks whether a run can be resumed or extended with given settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from fedproto_app.core.errors import SettingsError
from fedproto_app.server.checkpoint import newest_checkpoint
from fedproto_app.settings import Settings, flat_settings, settings_from
from fedproto_app.tasks.table import task_class

# Settings that may change: the required nodes, and the folder, which may have been moved.
FREE = ("nodes.", "output.")
# Settings that may be increased: they decide when the run ends, not its results until then.
MAX_EPSILON = "privacy.max-epsilon"
RAISABLE = ("rounds", "patience", MAX_EPSILON)


def stored_settings(folder: Path) -> Settings:
    """Return the settings of the run in this folder; raise `SettingsError` without a run."""
    file = folder / "settings.toml"
    if not file.is_file():
        raise SettingsError(f"{folder}: holds no run that could be resumed, no settings.toml")
    try:
        return settings_from(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise SettingsError(f"{file}: {error}") from None


def longer(stored: Settings, settings: Settings) -> Settings:
    """Return the stored settings with the new rounds, patience and limit of `settings`."""
    limit = {"max_epsilon": settings.privacy.max_epsilon}
    return stored.model_copy(
        update={
            "rounds": settings.rounds,
            "patience": settings.patience,
            "privacy": stored.privacy.model_copy(update=limit),
        }
    )


def require_resumable(settings: Settings, folder: Path) -> None:
    """Raise `SettingsError` if the run in the folder cannot be resumed with these settings.

    A finished run can be resumed if the setting that ended it is increased: rounds, patience, or
    `privacy.max-epsilon`.
    """
    stored = stored_settings(folder)
    before, wanted_settings = flat_settings(stored), flat_settings(settings)
    differing = [
        f"{key} = {wanted_settings[key]!r}, was {before[key]!r}"
        for key in wanted_settings
        if wanted_settings[key] != before.get(key)
        and not key.startswith(FREE)
        and key not in RAISABLE
    ]
    if differing:
        raise SettingsError(
            f"{folder} cannot be resumed with other settings: {'; '.join(differing)}"
        )
    _require_raised(stored, settings, folder)
    if (folder / "summary.json").exists():
        _require_something_to_do(stored, settings, folder)


def _require_raised(before: Settings, settings: Settings, folder: Path) -> None:
    if settings.rounds < before.rounds:
        raise SettingsError(
            f"rounds = {settings.rounds}: {folder} was planned with {before.rounds}; rounds can "
            "only be increased"
        )
    if settings.patience != before.patience and not _is_more_patient(settings, before):
        raise SettingsError(
            f"patience = {settings.patience}: {folder} had {before.patience}; patience can only "
            "be increased (0: any number)"
        )
    limits = before.privacy.max_epsilon, settings.privacy.max_epsilon
    if limits[0] != limits[1] and not _allows_more(settings, before):
        raise SettingsError(
            f"{MAX_EPSILON} = {limits[1]:g}: {folder} had {limits[0]:g}; it can only be increased "
            "(0: any)"
        )
    if settings.rounds > before.rounds and before.privacy.is_on and before.privacy.epsilon:
        raise SettingsError(
            f"rounds = {settings.rounds}, was {before.rounds}: privacy.epsilon set the noise for "
            "this number; only runs with privacy.noise-multiplier can get more rounds"
        )
    if settings.rounds > before.rounds and (
        fault := task_class(settings.task).longer_fault(settings)
    ):
        raise SettingsError(f"rounds = {settings.rounds}, was {before.rounds}: {fault}")


def _require_something_to_do(before: Settings, settings: Settings, folder: Path) -> None:
    """Refuse a finished run whose end would not change."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    done = summary.get("rounds", before.all_rounds)
    finished = f"{folder}: this run is finished"
    if summary.get("stopped") == "patience" and not _is_more_patient(settings, before):
        raise SettingsError(
            f"{finished}: its patience = {before.patience} ended it after round {done}; to go on "
            "raise patience (0: any number)"
        )
    if summary.get("stopped") == "privacy" and not _allows_more(settings, before):
        raise SettingsError(
            f"{finished}: its {MAX_EPSILON} = {before.privacy.max_epsilon:g} ended it after round "
            f"{done}; to go on raise it (0: any)"
        )
    if settings.all_rounds <= done:
        raise SettingsError(f"{finished}: all {done} rounds are done; to go on raise rounds")
    if newest_checkpoint(folder / "checkpoint")[0] is None:
        raise SettingsError(f"{finished}, and has no intact checkpoint to resume from")


def _is_more_patient(settings: Settings, before: Settings) -> bool:
    return before.patience > 0 and (settings.patience == 0 or settings.patience > before.patience)


def _allows_more(settings: Settings, before: Settings) -> bool:
    limit, was = settings.privacy.max_epsilon, before.privacy.max_epsilon
    return was > 0 and (limit == 0 or limit > was)
