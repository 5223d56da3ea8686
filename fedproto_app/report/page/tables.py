"""Make the tables of a page, with texts to read and numbers to sort by, and the repeat commands."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from fedproto_app.core.charts import evenly_spaced
from fedproto_app.report.comparison import (
    BEST_ALONE,
    PAIR_COLUMNS,
    mean_errors,
    pairs,
    percent_gain,
)
from fedproto_app.report.gain import is_lower
from fedproto_app.report.runs import Group, Run
from fedproto_app.report.table import figure_texts, samples_texts, shown_columns
from fedproto_app.report.taking_part import Candidate
from fedproto_app.report.task_report import report_for
from fedproto_app.settings import defaults_of, without_other_methods
from fedproto_app.settings.reading import written
from fedproto_app.tasks.metrics import UNKNOWN, TaskMetrics, percent_text

MOST_CLIENTS = 2000  # rows. A page with more is slow
_MOST_METHODS = 6  # columns of the clients' table
_FEWEST_TO_FILTER = 8
_MOST_REFUSALS = 100  # rows
_OF_THE_PLACE = ("output.", "nodes.minimum")  # settings that depend on where a run is made
_PRIVACY_WORDS = {
    "epsilon": "ε: how much the sent values can reveal about one unit; smaller is safer",
    "delta": "δ: the probability that this bound fails",
    "unit": "the protected unit: a sample, or all data of a client",
}


@dataclass(frozen=True)
class Cell:
    """A cell of a table. key: the number that it is sorted by, or None to sort by its text."""

    text: str
    key: float | None = None
    number: bool = False

    @property
    def sorted_by(self) -> str:
        """The sort key for the page's script: a number, or "" to sort by the text."""
        if self.key is None:
            return ""
        return f"{self.key:.9g}" if isfinite(self.key) else "1e999"  # infinite in JavaScript


@dataclass(frozen=True)
class Row:
    """A row of a table. group, side: values to filter by, or "". marked: whether it stands out."""

    cells: Sequence[Cell]
    group: str = ""
    side: str = ""
    marked: bool = False


@dataclass(frozen=True)
class PageTable:
    """A table of the page.

    name: the name of its HTML element. title: the name that readers see. texts: the number of
    columns, counted from the left, that hold no numbers.
    """

    name: str
    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]
    texts: int
    note: str = ""
    filtered: bool = False

    @property
    def groups(self) -> list[str]:
        """The groups to filter by, or [] unless there are several."""
        names = sorted({row.group for row in self.rows if row.group})
        return names if len(names) > 1 else []

    @property
    def sides(self) -> list[str]:
        """The sides to filter by."""
        return sorted({row.side for row in self.rows if row.side})


def methods_table(
    groups: Sequence[Group], labels: Sequence[str], chosen: Candidate | None
) -> PageTable:
    """Return a table with a row for each of these groups, which share one task and dataset.

    The number of seeds is shown if a group has several.
    """
    columns, caption = shown_columns(groups)
    rows = []
    for n, (group, label) in enumerate(zip(groups, labels, strict=True)):
        cells = [Cell(column.texts[n], _key(column.means[n]), True) for column in columns]
        mark = chosen is not None and group is chosen.group
        rows.append(Row([Cell(label), *cells], marked=mark))
    titles = ["method", *(column.title for column in columns)]
    note = "● the federated method with the lowest validation error" if chosen else ""
    caption = f"{caption}, and in all"
    return PageTable("methods", "methods side by side", caption, titles, rows, 1, note)


def pairs_table(groups: Sequence[Group]) -> PageTable | None:
    """Return a table that compares each group with the best local model, or None without pairs."""
    compared = pairs(groups)
    if not compared:
        return None
    rows = []
    for pair in compared:
        _, method, against, *texts = pair.row()
        gain = pair.gain
        keys: list[float] = [len(gain.ratios), gain.better, gain.worse, 1 - gain.ratio]
        keys.append(inf if gain.interval is None else gain.interval[1])
        numbers = [Cell(text, key, True) for text, key in zip(texts, keys, strict=False)]
        rows.append(Row([Cell(method), Cell(against), *numbers, Cell(texts[-1])]))
    caption = (
        "compared client by client, with errors averaged over seeds: the numbers of clients with a "
        "lower and a higher error, the gain of the median client with its interval, and the "
        "finding, which follows the same rule as the verdict"
    )
    return PageTable("pairs", "methods client by client", caption, PAIR_COLUMNS[1:], rows, 2)


def clients_table(
    groups: Sequence[Group], labels: Sequence[str], chosen: Candidate | None
) -> PageTable | None:
    """Return a table with a row per client: figures of a single run, or errors of each method."""
    if len(groups) == 1:
        return _clients_of_run(groups[0])
    return _clients_by_method(groups, labels, chosen, report_for(groups[0].task).metrics)


