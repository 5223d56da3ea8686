"""Explains a fault of settings in one line: the key, the value, what is allowed, similar keys."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedproto_app.core.section import Section

_MOST_HINTS = 3


def explain_all(
    faults: Sequence[Any],
    table: type[Section],
    under: Sequence[str],
    beside: Mapping[str, type[Section]] | None = None,
) -> str:
    """Return the text of all faults that pydantic found in a table.

    Each list of known keys appears only once. beside: further tables to look up an unknown key in.
    """
    lines: list[str] = []
    listed: set[str] = set()
    for fault in faults:
        line, marker, keys = explain(fault, table, under, beside).partition(" known")
        lines.append(line.rstrip(";") if keys in listed else line + marker + keys)
        listed.add(keys)
    return "; ".join(lines)


def explain(
    fault: Any,
    table: type[Section],
    under: Sequence[str] = (),
    beside: Mapping[str, type[Section]] | None = None,
) -> str:
    """Return one line that explains one of the faults that pydantic found in a table.

    under: the names of the tables that this table is in.
    """
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    location = [str(part) for part in fault["loc"]]
    key = ".".join([*under, *location])
    if fault["type"] == "extra_forbidden":
        return _unknown(location, table, under, beside or {})
    if fault["type"] == "missing":
        return f"{key}: must be set"
    if fault["type"] == "model_type":
        return f"{key} = {fault['input']!r}: must be a table of settings"
    hint = ""
    if fault["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        near = get_close_matches(str(fault["input"]), choices, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{key} = {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}{hint}"


def fields(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a table, by their keys in files."""
    return {str(f.alias): f for f in section.model_fields.values() if not f.exclude}


def subtable(field: FieldInfo) -> type[Section] | None:
    """Return the class of the table if the field is a table whose keys the app knows."""
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, Section) and kind is not Section:
        return kind
    return None


def _unknown(
    location: Sequence[str],
    table: type[Section],
    under: Sequence[str],
    beside: Mapping[str, type[Section]],
) -> str:
    *above, name = location
    section = table
    for part in above:
        inner = subtable(fields(section)[part])
        assert inner is not None
        section = inner
    place = ".".join([*under, *above])
    similar_keys = _near(name, section)
    all_leaves = [*leaves(table), *(leaf for key, t in beside.items() for leaf in leaves(t, key))]
    paths = [path for path, _ in all_leaves if name in (path[-1], "-".join(path))]
    if not place:
        similar_keys += get_close_matches(name.lower(), beside)
    elsewhere = [".".join([*under, *path]) for path in paths]
    suggestions = elsewhere + [f"{place}.{key}" if place else key for key in similar_keys]
    hint = f"did you mean {' or '.join(suggestions[:_MOST_HINTS])}? " if suggestions else ""
    known_keys = f"known in [{place}]" if place else "known"
    key = ".".join([*under, *location])
    return f"{key}: unknown setting; {hint}{known_keys}: {', '.join(sorted(fields(section)))}"


def _near(name: str, section: type[Section]) -> list[str]:
    """Return the keys whose symbol is the Greek letter of this name, and those spelled like it."""
    section_fields = fields(section)
    letters = [
        key for key, f in section_fields.items() if name.lower() in _letters(f.description or "")
    ]
    return list(dict.fromkeys(letters + get_close_matches(name.lower(), section_fields)))


def _letters(text: str) -> set[str]:
    """The names of the Greek letters in a text: "tau" for τ."""
    names = [unicodedata.name(character, "").lower() for character in text]
    letters = {name.split()[-1] for name in names if name.startswith("greek small letter")}
    special_letters = {
        "lambda": "lamda" in letters,
        "mu": "micro sign" in names,
    }  # unicode's own spelling
    return letters | {name for name, present in special_letters.items() if present}


def leaves(section: type[Section], *above: str) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield the paths and the fields of all keys in a table and its inner tables."""
    for key, field in fields(section).items():
        inner = subtable(field)
        if inner is None:
            yield (*above, key), field
        else:
            yield from leaves(inner, *above, key)
