"""``fedproto init``: write a settings file for the data at hand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from pydantic.fields import FieldInfo
from rich.console import Console

from fedproto_app.cli import say_next
from fedproto_app.cli.options import (
    Clients,
    ClientsFrom,
    Covariates,
    Holidays,
    Horizon,
    KnownColumns,
    Period,
    ReadingChanges,
    Source,
    Target,
    reading_changes,
)
from fedproto_app.core.errors import SettingsError
from fedproto_app.settings import Section, Settings, without_markdown

_COMMENTED_OUT = ("seed", "output.dir")  # settings that the next experiment often changes
_WIDEST = 40  # the comment on a longer setting stands above it


def init(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="The data: a file or folder, as for fedproto try")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="The file to write. Default: here, named as FILE."),
    ] = None,
    horizon: Horizon = None,
    period: Period = None,
    clients_from: ClientsFrom = "",
    target: Target = "",
    known_columns: KnownColumns = None,
    covariates: Covariates = "",
    holidays: Holidays = "",
    source: Source = "",
    clients: Clients = None,
    changes: ReadingChanges = None,
) -> None:
    """Write a commented settings file for the data at hand.

    The file holds what `fedproto try` would choose: how to read the data, the
    period and the calendar taken from the data's clock, and the federated
    closed form. Change what you like, then run it.

    [bold]Examples[/bold]

      fedproto init sales.csv
      fedproto init sales.csv --target units --known price --horizon 28
      fedproto run sales.toml
    """
    console = Console(stderr=True, highlight=False)
    console.print(f"reading {path} …", markup=False)  # torch and the readers are slow to import
    from fedproto_app.experiments.trial import Wishes, plan_of

    file = out or Path(f"{path.name.split('.')[0] or 'data'}.toml")
    if file.exists():
        raise SettingsError(f"{file}: exists already and is never overwritten; --out names another")
    overrides = reading_changes(changes, source, known_columns, covariates, holidays)
    wishes = Wishes(horizon, period, clients_from, clients, changes=overrides, target=target)
    plan = plan_of(path, wishes)
    chosen = {**plan.settings, **plan.rows[plan.together].changes}
    warnings = [f"warning: {line}" for line in plan.warnings]
    command = f"fedproto run {shlex.quote(str(file))}"
    text = commented_settings(chosen, [*plan.facts, *warnings, command])
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--out {file}: {error.strerror}") from None
    typer.echo(file)
    say_next(console, f"fedproto run {shlex.quote(str(file))}")


def commented_settings(changes: Mapping[str, object], heading: list[str]) -> str:
    """Return a TOML file of settings with dotted keys, and with a comment on what each means."""
    lines = [f"# {' '.join(line.split())}" for line in heading]
    absent = {key: None for key in _COMMENTED_OUT if key not in changes}
    tables: dict[str, list[str]] = {"": []}
    for key, value in [*changes.items(), *absent.items()]:
        table, _, name = key.rpartition(".")
        setting = _field(key)
        shown = setting.default if value is None else value
        entry = f"{'# ' if value is None else ''}{name} = {json.dumps(shown, ensure_ascii=False)}"
        meaning = without_markdown(setting.description or "")
        row = [f"# {meaning}", entry] if len(entry) > _WIDEST else [f"{entry:{_WIDEST}}# {meaning}"]
        tables.setdefault(table, []).extend(row)
    for table, rows in tables.items():
        lines += ["", *([f"[{table}]"] if table else []), *rows]
    return "\n".join(lines) + "\n"


def _field(key: str) -> FieldInfo:
    """Return the field of a setting with this dotted key."""
    section: object = Settings
    *tables, name = key.split(".")
    for table in tables:
        section = _by_alias(section)[table].annotation
    return _by_alias(section)[name]


def _by_alias(section: object) -> dict[str, FieldInfo]:
    assert isinstance(section, type)
    assert issubclass(section, Section)
    return {info.alias or name: info for name, info in section.model_fields.items()}
