"""What a sweep varies: a setting with some values, or with a range to draw from.

An axis has a text, ``10,30,100`` or ``1e-4..1e-2:log``, on the command line, in a file and in the
sweep's plan.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedproto_app.core.errors import SettingsError
from fedproto_app.settings.changes import parsed

DIGITS = 4  # significant ones of a drawn number: settings that people can read
_RANGE = re.compile(r"(?P<low>.+?)\.\.(?P<high>.+?)(?P<log>:log)?")


@dataclass(frozen=True)
class Values:
    """Some values of a setting."""

    key: str
    values: tuple[Any, ...]

    def draw(self, random: np.random.Generator) -> Any:
        return self.values[int(random.integers(len(self.values)))]

    @property
    def samples(self) -> tuple[Any, ...]:
        """Values whose check is a check of all."""
        return self.values


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; whole ones if both are. log: even in logarithms."""

    key: str
    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, random: np.random.Generator) -> float:
        if self.whole and not self.log:
            return int(random.integers(int(self.low), int(self.high), endpoint=True))
        if not self.log:
            return self.rounded(random.uniform(self.low, self.high))
        if self.whole:  # every whole number has the span around it, as in Optuna
            drawn = random.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5))
            return min(max(round(math.exp(drawn)), int(self.low)), int(self.high))
        return self.rounded(math.exp(random.uniform(math.log(self.low), math.log(self.high))))

    def rounded(self, value: float) -> float:
        """With few digits, but no less than low and no more than high."""
        return min(max(float(f"{value:.{DIGITS}g}"), float(self.low)), float(self.high))

    @property
    def samples(self) -> tuple[Any, ...]:
        """Values whose check is a check of all."""
        return self.low, self.high

    @property
    def text(self) -> str:
        return f"{self.low}..{self.high}" + (":log" if self.log else "")


Axis = Values | Range


def values_axis(key: str, values: object, where: str) -> Values:
    """The axis of these values. where: what says so, as a message begins."""
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise SettingsError(f"{where}: expected a list of values, such as [10, 30, 100]")
    for number, value in enumerate(values):
        if isinstance(value, Mapping):
            raise SettingsError(f"{where}: {value!r} is a table, not a value")
        if any(value == other and type(value) is type(other) for other in values[:number]):
            raise SettingsError(f"{where}: {value!r} stands there twice")
    return Values(key, tuple(values))


def range_axis(key: str, text: object, where: str) -> Range:
    """The axis of ``LOW..HIGH`` or ``LOW..HIGH:log``. where: what says so, as a message begins."""
    match = _RANGE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise SettingsError(f"{where}: expected LOW..HIGH or LOW..HIGH:log, such as 1e-4..1e-2:log")
    low, high = (_number(match[name], where) for name in ("low", "high"))
    log = bool(match["log"])
    if not low < high:
        raise SettingsError(f"{where}: {low} is not below {high}")
    if log and low <= 0:
        raise SettingsError(f"{where}: a logarithmic range begins above 0")
    if not (isinstance(low, int) and isinstance(high, int)):
        low, high = float(low), float(high)
    return Range(key, low, high, log)


def grid_option(text: str) -> Values:
    """One ``--grid KEY=A,B,C``; a value that is no TOML is the text itself."""
    key, values = _parted(text, "--grid", "fuels.beta=10,30,100")
    try:
        listed = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        listed = [parsed(part.strip()) for part in values.split(",")]
    return values_axis(key, listed, f"--grid {text}")


def range_option(text: str) -> Range:
    """One ``--range KEY=LOW..HIGH[:log]``."""
    key, bounds = _parted(text, "--range", "optimizer.learning-rate=1e-4..1e-2:log")
    return range_axis(key, bounds, f"--range {text}")


def _parted(text: str, option: str, example: str) -> tuple[str, str]:
    key, equals, rest = (part.strip() for part in text.partition("="))
    if not (key and equals and rest):
        raise SettingsError(f"{option} {text}: expected KEY=…, for example {option} {example}")
    return key, rest


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
        if math.isfinite(value):
            return int(text) if re.fullmatch(r"\s*[+-]?\d+\s*", text) else value
    except ValueError:
        pass
    raise SettingsError(f"{where}: {text!r} is not a number")
