"""``KEY=VALUE`` of a command line: a value in TOML; one that is no TOML is the text itself."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from typing import Any

import tomli_w


def parsed(text: str) -> Any:
    """The value that a text stands for."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, an endless number, brackets in brackets
        return text


def written(value: Any) -> str:
    """The text that stands for a value: itself, unless that would be read as something else."""
    if isinstance(value, str) and value == value.strip() and parsed(value) == value:
        return value
    return _inline(value)


def _inline(value: Any) -> str:
    """The value in TOML, on one line."""
    if isinstance(value, Mapping):
        pairs = (f"{_inline(str(key))} = {_inline(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")


def flags(settings: Mapping[str, Any]) -> str:
    """Settings as a command line gives them."""
    pairs = (f"{key}={written(value)}" for key, value in settings.items())
    return " ".join(f"--set {shlex.quote(pair)}" for pair in pairs)
