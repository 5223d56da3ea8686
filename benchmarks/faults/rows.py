"""Rows of the table out of runs that have ended."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from benchmarks.faults.table import Row, say
from benchmarks.faults.trial import ROUNDS, Trial, told

HIT = "harbour"  # the node that is harmed


@cache
def reference(method: str) -> bytes:
    """The result of the run to which nothing happens, made when first asked for."""
    with tempfile.TemporaryDirectory(prefix="fedproto-faults-") as folder:
        say(f"the uninterrupted run of {method}")
        with Trial(Path(folder) / "trial", {"method": method}) as trial:
            trial.begin()
            trial.finish()
            say(told(trial.rounds()))
            return trial.result()


def row(
    trial: Trial, what: str, expected: str, *, good: bool, method: str = "", also: str = ""
) -> Row:
    """The row of a run that has ended. method: that of the run to be equal to, if it must be."""
    rounds = trial.rounds()
    happened = "; ".join(part for part in (told(rounds), also) if part)
    same = trial.result() == reference(method) if method else None
    good = good and len(rounds) == ROUNDS and same is not False
    return Row(what, expected, happened, good, same, trial.seconds_lost)


def found(trial: Trial, *patterns: str) -> str:
    """Those lines of the server's log that these patterns match, as one text without Flower's
    numbers for nodes."""
    events = re.sub(r"\b\d{15,}\b", "…", trial.events()).splitlines()
    lines = [line for line in events for pattern in patterns if re.search(pattern, line)]
    return ", ".join(f"`{line.removeprefix('event=')}`" for line in lines)


def counts(trial: Trial) -> list[tuple[int, int]]:
    """Answered and asked, of each round."""
    return [(line["answered"], line["asked"]) for line in trial.rounds()]
