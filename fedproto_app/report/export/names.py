"""Names of figures that other tools take: letters, digits and a few marks.

Names of losses and figures may be those of a method, or of a site, that nobody here knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

MOST_LETTERS = 200

Value = TypeVar("Value")

_REST = re.compile(r"[^A-Za-z0-9_.-]")


def plain(name: str) -> str:
    """The name with its dots as slashes, and every other character escaped by its number.

    It never begins with a slash, and has no empty part and none of dots alone: no way out of a
    folder that a tool makes of it.
    """
    parts = [_REST.sub(lambda found: f"_{ord(found[0]):x}_", part) for part in name.split(".")]
    return "/".join(part or "_" for part in parts)[:MOST_LETTERS].rstrip("/")


def by_plain_names(values: Mapping[str, Value]) -> dict[str, Value]:
    """The values by their `plain` names; of names that become the same, the first keeps it."""
    found: dict[str, Value] = {}
    for name, value in values.items():
        found.setdefault(plain(name), value)
    return found
