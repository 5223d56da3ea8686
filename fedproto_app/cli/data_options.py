"""The options of ``fedproto data check`` that stand for settings of ``[data]``.

The table of tasks says which there are (`TaskRecord.options`); name, type, default and meaning come
from the settings.
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

# Settings whose own name says something else outside their table.
RENAMED = {"data.partition.classes": "classes-per-stage"}


@dataclass
class DataOption:
    """One option. keys: the setting that it stands for, by what the data hold; fields: by key."""

    flag: str
    keys: dict[str, str] = field(default_factory=dict)
    fields: dict[str, FieldInfo] = field(default_factory=dict)

    def key(self, kind: str) -> str | None:
        """The setting for data of this kind; of an unknown kind, if it is one for all; or None."""
        if kind:
            return self.keys.get(kind)
        return next(iter(self.fields)) if len(self.fields) == 1 else None

    @property
    def type(self) -> type:
        """Of its value; the settings check what is allowed."""
        return type(next(iter(self.fields.values())).default)

    def parameter(self, name: str) -> inspect.Parameter:
        """The option as a parameter of a command: None if it is not given."""
        fields = self.fields.values()
        words = dict.fromkeys(word for one in fields for word in get_args(one.annotation))
        meanings = dict.fromkeys(without_markdown(one.description or "") for one in fields)
        defaults = [f"{key} = {one.default}" for key, one in self.fields.items()]
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
    """All options by the names of the command's parameters; a name in two tables is one option."""
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
    """The setting of this name below ``[data]``, or all in the table of this name, by key."""
    setting = next(one for one in DataSettings.model_fields.values() if one.alias == name)
    inner = setting.annotation
    if isinstance(inner, type) and issubclass(inner, Section):
        return {f"data.{name}.{one.alias}": one for one in inner.model_fields.values()}
    return {f"data.{name}": setting}


def panel(kinds: Sequence[str]) -> str | None:
    """The heading of options that only these kinds of data take; None if all do."""
    if set(kinds) == {record.holds for record in TASKS.values()}:
        return None
    return " and ".join(kinds).capitalize()


def with_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options in place of its ``**given``, as typer shall see it."""
    signature = inspect.signature(command, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    made = [option.parameter(name) for name, option in data_options().items()]
    command.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
    return command
