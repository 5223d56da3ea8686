"""The tables of a page: texts to read, numbers to sort by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TypeVar

import numpy as np

from fedproto_app.report.alone import is_alone
from fedproto_app.report.pairs import PAIR_COLUMNS, mean_errors, pairs
from fedproto_app.report.runs import Group, read_clients
from fedproto_app.report.table import comparison_columns, comparison_numbers, comparison_rows
from fedproto_app.report.taking_part import Candidate
from fedproto_app.report.task_report import UNKNOWN, ClientErrors, percent_text, report_for

MOST_CLIENTS = 2000  # rows; a page with more is slow
_MOST_METHODS = 6  # columns of the clients' table
_FEWEST_TO_FILTER = 8
_NO_SPREAD = f" ± {UNKNOWN}"  # of one seed
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Cell:
    """key: what it is sorted by, None for its text."""

    text: str
    key: float | None = None
    number: bool = False

    @property
    def sorted_by(self) -> str:
        """For the page: a number, or nothing for the text."""
        if self.key is None:
            return ""
        return f"{self.key:.9g}" if isfinite(self.key) else "1e999"  # infinite in JavaScript


@dataclass(frozen=True)
class Row:
    """group, side: what it can be filtered by, "" for nothing. marked: whether it stands out."""

    cells: Sequence[Cell]
    group: str = ""
    side: str = ""
    marked: bool = False


@dataclass(frozen=True)
class PageTable:
    """name: of its element, title: for people. texts: columns from the left that hold no
    numbers."""

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
        """To filter by, where there are several."""
        found = sorted({row.group for row in self.rows if row.group})
        return found if len(found) > 1 else []

    @property
    def sides(self) -> list[str]:
        """To filter by."""
        return sorted({row.side for row in self.rows if row.side})


def methods_table(
    groups: Sequence[Group], labels: Sequence[str], chosen: Candidate | None
) -> PageTable:
    """One row a group; all of one task and dataset. Seeds are told where somewhere are several."""
    seeds = any(len(group.runs) > 1 for group in groups)
    _, *columns = comparison_columns(groups)
    rows = []
    for group, label, (_, _, *texts), keys in zip(
        groups, labels, comparison_rows(groups), comparison_numbers(groups), strict=True
    ):
        cells = [
            Cell(text if seeds else text.removesuffix(_NO_SPREAD), _key(key), True)
            for text, key in zip(texts, keys, strict=True)
        ]
        mark = chosen is not None and group is chosen.group
        rows.append(Row([Cell(label), *cells[not seeds :]], marked=mark))
    titles = columns if seeds else [columns[0], *columns[2:]]
    caption = f"{report_for(groups[0].task).caption}; parameters up: a client and round, and in all"
    if seeds:
        caption = f"mean ± standard error over seeds; {caption}"
    note = "● the way of sharing that validation data choose" if chosen else ""
    return PageTable("methods", "methods side by side", caption, titles, rows, 1, note)


def pairs_table(groups: Sequence[Group]) -> PageTable | None:
    """Each group against the best alone, client by client; None where nothing can be compared."""
    found = pairs(groups)
    if not found:
        return None
    rows = []
    for pair in found:
        _, method, against, *texts = pair.row()
        keys: list[float] = [pair.clients, pair.better, pair.difference]
        keys += [inf if p is None else p for p in (pair.p, pair.corrected)]
        numbers = [Cell(text, key, True) for text, key in zip(texts, keys, strict=True)]
        rows.append(Row([Cell(method), Cell(against), *numbers]))
    caption = (
        "client by client, errors averaged over seeds: clients with the lower error, median of the "
        "differences (below 0: better), and whether chance may have made it"
    )
    return PageTable("pairs", "methods client by client", caption, PAIR_COLUMNS[1:], rows, 2)


def clients_table(
    groups: Sequence[Group], labels: Sequence[str], chosen: Candidate | None
) -> PageTable | None:
    """A row a client: of one run its figures, of several the errors with each method."""
    columns = report_for(groups[0].task).client_errors
    if len(groups) == 1 or columns is None:
        return _of_one_run(groups[0])
    return _of_several(groups, labels, chosen, columns)


def _of_one_run(group: Group) -> PageTable | None:
    run = group.runs[0]
    if not (run.folder / "clients.csv").exists():
        return None
    shown = report_for(group.task).every_client
    found = read_clients(run.folder)
    rows = []
    for row in _some(found):
        values = [_number(row.get(one.figure, "")) for one in shown]
        numbers = [
            Cell(one.text(value) if value is not None else UNKNOWN, _key(value), True)
            for one, value in zip(shown, values, strict=True)
        ]
        samples = Cell(row["samples"], _key(_number(row["samples"])), True)
        texts = [Cell(row["client"]), Cell(row["group"])]
        rows.append(Row([*texts, samples, *numbers], group=row["group"]))
    titles = ["client", "group", "samples", *(one.title for one in shown)]
    caption = "test figures of each client, of the models that the run kept unless a column differs"
    return _table(titles, rows, caption, len(found))


def _of_several(
    groups: Sequence[Group],
    labels: Sequence[str],
    chosen: Candidate | None,
    columns: ClientErrors,
) -> PageTable | None:
    wanted = _told_apart(groups, chosen)
    errors = {labels[place]: mean_errors(groups[place], columns) for place in wanted}
    known = {
        row["client"]: row["group"]
        for group in groups
        for row in read_clients(group.runs[0].folder)
    }
    names = [name for name in known if any(name in its for its in errors.values())]
    if not names:
        return None
    ratios = chosen.ratios() if chosen else {}
    rows = []
    for name in _some(sorted(names)):
        cells = [_error_cell(its.get(name), columns) for its in errors.values()]
        side = ""
        if chosen is not None:
            change = ratios.get(name, inf) - 1
            text = f"{100 * change:+.1f}%".replace("-", "−") if isfinite(change) else UNKNOWN
            cells = [
                Cell(text, change, True),
                _error_cell(chosen.rival.get(name), columns),
                *cells,
            ]
            side = "" if name not in ratios else "gains" if change < 0 else "does not gain"
        rows.append(Row([Cell(name), Cell(known[name]), *cells], known[name], side))
    beside = ["change", "best alone"] if chosen else []
    titles = ["client", "group", *beside, *errors]
    caption = f"test {columns.name} of each client by method, the mean over seeds; less is better"
    if chosen is not None:
        caption += f"; change: {chosen.label} beside the client's best alone"
    left = len(groups) - len(wanted)
    note = f"{left} more rows of the table of methods are left out here." if left > 0 else ""
    return _table(titles, rows, caption, len(names), note)


def _told_apart(groups: Sequence[Group], chosen: Candidate | None) -> list[int]:
    """The groups with a column: the chosen one first, then in the order of the table; some that
    shared nothing are among them."""
    places = list(range(len(groups)))
    alone = [place for place in places if all(map(is_alone, groups[place].runs))]
    first = [place for place in places if chosen is not None and groups[place] is chosen.group]
    order = list(dict.fromkeys([*first, *alone[:2], *places]))
    return order[:_MOST_METHODS]


def _table(
    titles: Sequence[str], rows: Sequence[Row], caption: str, clients: int, note: str = ""
) -> PageTable:
    if not any(row.group for row in rows):  # nobody has a true group
        titles = [titles[0], *titles[2:]]
        rows = [Row([row.cells[0], *row.cells[2:]], "", row.side) for row in rows]
    texts = next(place for place, cell in enumerate(rows[0].cells) if cell.number) if rows else 1
    if len(rows) < clients:
        note = f"{len(rows)} of {clients} clients, evenly taken. {note}".strip()
    return PageTable(
        "clients",
        "every client",
        caption,
        titles,
        rows,
        texts,
        note,
        len(rows) >= _FEWEST_TO_FILTER,
    )


def _some(rows: Sequence[Kind]) -> list[Kind]:
    if len(rows) <= MOST_CLIENTS:
        return list(rows)
    return [rows[place] for place in np.linspace(0, len(rows) - 1, MOST_CLIENTS).astype(int)]


def _error_cell(error: float | None, columns: ClientErrors) -> Cell:
    if error is None:
        return Cell(UNKNOWN, inf, True)
    return Cell(f"{percent_text(error)}%" if columns.right else f"{error:.4g}", error, True)


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def _key(value: float | None) -> float:
    return inf if value is None or not isfinite(value) else value