def _clients_of_run(group: Group) -> PageTable | None:
    run = group.runs[0]
    table, shown = run.clients, report_for(group.task).metrics.every_client
    texts = [samples_texts(table), *(figure_texts(table, field) for field in shown)]
    keys = [table[name].tolist() for name in ("samples", *(field.name for field in shown))]
    rows = []
    for n in evenly_spaced(len(table.clients), MOST_CLIENTS):
        cells = [Cell(text[n], _key(key[n]), True) for text, key in zip(texts, keys, strict=True)]
        client, true_group = table.clients[n], table.groups[n]
        rows.append(Row([Cell(client), Cell(true_group), *cells], group=true_group))
    titles = ["client", "group", "samples", *(field.title for field in shown)]
    caption = "test figures of each client's kept model, unless a column says otherwise"
    return _table(titles, rows, caption, len(table.clients))


def _clients_by_method(
    groups: Sequence[Group],
    labels: Sequence[str],
    chosen: Candidate | None,
    metrics: TaskMetrics,
) -> PageTable | None:
    columns_shown = _shown_groups(groups, chosen)
    errors = {labels[place]: mean_errors(groups[place], metrics) for place in columns_shown}
    group_of: dict[str, str] = {}
    for group in groups:
        table = group.runs[0].clients
        group_of |= dict(zip(table.clients, table.groups, strict=True))
    names = [name for name in group_of if any(name in error_of for error_of in errors.values())]
    if not names:
        return None
    ratios = chosen.gain.ratios if chosen else {}
    rows = []
    names.sort()
    for name in (names[place] for place in evenly_spaced(len(names), MOST_CLIENTS)):
        cells = [_error_cell(error_of.get(name), metrics) for error_of in errors.values()]
        side = ""
        if chosen is not None:
            ratio = ratios.get(name, inf)
            cells = [
                Cell(percent_gain(ratio), 1 - ratio, True)
                if isfinite(ratio)
                else Cell(UNKNOWN, inf, True),
                _error_cell(chosen.rival[name].test if name in chosen.rival else None, metrics),
                *cells,
            ]
            gains = is_lower(ratio, 1)
            side = "" if name not in ratios else "gains" if gains else "does not gain"
        rows.append(Row([Cell(name), Cell(group_of[name]), *cells], group_of[name], side))
    beside = ["gain", BEST_ALONE] if chosen else []
    titles = ["client", "group", *beside, *errors]
    caption = f"test {metrics.error} of each client with each method, averaged over seeds; lower is"
    caption += " better"
    if chosen is not None:
        caption += f"; gain: how much lower it is with {chosen.label} than with the {BEST_ALONE}"
    omitted = len(groups) - len(columns_shown)
    note = f"{omitted} further rows of the table of methods are left out." if omitted > 0 else ""
    return _table(titles, rows, caption, len(names), note)


def _shown_groups(groups: Sequence[Group], chosen: Candidate | None) -> list[int]:
    """Return the positions of the groups that get a column: first the chosen group.

    Up to two groups that shared nothing come next, then the others in the order of the table.
    """
    places = list(range(len(groups)))
    alone = [place for place in places if groups[place].is_alone]
    first = [place for place in places if chosen is not None and groups[place] is chosen.group]
    order = list(dict.fromkeys([*first, *alone[:2], *places]))
    return order[:_MOST_METHODS]


def _table(
    titles: Sequence[str], rows: Sequence[Row], caption: str, clients: int, note: str = ""
) -> PageTable:
    if not any(row.group for row in rows):  # no client has a true group
        titles = [titles[0], *titles[2:]]
        rows = [Row([row.cells[0], *row.cells[2:]], "", row.side) for row in rows]
    texts = next(place for place, cell in enumerate(rows[0].cells) if cell.number) if rows else 1
    if len(rows) < clients:
        note = f"{len(rows)} of {clients} clients, evenly sampled. {note}".strip()
    filtered = len(rows) >= _FEWEST_TO_FILTER
    return PageTable("clients", "every client", caption, titles, rows, texts, note, filtered)


def _error_cell(error: float | None, metrics: TaskMetrics) -> Cell:
    if error is None:
        return Cell(UNKNOWN, inf, True)
    return Cell(f"{percent_text(error)}%" if metrics.is_accuracy else f"{error:.4g}", error, True)


def _key(value: float | None) -> float:
    return inf if value is None or not isfinite(value) else value


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
            for line in run.rounds:
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
    """Return label, counted value and meaning for each run that counted a privacy budget."""
    spent_budgets = []
    for group, label in zip(groups, labels, strict=True):
        spent = group.runs[0].summary.get("privacy")
        if isinstance(spent, Mapping) and spent.get("mechanism") != "none":
            for name, value in spent.items():
                text = f"{value:.4g}" if isinstance(value, float) else str(value)
                spent_budgets.append((label, f"{name} = {text}", _PRIVACY_WORDS.get(name, "")))
    return spent_budgets


def repeat_of(group: Group, label: str) -> Repeat:
    """Return how to repeat the first run of a group."""
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


def _changed(run: Run) -> dict[str, object]:
    defaults = defaults_of(run.method)
    return {
        key: value
        for key, value in without_other_methods(run.settings, run.method).items()
        if value != defaults.get(key) and not key.startswith(_OF_THE_PLACE)
    }
