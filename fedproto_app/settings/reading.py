"""Convert tables, flat keys and texts of a command line to `Settings`, and back.

Flower passes the app a flat dictionary with dotted keys (``fuels.temperature``), and configuration
files nest the same keys as TOML tables. Both become one `Settings` object here, before any node
gets an order. Keys are kebab-case outside and snake_case inside.

Each method has its own table, whose class is defined with the method. A run reads the table of its
method and ignores other methods' tables, so one file can serve a comparison of several. Flower
lets ``--run-config`` override only keys that the app's pyproject.toml lists. Settings that few
methods read are therefore passed as one text, ``method-settings``. It holds the method's table, and
the tables in `BESIDE` under their names.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import tomli_w
from pydantic import ValidationError

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.method import Method
from fedproto_app.core.methods import METHODS, method_named, require_known
from fedproto_app.core.section import Section
from fedproto_app.core.tasks import task_record
from fedproto_app.settings.faults import explain_all
from fedproto_app.settings.fit import check_settings, require_fit
from fedproto_app.settings.run import FIRST_METHOD, Settings

SectionT = TypeVar("SectionT", bound=Section)

TEXT = "method-settings"
BESIDE = ("encoder", "graph")  # tables that only some methods read


def settings_from(config: Mapping[str, object]) -> Settings:
    """Validate a run configuration, flat with dotted keys or nested.

    Raise `SettingsError` with one line per fault: the key, the value, what is allowed.
    """
    table = with_tables(config)
    method = _method(table.get("method", FIRST_METHOD))
    method_table = table.pop(method.table_name, {})
    faults: list[str] = []
    for name in METHODS:
        value = table.pop(name, {})
        if not isinstance(value, dict):
            raise SettingsError(f"{name} = {value!r}: must be a table of settings")
        if value:  # the run does not use this method, but a wrong key is an error all the same
            _validated(faults, METHODS[name].settings, value, {}, name)
    section = _validated(faults, method.settings, method_table, {}, method.table_name)
    beside = dict.fromkeys(METHODS, Section) | {method.table_name: method.settings}
    settings = _validated(faults, Settings, {**table, TEXT: section or Section()}, beside)
    if settings is None or section is None or faults:
        raise SettingsError("; ".join(faults))
    if method.rounds is not None:
        settings = settings.model_copy(update={"rounds": method.rounds(settings)})
    require_fit(method, settings)
    check_settings(settings)
    return settings


def with_tables(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration as nested tables, with `method-settings` merged into them.

    Where both set a key, the text `method-settings` wins.
    """
    table = _nested(config)
    text = _nested(_table_in(table.pop(TEXT, "")))
    table_name = _method(table.get("method", FIRST_METHOD)).table_name if text else ""
    for name, value in text.items():
        place = table if name in BESIDE else table.setdefault(table_name, {})
        if not isinstance(place, dict):
            raise SettingsError(f"{table_name} = {place!r}: must be a table of settings")
        merged = isinstance(value, dict) and isinstance(place.get(name), dict)
        place[name] = place[name] | value if merged else value
    return table


def _method(name: object) -> Method:
    """Return the record of the method that the settings name."""
    if not isinstance(name, str):
        raise SettingsError(f"method = {name!r}: must be a text")
    try:
        method = method_named(require_known(name))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if not (isinstance(method.settings, type) and issubclass(method.settings, Section)):
        raise SettingsError(
            f"method = {name!r}: its settings = {method.settings!r}, expected a class derived from "
            "fedproto_app.settings.Section"
        )
    if method.table_name in Settings.tables():
        raise SettingsError(
            f"method = {name!r}: its table of settings cannot be called {method.table_name!r}, "
            "because all runs have a table of that name"
        )
    return method


def default_run_name(settings: Settings) -> str:
    """Return method-dataset-seed-time, a valid folder name."""
    method, title = _plain(method_named(settings.method).name), _plain(settings.data.title)
    return f"{method}-{title}-s{settings.seed}-{datetime.now():%Y%m%d-%H%M%S}"


def flat_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings with dotted keys."""
    return flat(settings.model_dump(by_alias=True))


def flat(table: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Return a nested table as a flat one, its keys joined by dots."""
    joined: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            joined |= flat(value, f"{prefix}{key}.")
        else:
            joined[prefix + key] = value
    return joined


