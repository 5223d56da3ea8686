"""The lines of a table, from its runs and its declared columns.

A column's text is a form and a figure, "percent accuracy". It reads the runs of the line's row, or
with " of ROW" the runs of another row, where {} in ROW stands for the line's row. The row's view
says which figure "@averaged" is. `_FORMS` has the forms. Further forms are `paper.1f PLACE`, the
printed figure at this place, `better-off-than FIGURE of ROW`, the share of clients with a lower
figure than in the other row's run of the same seed, and for tables by round `round-error` and
`round-loss`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import fmean, stdev
from typing import Any

from benchmarks import pooled_trees
from benchmarks.pages import Lines
from benchmarks.results.declared import Table
from fedproto_app.report.comparison import with_better_off
from fedproto_app.report.runs import Group, Run, read_rounds
from fedproto_app.tasks.metrics import BETTER_OFF, UNKNOWN, error_text, percent_text

Groups = Mapping[str, Group]
_POOLED = "LightGBM on pooled data"
_FIELD = re.compile(r"\{([\w.-]+?)(\*|\.\.)?\}")


def lines_of(table: Table, groups: Groups) -> Lines:
    """Return the head of the table and its lines. groups: finished runs by row."""
    if table.by_labels:
        return _by_labels(table, groups)
    if table.shown_rounds:
        return _by_round(table, groups)
    if table.rivals:
        groups = _with_better_off(table, groups)
    views = {name: _views(table, name) for name in groups if not table.rows[name].hidden}
    titles = {view["title"] for of_row in views.values() for view in of_row if _is_whole(view)}
    lines = [[table.first, *table.columns]]
    for name, of_row in views.items():
        for view in of_row:
            if not _is_whole(view) and view["title"] in titles:
                continue  # another row has all figures of this title
            cells = [
                UNKNOWN
                if title in view.get("without", ())
                else _cell(table, text, groups, name, view)
                for title, text in table.columns.items()
            ]
            lines.append([view["title"], *cells])
    return [*lines, *(_pooled_trees(table, groups) if table.pooled else [])]


def _with_better_off(table: Table, groups: Groups) -> Groups:
    """Return the groups with the share of clients that are better off than alone.

    It is unknown for a seed if a rival has no run of it here, as fewer rivals would flatter.
    """
    seeds = [
        {run.summary["seed"] for run in groups[row].runs} if row in groups else set()
        for row in table.rivals
        if row in table.rows
    ]
    complete = set.intersection(*seeds)
    result = {}
    for name, group in zip(groups, with_better_off(list(groups.values())), strict=True):
        runs = (
            run
            if run.summary["seed"] in complete
            else replace(run, summary={**run.summary, BETTER_OFF: None})
            for run in group.runs
        )
        result[name] = Group(tuple(runs))
    return result


def _views(table: Table, row: str) -> list[dict[str, Any]]:
    """Return the views of a row, each with the title of its line."""
    view, title = table.view and (table.rows[row].view or table.view), table.rows[row].title
    views = table.views[view] if view else [{}]
    return [{**line, "title": line.get("title", "{}").replace("{}", title)} for line in views]


def _is_whole(view: Mapping[str, Any]) -> bool:
    return "without" not in view


def _cell(table: Table, text: str, groups: Groups, row: str, view: Mapping[str, Any]) -> str:
    form, figure, rival = _parsed(text)
    if form.startswith("paper"):
        printed = table.paper.get(view.get("paper", row))
        if isinstance(printed, list):
            printed = printed[int(figure)]
        return _printed(printed, form.removeprefix("paper"))
    if form == "better-off-than":
        return _better_off(groups[row], groups.get(rival), figure)
    group = groups.get(rival.replace("{}", row) if rival else row)
    if figure.startswith("@"):
        figure = view[figure[1:]]
    return _FORMS[form](group, figure) if group else UNKNOWN


def _parsed(text: str) -> tuple[str, str, str]:
    """Return a column's form, figure and other row. The last two may be empty."""
    text, _, rival = text.partition(" of ")
    form, _, figure = text.partition(" ")
    return form, figure, rival


def _printed(figure: float | str | None, digits: str) -> str:
    if figure is None or isinstance(figure, str):
        return figure or UNKNOWN
    return format(figure, digits)


def _by_round(table: Table, groups: Groups) -> Lines:
    """Return a line for each row and shown round of its first run."""
    lines = [[table.first, "round", *table.columns]]
    for name, group in groups.items():
        rounds = {line["round"]: line for line in read_rounds(group.runs[0].folder)}
        for line in (rounds[shown] for shown in table.shown_rounds if shown in rounds):
            cells = [
                error_text(line[figure])
                if form == "round-error"
                else _three_digits(line["loss"].get(figure))
                for form, figure, _ in map(_parsed, table.columns.values())
            ]
            lines.append([table.rows[name].title, str(line["round"]), *cells])
    return lines


