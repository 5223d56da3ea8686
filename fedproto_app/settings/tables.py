"""Writes the settings and the methods into pyproject.toml and three pages of docs/.

    python -m fedproto_app.settings.tables --write

rewrites these files after a change of `Settings`, or when there is a new method. Without
``--write`` it says which of them are out of date.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from annotated_types import Ge, Gt, Le, Lt, MultipleOf
from pydantic.fields import FieldInfo

from fedproto_app.core.methods import METHODS
from fedproto_app.core.section import Section, without_markdown
from fedproto_app.settings.faults import fields, leaves, subtable
from fedproto_app.settings.method_tables import with_methods_table, with_protection_table
from fedproto_app.settings.reading import BESIDE
from fedproto_app.settings.run import Settings

_COMMENT_AT, _WIDTH = 32, 100  # columns of pyproject.toml
_TOML_TABLE = "[tool.flwr.app.config"
_AFTER_TOML = "[tool.setuptools"  # the text from here on stays as it is
_BEGIN, _END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"

# Ranges that docs/settings.md leaves out, `_SHARES` only if the description speaks of a share.
_OBVIOUS = ("≥ 0", "≥ 1", "> 0", "(0, 1000000.0]")
_SHARES = ("(0, 1)", "(0, 1]", "[0, 1)", "[0, 1]")
_FIRST_KEYS = {"task", "method", "rounds", "data.source", "data.path", "data.horizon"}
_FIRST_TITLE, _METHODS_TITLE = "The six that matter first", "Methods"
# For each table, the heading in docs/settings.md under which its keys stand.
_SUBJECTS = {
    "": "Run",
    "data": "Data",
    "data.synthetic": "Data",
    "response": "Data",
    "data.partition": "Images",
    "classification": "Images",
    "data.sequences": "Sequences",
    "data.clusters": "Sequences",
    "sequence": "Sequences",
    "encoder": "Sequences",
    "model": "Models and optimiser",
    "optimizer": "Models and optimiser",
    "aggregation": "Aggregation and privacy",
    "privacy": "Aggregation and privacy",
    "nodes": "Nodes and output",
    "output": "Nodes and output",
    "graph": _METHODS_TITLE,
}


def pyproject_tables() -> str:
    """``[tool.flwr.app.config]`` and the tables in it, with comments.

    The tables that only some methods read are left out, because `method-settings` holds them.
    """
    return "\n".join(_toml(Settings, ()))


def docs_tables() -> str:
    """Return Markdown lists of all keys, by subject, with the methods' own keys last."""
    tables: dict[str, type[Section]] = {}
    for method in METHODS.values():
        tables.setdefault(method.table_name, method.settings)
    methods = (leaf for name in sorted(tables) for leaf in leaves(tables[name], name))
    rows: dict[str, list[str]] = {
        title: [] for title in [_FIRST_TITLE, *dict.fromkeys(_SUBJECTS.values())]
    }
    for path, field in leaves(Settings):
        is_first = ".".join(path) in _FIRST_KEYS
        title = _FIRST_TITLE if is_first else _SUBJECTS[".".join(path[:-1])]
        rows[title].append(_row(path, field))
    rows[_METHODS_TITLE] += [_row(path, field) for path, field in methods]
    return "\n".join("\n".join([f"## {title}", "", *rows[title], ""]) for title in rows)


def _row(path: tuple[str, ...], field: FieldInfo) -> str:
    """Return the list item for this key in Markdown. Obvious ranges are left out."""
    values = allowed(field)
    is_share = values in _SHARES and "share" in (field.description or "")
    if field.annotation is bool or values in _OBVIOUS or is_share or values[:1].isalpha():
        values = ""  # the description makes it clear
    default = _toml_value(field).strip('"')
    return f"- `{'.'.join(path)}={default}`{_alternatives(default, values)}: {field.description}"


def _alternatives(default: str, values: str) -> str:
    """Return the text that follows the default: the other choices, a range, or ""."""
    if (code := re.fullmatch("`([^`]+)`", values)) and default in code[1].split():
        *first, last = (f"`{choice}`" for choice in code[1].split() if choice != default)
        return f"{''.join(f', {choice}' for choice in first)} or {last}"
    if values[:1] in ("(", "["):
        return f" in {values}"
    return f" ({values})" if values else ""


