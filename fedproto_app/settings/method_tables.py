"""The tables of all methods in docs/methods.md and docs/secure-sum.md, from what methods declare.

`python -m fedproto_app.settings.tables --write` writes them between markers. In docs/methods.md a
row keeps the words that a person wrote about its method. A new method gets a row made of its
declarations and of the first sentence of its module.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Literal, get_args, get_origin

from fedproto_app.core.method import SEQUENCE_TASKS, Method
from fedproto_app.core.methods import METHODS, part_of
from fedproto_app.core.sends import Sends, Sizes, unmaskable

_BEGIN, _END = "<!-- methods: begin -->\n", "<!-- methods: end -->\n"
_METHODS_HEAD = "| method | works on | sent | cost | source |\n|---|---|---|---|---|\n"
_MASKS_HEAD = "| methods | masked sums | what is summed, or why not |\n|---|---|---|\n"
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


def with_masks_table(text: str) -> str:
    """Return the text of docs/secure-sum.md with its table rewritten.

    Methods with masked sums come first, and methods with the same reason share a row. A choice of a
    method's settings that changes the answer has a row of its own.
    """
    sharing: dict[tuple[str, str], list[str]] = {}
    for name, method in METHODS.items():
        sharing.setdefault(_masked_cells(releases_by_default(method)), []).append(f"`{name}`")
        for choice, releases in _other_choices(method):
            sharing.setdefault(_masked_cells(releases), []).append(f"`{choice}`")
    in_order = sorted(sharing, key=lambda cells: cells[0], reverse=True)
    rows = [f"| {', '.join(sharing[cells])} | {' | '.join(cells)} |\n" for cells in in_order]
    return _replaced(text, _MASKS_HEAD + "".join(rows))


def _masked_cells(releases: Sequence[Sends]) -> tuple[str, str]:
    """Return whether these releases go with masked sums, and what is summed or why they do not."""
    if reason := unmaskable(releases):
        return "no", reason
    return "yes", "totals of " + " and of ".join(release.name for release in releases)


def _other_choices(method: Method) -> Iterator[tuple[str, Sequence[Sends]]]:
    """Yield the choices of the method's table with which it goes with masked sums, or does not,
    unlike with the default, and what it then declares. It is on the last of its tasks."""
    learner = part_of(method, "learner", (method.tasks or ("forecasting",))[-1])
    usual = unmaskable(learner.sends(method.settings(), Sizes()))
    for field, record in method.settings.model_fields.items():
        words = get_args(record.annotation) if get_origin(record.annotation) is Literal else ()
        for word in words:
            releases = learner.sends(method.settings.model_construct(**{field: word}), Sizes())
            if releases and bool(unmaskable(releases)) != bool(usual):
                yield f'{method.name}.{field.replace("_", "-")} = "{word}"', releases


def works_on(method: Method) -> str:
    """Return what a method works on, in words: "all", or "series, in a simulation"."""
    tasks = [task for task in _HOLDS if method.works_with(task)]
    words = [_HOLDS[task] for task in tasks]
    if set(SEQUENCE_TASKS) <= set(tasks):
        words = [word for word in words if not word.startswith("sequences")] + ["sequences"]
    where = ["in a simulation"] if method.needs_simulation else []
    return ", ".join(["all"] if not method.tasks else [*words, *where])


def releases_by_default(method: Method) -> Sequence[Sends]:
    """Return what a method declares with its table's defaults, on the first of its tasks."""
    learner = part_of(method, "learner", (*method.tasks, "forecasting")[0])
    releases: Sequence[Sends] = learner.sends(method.settings(), Sizes())
    return releases


def _words(name: str) -> str:
    """Return a new row's words: what clients send, no cost, and the module's first sentence."""
    names = ", ".join(release.name for release in releases_by_default(METHODS[name]))
    documented = inspect.getdoc(import_module(METHODS._modules[name])) or ""
    source = " ".join(documented.partition("\n\n")[0].split()).partition(": ")[0].rstrip(".")
    return f"{names or 'nothing'} | | {source.replace('|', ' ')}"


def _row(names: Sequence[str], *cells: str) -> str:
    return " | ".join(["| " + ", ".join(f"`{name}`" for name in names), *cells]) + " |\n"


def _between(text: str) -> str:
    return text[text.index(_BEGIN) + len(_BEGIN) : text.index(_END)]


def _replaced(text: str, table: str) -> str:
    start = text.index(_BEGIN) + len(_BEGIN)
    return text[:start] + table + text[text.index(_END) :]