def _by_labels(table: Table, groups: Groups) -> Lines:
    """Return a line for each β and number of labels. Columns read the rows "β/labels/…"."""
    lines = [["β", "labels", *table.columns]]
    columns = {title: _parsed(text) for title, text in table.columns.items()}
    methods = dict.fromkeys(rival for _, _, rival in columns.values() if rival)
    for pair in dict.fromkeys(name.rpartition("/")[0] for name in groups):
        present = [
            groups[row] for method in methods if (row := method.replace("{}", pair)) in groups
        ]
        cells = []
        for title, (form, figure, _) in columns.items():
            if form == "largest-percent-error":
                errors = (standard_error(group, figure) for group in present)
                cells.append(percent_text(max(errors, default=0.0)))
            elif form == "most-seeds":
                cells.append(str(max((len(group.runs) for group in present), default=0)))
            else:
                cells.append(_cell(table, table.columns[title], groups, pair, {}))
        lines.append([*pair.split("/"), *cells])
    return lines


def _pooled_trees(table: Table, groups: Groups) -> list[list[str]]:
    """Return the line of LightGBM if it is installed, one step ahead only."""
    [run, *_] = next(iter(groups.values())).runs
    if not pooled_trees.is_there() or run.settings.get("data.horizon", 1) != 1:
        return []
    figures = pooled_trees.errors(run.settings, run.folder.parent / f"{table.name}-lightgbm.json")
    forms = map(_parsed, table.columns.values())
    return [[_POOLED, *(error_text(figures.get(figure)) for _, figure, _ in forms)]]


def arranged(table: Table, lines: Lines) -> Lines:
    """Sort the lines of the table, new and old, by their texts."""
    head, *rows = [list(line) for line in lines]
    if table.order == "rows":
        titles = [row.title for row in table.rows.values()]
        rows.sort(key=lambda line: titles.index(line[0]) if line[0] in titles else len(titles))
    elif table.order:
        rows.sort(key=lambda line: (line[0] == _POOLED, _figure(line[head.index(table.order)])))
    return [head, *rows]


def _figure(cell: str) -> float:
    """Return a cell's mean. An unknown one is the largest."""
    return inf if cell == UNKNOWN else float(cell.partition(" ± ")[0])


def about(table: Table, runs: Sequence[Run]) -> str:
    """Return what the table's file says of its runs.

    A field in braces is a key of the first run's summary or settings. With `..` it is the least to
    the greatest of all runs, with `*` all values.
    """

    def filled(match: re.Match[str]) -> str:
        key, kind = match.groups()
        values = [run.summary[key] if key in run.summary else run.settings[key] for run in runs]
        if kind == "*":
            return ", ".join(_short(value) for value in sorted(set(values)))
        if kind == "..":
            return " to ".join(_short(value) for value in sorted({min(values), max(values)}))
        return _short(values[0])

    return _FIELD.sub(filled, table.about)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- forms --------------------------------------------------------------------------------------


def spread_text(group: Group, figure: str, text: Callable[[float | None], str]) -> str:
    """Format the mean ± sample standard deviation over seeds."""
    spread = group.spread(figure)
    return text(spread.mean) if spread.std is None else f"{text(spread.mean)} ± {text(spread.std)}"


def _number(group: Group, figure: str) -> str:
    """Format the mean over seeds."""
    mean = group.spread(figure).mean
    if mean is None:
        return UNKNOWN
    return f"{mean:,.0f}" if mean >= 100 or mean == round(mean) else f"{mean:.3g}"


def _share(share: float | None) -> str:
    return UNKNOWN if share is None else f"{percent_text(share)}%"


def _two_digits(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _three_digits(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"


def standard_error(group: Group, figure: str) -> float:
    """Return the standard error of a figure's mean over the clients of all runs.

    figure: a column of ``clients.csv``. 0 for a single client.
    """
    values = _of_clients(group, figure)
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _of_clients(group: Group, figure: str) -> list[float]:
    """Return a column of ``clients.csv`` of all runs."""
    return [value for run in group.runs for value in run.clients.finite(figure)]


def _better_off(group: Group, rival: Group | None, figure: str) -> str:
    """Format the share of clients with a lower figure than in the rival's run of the seed."""
    if rival is None or rival is group:
        return UNKNOWN
    rivals = {run.summary["seed"]: run.clients.by_client(figure) for run in rival.runs}
    better = [
        error < rivals[run.summary["seed"]][client]
        for run in group.runs
        if run.summary["seed"] in rivals
        for client, error in run.clients.by_client(figure).items()
    ]
    return _share(fmean(better) if better else None)


def _last_loss_share(group: Group, figure: str) -> str:
    """Format the mean over seeds of a share among the losses of the last round."""
    shares = [read_rounds(run.folder)[-1]["loss"].get(figure) for run in group.runs]
    reported = [share for share in shares if share is not None]
    return _share(fmean(reported) if reported else None)


_FORMS: dict[str, Callable[[Group, str], str]] = {
    "error": lambda group, figure: spread_text(group, figure, error_text),
    "percent": lambda group, figure: spread_text(group, figure, percent_text),
    "digits": lambda group, figure: spread_text(group, figure, _two_digits),
    "share": lambda group, figure: _share(group.spread(figure).mean),
    "number": _number,
    "seeds": lambda group, _: str(len(group.runs)),
    "percent-error": lambda group, figure: percent_text(standard_error(group, figure)),
    "digits-error": lambda group, figure: _two_digits(standard_error(group, figure)),
    "clients-error": lambda group, figure: error_text(fmean(_of_clients(group, figure))),
    "clients-number": lambda group, figure: f"{fmean(_of_clients(group, figure)):.0f}",
    "last-loss-share": _last_loss_share,
}
