"""From tables and flat keys to `Settings`, and back.

Flower hands the app a flat dictionary with dotted keys (``fuels.temperature``); the configuration
files nest the same keys as TOML tables. Both become one `Settings` object here, before any node is
asked to work. Keys are kebab-case outside and snake_case inside.

Flower lets ``--run-config`` override only keys that the app's pyproject.toml lists, so the table
``[own]``, whose keys only a method from outside knows, travels as one text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import tomli_w
from pydantic import ValidationError

from fedproto_app.errors import SettingsError
from fedproto_app.methods import method_named, require_fit
from fedproto_app.settings.faults import explain_all
from fedproto_app.settings.run import Settings
from fedproto_app.settings.section import Section
from fedproto_app.tasks.table import check_settings

SectionT = TypeVar("SectionT", bound=Section)


def settings_from(config: Mapping[str, Any]) -> Settings:
    """Validate a run configuration, flat with dotted keys or nested.

    Raises `SettingsError` with one line per fault: the key, the value, what is allowed.
    """
    table = _nested(config)
    own = table.pop("own", {})
    settings = _validated(Settings, table)
    settings = settings.model_copy(update={"own": _own_section(settings.method, own)})
    method = method_named(settings.method)
    if method.rounds is not None:
        settings = settings.model_copy(update={"rounds": method.rounds(settings)})
    require_fit(method, settings)
    check_settings(settings)
    return settings


def default_run_name(settings: Settings) -> str:
    """method-dataset-seed-time, fit for a folder."""
    method, title = _plain(method_named(settings.method).name), _plain(settings.data.title)
    return f"{method}-{title}-s{settings.seed}-{datetime.now():%Y%m%d-%H%M%S}"


def flat_settings(settings: Settings) -> dict[str, Any]:
    """The settings with dotted keys."""
    flat: dict[str, Any] = {}

    def walk(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = value

    walk(settings.model_dump(by_alias=True), "")
    return flat


def flower_config(settings: Settings) -> dict[str, Any]:
    """The settings as a nested run configuration whose keys Flower knows, all of them."""
    table = settings.model_dump(by_alias=True)
    if "own" in table:
        table["own"] = tomli_w.dumps(table["own"])
    return table


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=+-]+", "-", text)[:60]


def _own_section(method: str, table: object) -> Section:
    """``[own]``, as the method's record declares it; empty for the app's own methods."""
    declared = method_named(method).settings
    if not isinstance(table, Mapping):
        raise SettingsError(f"own = {table!r}: must be a table of settings")
    if declared is None:
        for key in table:
            raise SettingsError(
                f"own.{key}: unknown setting; method = {method!r} has no table [own]"
            )
        return Section()
    if not (isinstance(declared, type) and issubclass(declared, Section)):
        raise SettingsError(
            f"method = {method!r}: its settings = {declared!r}, expected a class derived from "
            "fedproto_app.settings.Section"
        )
    return _validated(declared, table, "own")


def _validated(section: type[SectionT], table: object, *under: str) -> SectionT:
    try:
        return section.model_validate(table)
    except ValidationError as error:
        raise SettingsError(explain_all(error.errors(), section, under)) from None


def _nested(config: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in config.items():
        if key == "own" and isinstance(value, str):
            value = _table_in(value)
        *tables, leaf = key.split(".")
        table = nested
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{key}: {name!r} is a value, not a table of settings")
        known = table.get(leaf)
        if isinstance(value, Mapping):
            inner = _nested(value)
            if known is not None and not isinstance(known, dict):
                raise SettingsError(f"{key}: {leaf!r} is a value, not a table of settings")
            table[leaf] = {**(known or {}), **inner}
        else:
            table[leaf] = value
    return nested


def _table_in(text: str) -> dict[str, Any]:
    """The table that ``own`` holds as text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"own = {text!r}: not a table in TOML: {error}") from None