def allowed(field: FieldInfo) -> str:
    """Return the allowed values in Markdown, from the text given to `setting` or from the type."""
    if described := _described(field):
        return described
    if field.annotation is bool:
        return "true false"
    if choices := _choices(field):
        return f"`{' '.join(choices)}`"
    return _range(field)


def with_pyproject_tables(text: str) -> str:
    """Return the text of pyproject.toml with its tables rewritten."""
    start, end = text.index(_TOML_TABLE), text.index(_AFTER_TOML)
    return text[:start] + pyproject_tables() + "\n" + text[end:]


def with_docs_table(text: str) -> str:
    """Return the text of docs/settings.md with its tables rewritten."""
    start, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    return text[:start] + docs_tables() + text[end:]


DOCUMENTS = {
    "pyproject.toml": with_pyproject_tables,
    "docs/settings.md": with_docs_table,
    "docs/methods.md": with_methods_table,
    "docs/protection.md": with_protection_table,
}


def _toml(section: type[Section], above: tuple[str, ...]) -> Iterator[str]:
    yield ".".join([_TOML_TABLE, *above]) + "]"
    tables = []
    for key, field in fields(section).items():
        if not above and key in BESIDE:
            continue
        if (inner := subtable(field)) is not None:
            tables.append((key, inner))
            continue
        pair = f"{key} = {_toml_value(field)}"
        comment = textwrap.wrap(_comment(field), _WIDTH - _COMMENT_AT - 2, break_on_hyphens=False)
        for number, line in enumerate(comment):
            yield f"{'' if number else pair:<{_COMMENT_AT - 1}} # {line}"
        if not comment:
            yield pair
    yield ""
    for key, inner in tables:
        yield from _toml(inner, (*above, key))


def _comment(field: FieldInfo) -> str:
    """Return the choices and the description, without Markdown."""
    parts = (_described(field) or " | ".join(_choices(field)), field.description)
    text = ": ".join(part for part in parts if part)
    return without_markdown(text)


def _described(field: FieldInfo) -> str:
    """Return the text about allowed values that was passed to `setting`, or ""."""
    extra = field.json_schema_extra
    return str(extra["allowed"]) if isinstance(extra, dict) else ""


def _toml_value(field: FieldInfo) -> str:
    """Return the default. An empty table is "", because Flower drops tables without keys."""
    value = field.default
    return '""' if isinstance(value, Section) else json.dumps(value)


def _choices(field: FieldInfo) -> list[str]:
    """Return the texts of a `Literal`."""
    return [value for value in get_args(field.annotation) if isinstance(value, str)]


def _range(field: FieldInfo) -> str:
    low = high = multiple = ""
    for bound in field.metadata:
        match bound:
            case Ge(ge=value):
                low = f"≥ {value}"
            case Gt(gt=value):
                low = f"> {value}"
            case Le(le=value):
                high = f"≤ {value}"
            case Lt(lt=value):
                high = f"< {value}"
            case MultipleOf(multiple_of=value):
                multiple = f"a multiple of {value}"
    if low and high:
        opening, closing = "[" if low[0] == "≥" else "(", "]" if high[0] == "≤" else ")"
        return f"{opening}{low[2:]}, {high[2:]}{closing}"
    return ", ".join(part for part in (low, high, multiple) if part)


def main(arguments: list[str]) -> int:
    """Rewrite the documents with ``--write``. Otherwise return 1 if one is out of date."""
    root = Path(__file__).parents[2]
    stale = 0
    for name, render in DOCUMENTS.items():
        text = (root / name).read_text(encoding="utf-8")
        if (rendered := render(text)) == text:
            continue
        stale = 1
        if "--write" in arguments:
            (root / name).write_text(rendered, encoding="utf-8")
        print(name, "rewritten" if "--write" in arguments else "is out of date")
    return 0 if "--write" in arguments else stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