@cache
def defaults_of(method: str) -> Mapping[str, object]:
    """Return the defaults of a run of this method, with dotted keys. `method` itself is `fuels`.

    For a method from outside the app these are only the defaults that all runs have, because its
    code is not imported.
    """
    if method in METHODS:
        return {**flat_settings(Settings(method=method)), "method": FIRST_METHOD}
    defaults = flat_settings(Settings())
    return {key: value for key, value in defaults.items() if not key.startswith(f"{FIRST_METHOD}.")}


# Tables that are read for one kind of data only (`TaskRecord.holds`).
_TABLES_OF_DATA = {"classification": "images", "sequence": "labelled sequences"}


def unused_settings(chosen: Mapping[str, object], settings: Settings) -> list[str]:
    """Return the settings that have no effect, such as the learning rate of a closed form.

    They are no error, because several methods may share one file. chosen: what was set, with dotted
    keys.
    """
    defaults, holds = defaults_of(settings.method), task_record(settings.task).holds
    trains = method_named(settings.method).rounds is None

    def is_unused(key: str, value: object) -> bool:
        table = key.partition(".")[0]
        if table in _TABLES_OF_DATA:
            return _TABLES_OF_DATA[table] != holds
        if table == "response":
            return not settings.has_response
        if trains:
            return False
        if key == "rounds":
            return value != settings.rounds
        return key == "local-epochs" or table == "optimizer"

    return [
        f"{key} = {value!r}"
        for key, value in chosen.items()
        if value != defaults.get(key) and is_unused(key, value)
    ]


def without_other_methods(settings: Mapping[str, object], method: str) -> dict[str, Any]:
    """Return flat settings without the tables of all other methods."""
    table_name = METHODS[method].table_name if method in METHODS else ""
    return {
        key: value
        for key, value in settings.items()
        if (name := key.partition(".")[0]) == table_name or name not in METHODS
    }


def flower_config(settings: Settings) -> dict[str, Any]:
    """Return the settings as a nested run configuration with only keys that Flower accepts."""
    table = settings.model_dump(by_alias=True)
    text = table.pop(method_named(settings.method).table_name, {})
    return table | {TEXT: tomli_w.dumps(text | {name: table.pop(name) for name in BESIDE})}


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=+-]+", "-", text)[:60]


def _validated(
    faults: list[str],
    section: type[SectionT],
    table: object,
    beside: Mapping[str, type[Section]],
    *under: str,
) -> SectionT | None:
    """Return the section of this table. If it is invalid, add the faults to `faults`, return None.

    beside: further tables to look up an unknown key in.
    """
    try:
        return section.model_validate(table)
    except ValidationError as error:
        faults.append(explain_all(error.errors(), section, under, beside))
        return None


def _nested(config: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in config.items():
        *tables, leaf = key.split(".")
        table = nested
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{key}: {name!r} is a value, not a table of settings")
        earlier = table.get(leaf)
        if isinstance(value, Mapping):
            inner = _nested(value)
            if earlier is not None and not isinstance(earlier, dict):
                raise SettingsError(f"{key}: {leaf!r} is a value, not a table of settings")
            table[leaf] = {**(earlier or {}), **inner}
        else:
            table[leaf] = value
    return nested


def _table_in(text: object) -> Mapping[str, object]:
    """Return the table that a text holds as lines of TOML, or as one line with commas."""
    if isinstance(text, Mapping):
        return text
    if not isinstance(text, str):
        raise SettingsError(f"{TEXT} = {text!r}: must be a table in TOML")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        with suppress(tomllib.TOMLDecodeError):
            table: dict[str, Any] = tomllib.loads(f"table = {{{text}}}")["table"]
            return table
        raise SettingsError(f"{TEXT} = {text!r}: not a table in TOML: {error}") from None


def parsed(text: str) -> Any:
    """Return the value in ``KEY=VALUE``, read as TOML, or as plain text if it is not valid TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, an endless number, brackets in brackets
        return text


def written(value: object) -> str:
    """Return a value as text. A plain text stays as it is unless it would be read as TOML."""
    if isinstance(value, str) and value == value.strip() and parsed(value) == value:
        return value
    return _inline(value)


def _inline(value: object) -> str:
    """Return the value in TOML, on one line."""
    if isinstance(value, Mapping):
        pairs = (f"{_inline(str(key))} = {_inline(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")


def flags(settings: Mapping[str, object]) -> str:
    """Return settings as options of a command line."""
    pairs = (f"{key}={written(value)}" for key, value in settings.items())
    return " ".join(f"--set {shlex.quote(pair)}" for pair in pairs)
