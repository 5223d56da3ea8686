"""Rows of the table from runs that have ended."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from benchmarks.faults.table import Row, say
from benchmarks.faults.trial import ROUNDS, Trial, summary

HIT = "harbour"  # the node that is harmed


@cache
def reference(method: str) -> bytes:
    """Return the result of a run without a fault; it runs at the first call."""
    with tempfile.TemporaryDirectory(prefix="fedproto-faults-") as folder:
        say(f"the uninterrupted run of {method}")
        with Trial(Path(folder) / "trial", {"method": method}) as trial:
            trial.begin()
            trial.finish()
            say(summary(trial.rounds()))
            return trial.result()


def row(
    trial: Trial, harm: str, expected: str, *, good: bool, method: str = "", also: str = ""
) -> Row:
    """Return the row of a run that has ended. method: of the reference run that it must equal."""
    rounds = trial.rounds()
    happened = "; ".join(part for part in (summary(rounds), also) if part)
    equal = trial.result() == reference(method) if method else None
    good = good and len(rounds) == ROUNDS and equal is not False
    return Row(harm, expected, happened, good, equal, trial.seconds_lost)


def log_lines(trial: Trial, *patterns: str) -> str:
    """Return the lines of the server's log that match these patterns, as one text without
    Flower's numbers for nodes."""
    events = re.sub(r"\b\d{15,}\b", "…", trial.events()).splitlines()
    lines = [line for line in events for pattern in patterns if re.search(pattern, line)]
    return ", ".join(f"`{line.removeprefix('event=')}`" for line in lines)


def counts(trial: Trial) -> list[tuple[int, int]]:
    """Return (answered, asked) for each round."""
    return [(line["answered"], line["asked"]) for line in trial.rounds()]
