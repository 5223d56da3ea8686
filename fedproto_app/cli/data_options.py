"""The options of ``fedproto data check`` that set settings of ``[data]``.

The task table lists them (`TaskRecord.options`); name, type, default and meaning come from the
settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, get_args

import typer
from pydantic.fields import FieldInfo

from fedproto_app.core.tasks import TASKS
from fedproto_app.settings import DataSettings, Section, without_markdown

# Settings whose name has another meaning outside of their table.
RENAMED = {"data.partition.classes": "classes-per-stage"}


@dataclass
class DataOption:
    """One option. keys: its setting by kind of data. fields: the settings' fields by key."""

    flag: str
    keys: dict[str, str] = field(default_factory=dict)
    fields: dict[str, FieldInfo] = field(default_factory=dict)

    def key(self, kind: str) -> str | None:
        """Return the setting for this kind of data or None; "" gives one that all kinds share."""
        if kind:
            return self.keys.get(kind)
        return next(iter(self.fields)) if len(self.fields) == 1 else None

    @property
    def type(self) -> type:
        """The type of its value; the settings check its range."""
        return type(next(iter(self.fields.values())).default)

    def parameter(self, name: str) -> inspect.Parameter:
        """Return the option as a parameter of a command; its default is None."""
        fields = self.fields.values()
        words = dict.fromkeys(word for setting in fields for word in get_args(setting.annotation))
        meanings = dict.fromkeys(without_markdown(setting.description or "") for setting in fields)
        defaults = [f"{key} = {setting.default}" for key, setting in self.fields.items()]
        option = typer.Option(
            self.flag,
            metavar="|".join(words) or None,
            help=f"{'; '.join(meanings)} ({', '.join(defaults).removesuffix(' = ')})".strip(),
            show_default=False,
            rich_help_panel=panel(list(self.keys)),
        )
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[self.type | None, option],
        )


def data_options() -> dict[str, DataOption]:
    """Return all options by parameter name; a name in two tables is a single option."""
    options: dict[str, DataOption] = {}
    for record in TASKS.values():
        for setting_or_table in record.options:
            for key, setting in _settings(setting_or_table).items():
                name = RENAMED.get(key, key.rpartition(".")[2])
                option = options.setdefault(name.replace("-", "_"), DataOption(f"--{name}"))
                option.keys[record.holds] = key
                option.fields[key] = setting
    return options


def _settings(name: str) -> dict[str, FieldInfo]:
    """Return the setting of this name in ``[data]``, or all settings of this table, by key."""
    setting = next(info for info in DataSettings.model_fields.values() if info.alias == name)
    inner = setting.annotation
    if isinstance(inner, type) and issubclass(inner, Section):
        return {f"data.{name}.{info.alias}": info for info in inner.model_fields.values()}
    return {f"data.{name}": setting}


def panel(kinds: Sequence[str]) -> str | None:
    """Return the heading of options for these kinds of data, None if all kinds accept them."""
    if set(kinds) == {record.holds for record in TASKS.values()}:
        return None
    return " and ".join(kinds).capitalize()


def with_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's ``**option_values`` by these options, for typer."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    options = [option.parameter(name) for name, option in data_options().items()]
    command.__signature__ = signature.replace(parameters=[*parameters, *options])  # type: ignore[attr-defined]
    return command
