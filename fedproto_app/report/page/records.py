"""What a page records of runs: refusals, privacy, settings, and the line that repeats each."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedproto_app.report.page.tables import Cell, PageTable, Row
from fedproto_app.report.runs import Group, Run, read_rounds
from fedproto_app.settings import defaults_of, without_other_methods
from fedproto_app.settings.changes import written

_MOST_REFUSALS = 100  # rows
_OF_THE_PLACE = ("output.", "nodes.minimum")  # settings that say where a run was, not what
_PRIVACY_WORDS = {
    "epsilon": "ε: how much what was sent can tell of one unit; smaller is safer",
    "delta": "δ: how likely that bound fails",
    "unit": "what is hidden: a sample, or all of a client",
}


@dataclass(frozen=True)
class Repeat:
    """How one run is made again. changed: the settings that are not at their default."""

    label: str
    folder: str
    command: str
    changed: Sequence[tuple[str, str]]
    versions: str
    seeds: str


def refusals_table(groups: Sequence[Group], labels: Sequence[str]) -> tuple[PageTable | None, str]:
    """What servers did not use, by whom and why; and a sentence on it and on late answers."""
    found: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    late = asked = 0
    for group, label in zip(groups, labels, strict=True):
        for run in group.runs:
            if not (run.folder / "rounds.jsonl").exists():
                continue
            for line in read_rounds(run.folder):
                late += int(line.get("late", 0))
                asked += int(line.get("asked", 0))
                for one in line.get("refused", ()):
                    found[label, one["node"], one["client"], one["reason"]].append(line["round"])
    times = sum(map(len, found.values()))
    sentence = (
        f"Of {asked:,} orders to nodes every answer came in time and was used."
        if not times and not late
        else f"Of {asked:,} orders to nodes {late:,} were not answered in time; {times:,} answers "
        "were refused, whole or for a client, and the round went on without them."
    )
    if not found:
        return None, sentence
    rows = [
        Row(
            [
                *(Cell(text) for text in (label, node, client or "(all of the node)", reason)),
                Cell(f"{len(rounds):,}", float(len(rounds)), True),
                Cell(f"{min(rounds)}–{max(rounds)}", float(min(rounds)), True),
            ]
        )
        for (label, node, client, reason), rounds in sorted(
            found.items(), key=lambda item: -len(item[1])
        )
    ]
    left = len(rows) - _MOST_REFUSALS
    note = f"{left} rarer ones are left out." if left > 0 else ""
    titles = ("method", "node", "client", "reason", "times", "rounds")
    caption = "answers that were refused, the most frequent first"
    return PageTable(
        "refusals", "answers refused", caption, titles, rows[:_MOST_REFUSALS], 4, note
    ), sentence


def privacy(groups: Sequence[Group], labels: Sequence[str]) -> list[tuple[str, str, str]]:
    """Label, what was counted, and what that means, of the runs that counted some."""
    found = []
    for group, label in zip(groups, labels, strict=True):
        spent = group.runs[0].summary.get("privacy")
        if isinstance(spent, Mapping) and spent.get("mechanism") != "none":
            for name, value in spent.items():
                told = f"{value:.4g}" if isinstance(value, float) else str(value)
                found.append((label, f"{name} = {told}", _PRIVACY_WORDS.get(name, "")))
    return found


def repeats(groups: Sequence[Group], labels: Sequence[str]) -> list[Repeat]:
    """One for each group, by its first seed."""
    return [_repeat(group, label) for group, label in zip(groups, labels, strict=True)]


def _repeat(group: Group, label: str) -> Repeat:
    run = group.runs[0]
    changed = _changed(run)
    words = ["fedproto", "run"]
    for key, value in changed.items():
        words += ["--set", f"{key}={written(value)}"]
    if (run.folder / "state").is_dir() and "nodes.minimum" in run.settings:  # a simulation
        words += ["--nodes", str(run.settings["nodes.minimum"])]
    versions = ", ".join(f"{name} {its}" for name, its in run.summary["versions"].items())
    return Repeat(
        label,
        run.folder.name,
        shlex.join(words),
        [(key, written(value)) for key, value in changed.items()],
        versions,
        ", ".join(str(one.summary["seed"]) for one in group.runs),
    )


def _changed(run: Run) -> dict[str, Any]:
    defaults = defaults_of(run.method)
    return {
        key: value
        for key, value in without_other_methods(run.settings, run.method).items()
        if value != defaults.get(key) and not key.startswith(_OF_THE_PLACE)
    }
