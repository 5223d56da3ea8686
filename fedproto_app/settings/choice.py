"""What of a source takes part, and how its tables are read: the types of these settings."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationInfo

from fedproto_app.core.section import kebab

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
NAMES = "names between commas"  # what is allowed, in the documents


@dataclass(frozen=True)
class Choice:
    """What of a source takes part; empty: all of it, found by itself.

    clients: by name. columns: those of values in tables with several, in this order.
    time_column, client_column: those of tables that hold times, and the clients' names.
    """

    clients: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    time_column: str = ""
    client_column: str = ""


def names_in(text: str) -> tuple[str, ...]:
    """The names in a text, between commas; one that has a comma stands in quotes."""
    return tuple(next(csv.reader([text], skipinitialspace=True))) if text.strip() else ()


def _name_list(given: object, info: ValidationInfo) -> str:
    """The names in a text or list, each once, as one text."""
    told = f"data.{kebab(info.field_name or '')} = {given!r}"
    # `--set data.clients=773869` is a number in TOML
    named = names_in(given) if isinstance(given, str) else [given] if _is_name(given) else given
    if not isinstance(named, list | tuple) or not all(map(_is_name, named)):
        raise ValueError(f"{told}: expected names between commas, or a list of texts")
    if named == []:
        raise ValueError(f"{told}: names nothing; leave the key out to have all")
    names = [str(name).strip() for name in named]
    if not all(names):
        raise ValueError(f"{told}: a name is empty")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{told}: {name!r} is named twice")
    return ",".join(map(_quoted, names))


def _is_name(given: object) -> bool:
    return isinstance(given, int | str) and not isinstance(given, bool)


def _quoted(name: str) -> str:
    """The name as `names_in` reads it."""
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"') else name


def _word(given: object) -> object:
    return str(given).lower() if isinstance(given, bool) else given


def _name_of_sign(given: object) -> object:
    return next((name for name, sign in DELIMITERS.items() if given == sign), given)


NameList = Annotated[str, BeforeValidator(_name_list)]
Header = Annotated[Literal["auto", "true", "false"], BeforeValidator(_word)]
Delimiter = Annotated[
    Literal["auto", "comma", "semicolon", "tab", "pipe"], BeforeValidator(_name_of_sign)
]
Decimal = Literal["point", "comma"]
TimeUnit = Literal["auto", "iso", "s", "ms", "us", "ns", "step"]
