"""The records of a page: refusals, privacy, settings, and the commands that repeat the runs."""

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
_OF_THE_PLACE = ("output.", "nodes.minimum")  # settings about where a run was made
_PRIVACY_WORDS = {
    "epsilon": "ε: how much the sent values can reveal about one unit; smaller is safer",
    "delta": "δ: the probability that this bound fails",
    "unit": "the protected unit: a sample, or all data of a client",
}


@dataclass(frozen=True)
class Repeat:
    """How to repeat one run. changed: the settings that differ from their defaults."""

    label: str
    folder: str
    command: str
    changed: Sequence[tuple[str, str]]
    versions: str
    seeds: str


def refusals_table(groups: Sequence[Group], labels: Sequence[str]) -> tuple[PageTable | None, str]:
    """Return a table of refused replies by node, client and reason, and a sentence about them."""
    rounds_by_refusal: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    late = orders = 0
    for group, label in zip(groups, labels, strict=True):
        for run in group.runs:
            if not (run.folder / "rounds.jsonl").exists():
                continue
            for line in read_rounds(run.folder):
                late += int(line.get("late", 0))
                orders += int(line.get("asked", 0))
                for refusal in line.get("refused", ()):
                    rounds_by_refusal[
                        label, refusal["node"], refusal["client"], refusal["reason"]
                    ].append(line["round"])
    times = sum(map(len, rounds_by_refusal.values()))
    sentence = (
        f"All replies to {orders:,} orders arrived in time and were used."
        if not times and not late
        else f"Of {orders:,} orders to nodes, {late:,} were not answered in time; {times:,} "
        "replies were refused, in full or for one client, and the round continued without them."
    )
    if not rounds_by_refusal:
        return None, sentence
    rows = [
        Row(
            [
                *(Cell(text) for text in (label, node, client or "(whole node)", reason)),
                Cell(f"{len(rounds):,}", float(len(rounds)), True),
                Cell(f"{min(rounds)}–{max(rounds)}", float(min(rounds)), True),
            ]
        )
        for (label, node, client, reason), rounds in sorted(
            rounds_by_refusal.items(), key=lambda item: -len(item[1])
        )
    ]
    omitted = len(rows) - _MOST_REFUSALS
    note = f"{omitted} less frequent rows are left out." if omitted > 0 else ""
    titles = ("method", "node", "client", "reason", "times", "rounds")
    caption = "refused replies, the most frequent first"
    return PageTable(
        "refusals", "refused replies", caption, titles, rows[:_MOST_REFUSALS], 4, note
    ), sentence


def privacy(groups: Sequence[Group], labels: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return label, counted value and its meaning, for the runs that count a privacy budget."""
    spent_budgets = []
    for group, label in zip(groups, labels, strict=True):
        spent = group.runs[0].summary.get("privacy")
        if isinstance(spent, Mapping) and spent.get("mechanism") != "none":
            for name, value in spent.items():
                text = f"{value:.4g}" if isinstance(value, float) else str(value)
                spent_budgets.append((label, f"{name} = {text}", _PRIVACY_WORDS.get(name, "")))
    return spent_budgets


def repeats(groups: Sequence[Group], labels: Sequence[str]) -> list[Repeat]:
    """Return one entry for each group, for its first seed."""
    return [_repeat(group, label) for group, label in zip(groups, labels, strict=True)]


def _repeat(group: Group, label: str) -> Repeat:
    run = group.runs[0]
    changed = _changed(run)
    words = ["fedproto", "run"]
    for key, value in changed.items():
        words += ["--set", f"{key}={written(value)}"]
    if (run.folder / "state").is_dir() and "nodes.minimum" in run.settings:  # a simulation
        words += ["--nodes", str(run.settings["nodes.minimum"])]
    versions = ", ".join(f"{name} {number}" for name, number in run.summary["versions"].items())
    return Repeat(
        label,
        run.folder.name,
        shlex.join(words),
        [(key, written(value)) for key, value in changed.items()],
        versions,
        ", ".join(str(member.summary["seed"]) for member in group.runs),
    )


def _changed(run: Run) -> dict[str, Any]:
    defaults = defaults_of(run.method)
    return {
        key: value
        for key, value in without_other_methods(run.settings, run.method).items()
        if value != defaults.get(key) and not key.startswith(_OF_THE_PLACE)
    }
