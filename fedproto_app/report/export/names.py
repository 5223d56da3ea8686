"""Make names of figures that other tools accept: letters, digits and a few marks.

Names of losses and figures may come from users' methods or from sites, so they can be any text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

MOST_LETTERS = 200

Value = TypeVar("Value")

_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")


def plain(name: str) -> str:
    """Return the name with slashes for dots, and other characters escaped by their numbers.

    The result never starts with a slash and has no empty part or part of dots, so that a tool that
    uses it as a path stays inside its folder.
    """
    parts = [
        _OTHER_CHARACTERS.sub(lambda match: f"_{ord(match[0]):x}_", part)
        for part in name.split(".")
    ]
    return "/".join(part or "_" for part in parts)[:MOST_LETTERS].rstrip("/")


def by_plain_names(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values by their `plain` names; the first wins if two names become equal."""
    plain_values: dict[str, Value] = {}
    for name, value in values.items():
        plain_values.setdefault(plain(name), value)
    return plain_values
