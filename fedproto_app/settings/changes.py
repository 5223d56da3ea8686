"""``KEY=VALUE`` on a command line: the value is TOML, or plain text if it is no valid TOML."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from typing import Any

import tomli_w


def parsed(text: str) -> Any:
    """Return the value of a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, an endless number, brackets in brackets
        return text


def written(value: Any) -> str:
    """Return the text of a value; a plain text stays as it is unless it would be read as TOML."""
    if isinstance(value, str) and value == value.strip() and parsed(value) == value:
        return value
    return _inline(value)


def _inline(value: Any) -> str:
    """Return the value in TOML, on one line."""
    if isinstance(value, Mapping):
        pairs = (f"{_inline(str(key))} = {_inline(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")


def flags(settings: Mapping[str, Any]) -> str:
    """Return settings as options of a command line."""
    pairs = (f"{key}={written(value)}" for key, value in settings.items())
    return " ".join(f"--set {shlex.quote(pair)}" for pair in pairs)
