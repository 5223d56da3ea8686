"""Types of the settings that choose a source's clients and columns and say how to read tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationInfo

from fedproto_app.core.section import kebab

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
NAMES = "names between commas"  # how the documents describe the allowed values
_ANY_TEXT = "*"  # listed among the texts of a known column that may hold other texts too


@dataclass(frozen=True)
class Choice:
    """The part of a source that a run uses. An empty field means everything, or what is detected.

    clients: their names. columns: the value columns to use if a table has several, in this order.
    time_columns, client_columns: the columns with the times and with the clients' names. If there
    are several, their cells are joined.
    """

    clients: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    time_columns: tuple[str, ...] = ()
    client_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownColumn:
    """A column that clients know in advance, as ``data.known`` names it.

    values: the texts that the column may hold, as the setting lists them. If it lists none, this
    is (), and the texts are taken from the data. is_open: whether the column may also hold other
    texts. These become 0 in all of its indicator columns.
    """

    name: str
    values: tuple[str, ...] = ()
    is_open: bool = False

    @property
    def text(self) -> str:
        """The column as the setting names it."""
        listed = "|".join([*self.values, *[_ANY_TEXT] * self.is_open])
        return f"{self.name}={listed}" if listed else self.name

    def gives(self, column: str) -> bool:
        """Return whether a series's column, such as weather=rain, is made from this one."""
        return column == self.name or column.startswith(f"{self.name}=")


def known_in(text: str) -> tuple[KnownColumn, ...]:
    """Return the columns that are named in a text such as "temperature, weather=rain|fog"."""
    columns = []
    for entry in names_in(text):
        name, sign, listed = entry.partition("=")
        texts = [value.strip() for value in listed.split("|") if sign]
        values = tuple(value for value in texts if value != _ANY_TEXT)
        columns.append(KnownColumn(name.strip(), values, is_open=_ANY_TEXT in texts))
    return tuple(columns)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names that a text lists between commas. A name with a comma stands in quotes.

    Raises ValueError for a line break outside quotes.
    """
    try:
        return tuple(next(csv.reader([text], skipinitialspace=True))) if text.strip() else ()
    except csv.Error:
        raise ValueError(f"{text!r}: a name with a line break must be in quotes") from None


def text_of(names: Iterable[str]) -> str:
    """Return these names as the text that `names_in` reads."""
    return ",".join(map(_quoted, names))


def _name_list(value: object, info: ValidationInfo, table: str = "data") -> str:
    """Return the names in a text or list as one text. Raises ValueError if a name repeats."""
    entry = f"{table}.{kebab(info.field_name or '')} = {value!r}"
    # `--set data.clients=773869` is a number in TOML
    listed_names = (
        names_in(value) if isinstance(value, str) else [value] if _is_name(value) else value
    )
    if not isinstance(listed_names, list | tuple) or not all(map(_is_name, listed_names)):
        raise ValueError(f"{entry}: expected names between commas, or a list of texts")
    if listed_names == []:
        raise ValueError(f"{entry}: names nothing; leave the key out to have all")
    names = [str(name).strip() for name in listed_names]
    if not all(names):
        raise ValueError(f"{entry}: a name is empty")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{entry}: {name!r} is named twice")
    return text_of(names)


def _known_list(value: object, info: ValidationInfo) -> str:
    """Return the columns in a text or list as one text. Raises ValueError if one repeats."""
    text = _name_list(value, info)
    columns = known_in(text)
    names = [column.name for column in columns]
    for column in columns:
        if names.count(column.name) > 1:
            raise ValueError(f"data.known = {text!r}: {column.name!r} is named twice")
        if "" in (column.name, *column.values) or len({*column.values}) < len(column.values):
            raise ValueError(
                f"data.known = {text!r}: expected names of columns, and after = different texts, "
                "such as weather=rain|fog|sun"
            )
    return text


def _region(value: object) -> str:
    text = str(value)
    if text and not re.fullmatch(r"[A-Z]{2,4}(-[\w ]+)?", text):
        raise ValueError(
            f"data.holidays = {text!r}: expected the code of a country, such as DE, or of its "
            "part, such as DE-BY"
        )
    return text


def _is_name(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _quoted(name: str) -> str:
    """Return the name as `names_in` reads it."""
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\r\n') else name


def _name_of_sign(value: object) -> object:
    return next((name for name, sign in DELIMITERS.items() if value == sign), value)


def _line_or_word(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if text not in ("auto", "true", "false") and not (text.isdecimal() and int(text)):
        raise ValueError(
            f"data.header = {text!r}: expected auto, true, false, or the number of the line that "
            "names the columns"
        )
    return text


def _range(value: object, info: ValidationInfo) -> str:
    text = _name_list(value, info)
    if text and len(names_in(text)) != 2:
        raise ValueError(
            f"data.unfold = {text!r}: expected the first and the last of these columns, such as "
            "hh_0,hh_47"
        )
    return text


NameList = Annotated[str, BeforeValidator(_name_list)]
ColumnRange = Annotated[str, BeforeValidator(_range)]
Region = Annotated[str, BeforeValidator(_region)]
KnownList = Annotated[str, BeforeValidator(_known_list)]
NodeNames = Annotated[str, BeforeValidator(partial(_name_list, table="nodes"))]
Header = Annotated[str, BeforeValidator(_line_or_word)]
Delimiter = Annotated[
    Literal["auto", "comma", "semicolon", "tab", "pipe"], BeforeValidator(_name_of_sign)
]
Decimal = Literal["auto", "point", "comma"]
Missing = Literal["gap", "zero"]
Repeated = Literal["refuse", "mean", "last"]
TimeUnit = Literal["auto", "iso", "s", "ms", "us", "ns", "excel", "year", "step"]
