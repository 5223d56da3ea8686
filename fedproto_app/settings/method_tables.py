"""Writes the tables of methods in docs/methods.md and docs/protection.md from the declarations.

`python -m fedproto_app.settings.tables --write` writes them between markers. In docs/methods.md a
row keeps what a person wrote about the method. The row of a new method is made from its
declarations and the first sentence of its docstring.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args, get_origin

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.method import SEQUENCE_TASKS, Method
from fedproto_app.core.methods import METHODS, part_of
from fedproto_app.core.section import Section
from fedproto_app.core.sends import Sends, Sizes, unmaskable
from fedproto_app.settings.reading import settings_from

_BEGIN, _END = "<!-- methods: begin -->\n", "<!-- methods: end -->\n"
_METHODS_HEAD = "| method | works on | sent | cost | source |\n|---|---|---|---|---|\n"
_PROTECTION_HEAD = "| methods | masked sums | noise | robust rules |\n|---|---|---|---|\n"
_YES = "yes"
_HOLDS = {
    "forecasting": "series",
    "classification": "images",
    "sequence-classification": "sequences of classes",
    "sequence-regression": "sequences of numbers",
}
_WRITTEN = re.compile(r"^\| (`[^|]+`) \| [^|]+ \| (.+) \|$", re.MULTILINE)


def with_methods_table(text: str) -> str:
    """Return the text of docs/methods.md with its table rewritten."""
    rows, missing = [], dict.fromkeys(METHODS)
    for names_cell, words in _WRITTEN.findall(_between(text)):
        names = [name for name in re.findall(r"`([^`]+)`", names_cell) if name in METHODS]
        for name in names:
            missing.pop(name, None)
        if names:
            rows.append(_row(names, works_on(METHODS[names[0]]), words))
    rows += [_row([name], works_on(METHODS[name]), _words(name)) for name in missing]
    return _replaced(text, _METHODS_HEAD + "".join(rows))


def with_protection_table(text: str) -> str:
    """Return the text of docs/protection.md with its table rewritten.

    Methods with the same protection share a row, and rows with the most come first. If a setting
    changes a method's protection, the setting gets a row too.
    """
    sharing: dict[tuple[str, ...], list[str]] = {}
    for name, method in METHODS.items():
        first, last = _tasks(method)
        sharing.setdefault(_protection(method, {}, first), []).append(f"`{name}`")
        by_default = _protection(method, {}, last)
        for key, value in _other_choices(method.settings):
            if _refusal(method, {key: value}, last):
                continue
            if (cells := _protection(method, {key: value}, last)) != by_default:
                sharing.setdefault(cells, []).append(f'`{name}.{key} = "{value}"`')
    in_order = sorted(sharing, key=lambda cells: [not cell.startswith(_YES) for cell in cells])
    rows = [" | ".join(["| " + ", ".join(sharing[cells]), *cells]) + " |\n" for cells in in_order]
    return _replaced(text, _PROTECTION_HEAD + "".join(rows))


def _protection(method: Method, choice: Mapping[str, str], task: str) -> tuple[str, str, str]:
    """Return whether a method works with masked sums, noise and robust rules, or why not.

    choice: settings in the method's table, by key.
    """
    releases = _releases(method, method.settings(**choice), task)
    if not releases:
        return ("sends nothing",) * 3
    totals = " and of ".join(release.name for release in releases)
    unbounded = [release.name for release in releases if not release.clip]
    no_noise = f"no bound on {unbounded[0]}" if unbounded else ""
    if method.joined_clients:
        no_noise = "clients see each other's values"
    return (
        unmaskable(releases) or f"{_YES}: totals of {totals}",
        no_noise or _YES,
        "no" if _refusal(method, choice, task, {"aggregation.rule": "median"}) else _YES,
    )


def _refusal(
    method: Method, choice: Mapping[str, str], task: str, more: Mapping[str, str] | None = None
) -> str:
    """Return why a run cannot have these settings, or "" if it can."""
    of_table = {f"{method.table_name}.{key}": value for key, value in choice.items()}
    try:
        settings_from({"method": method.name, "task": task, **of_table, **(more or {})})
    except SettingsError as error:
        return str(error)
    return ""


def _other_choices(table: type[Section]) -> Iterator[tuple[str, str]]:
    """Yield each key and value of the method's settings that offer a choice between texts."""
    for name, field in table.model_fields.items():
        values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        yield from ((name.replace("_", "-"), value) for value in values)


def works_on(method: Method) -> str:
    """Return in words what a method works on, such as "all" or "series, in a simulation"."""
    tasks = [task for task in _HOLDS if method.works_with(task)]
    words = [_HOLDS[task] for task in tasks]
    if set(SEQUENCE_TASKS) <= set(tasks):
        words = [word for word in words if not word.startswith("sequences")] + ["sequences"]
    where = ["in a simulation"] if method.needs_simulation else []
    return ", ".join(["all"] if not method.tasks else [*words, *where])


def _tasks(method: Method) -> tuple[str, str]:
    """Return the first and the last task of a method."""
    tasks = method.tasks or ("forecasting",)
    return tasks[0], tasks[-1]


def _releases(method: Method, section: Section, task: str) -> Sequence[Sends]:
    releases: Sequence[Sends] = part_of(method, "learner", task).sends(section, Sizes())
    return releases


def _words(name: str) -> str:
    """Return the text of a new row: what clients send, no cost, the module's first sentence."""
    method = METHODS[name]
    releases = _releases(method, method.settings(), _tasks(method)[0])
    names = ", ".join(release.name for release in releases)
    source = METHODS.meaning(name).partition(": ")[0]
    return f"{names or 'nothing'} | | {source.replace('|', ' ')}"


def _row(names: Sequence[str], *cells: str) -> str:
    return " | ".join(["| " + ", ".join(f"`{name}`" for name in names), *cells]) + " |\n"


def _between(text: str) -> str:
    return text[text.index(_BEGIN) + len(_BEGIN) : text.index(_END)]


def _replaced(text: str, table: str) -> str:
    start = text.index(_BEGIN) + len(_BEGIN)
    return text[:start] + table + text[text.index(_END) :]
