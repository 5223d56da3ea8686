"""Rows of the table from runs that have ended."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import Any

from benchmarks.faults.table import Row, fault, say
from benchmarks.faults.trial import NODES, ROUNDS, Trial, summary

HIT = "harbour"  # the node that is harmed
COMPLETE = [(len(NODES), len(NODES))] * ROUNDS  # counts of a run in which nobody is missing

Harm = Callable[[Trial], tuple[bool, str]]  # whether all went as expected, and what else was seen


def harmed(
    name: str,
    harm: str,
    expected: str,
    *,
    equal_to: str = "",
    changes: Mapping[str, Any] | None = None,
    fault_of_server: str = "",
) -> Callable[[Harm], Harm]:
    """Enter a fault with one row. The function does the harm and finishes the run.

    equal_to: the method of the run whose result must be equal. changes: of the run's settings.
    """

    def enter(do: Harm) -> Harm:
        @fault(name, equal_to)
        @wraps(do)
        def rows(folder: Path) -> Iterator[Row]:
            with Trial(folder, changes, fault=fault_of_server) as trial:
                good, also = do(trial)
                yield row(trial, harm, expected, good=good, method=equal_to, also=also)

        return do

    return enter


@cache
def reference(method: str) -> bytes:
    """Return the result of a run without a fault, which runs at the first call."""
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
