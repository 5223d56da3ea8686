"""Make tables of results, either of one run or of several runs side by side."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from math import isfinite, isnan
from typing import NamedTuple

from rich.table import Table

from fedproto_app.report.comparison import PAIR_COLUMNS, Pair, Question
from fedproto_app.report.fitting_table import FittingTable
from fedproto_app.report.run_files import CsvTable, Record
from fedproto_app.report.runs import NOT_CONVERGED, Group, Run, labels
from fedproto_app.report.task_report import report_for
from fedproto_app.tasks.metrics import UNKNOWN, Field

_NO_SPREAD = f" ± {UNKNOWN}"  # of a single seed
_NAMED_CLIENTS = 3  # clients named as best, and as worst
_ERRORS = {"none": "; no errors leave", "noised": "; noise in errors"}
_ENDS = {
    "patience": "patience ran out",
    "privacy": "privacy.max-epsilon reached",
    "stages": "every stage learnt",
}


def count_text(value: float | None) -> str:
    """Return a number without decimals."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def bytes_text(value: float | None) -> str:
    """Return a number of bytes in the largest unit that it reaches."""
    if value is None:
        return UNKNOWN
    size, units = float(value), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


_COSTS = (
    Field("parameters_up_per_client_round", "parameters up", count_text),
    Field("parameters_up_per_client", "in all", count_text),
    Field("bytes_up", "bytes up", bytes_text),
    Field("seconds", "seconds", count_text),
)


def run_table(run: Run) -> Table:
    """Return a table with the figures of one run."""
    summary = run.summary
    table = Table(
        title=f"{summary['method']} on {summary['dataset']}: "
        f"{plural(summary['clients'], 'client')}, {plural(summary['rounds'], 'round')}, "
        f"seed {summary['seed']}",
        title_justify="left",
        show_header=False,
    )
    table.add_column(style="cyan")
    table.add_column(justify="right")
    ended = _ENDS.get(summary["stopped"], "all rounds done")
    ended += ", not converged" * run.had_not_converged
    for name, value in (
        *report_for(run.task).run_rows(summary),
        (
            "parameters up per client and round",
            count_text(summary["parameters_up_per_client_round"]),
        ),
        (
            "bytes up / down",
            f"{bytes_text(summary['bytes_up'])} / {bytes_text(summary['bytes_down'])}",
        ),
        *_privacy_rows(summary),
        ("seconds", f"{summary['seconds']:.1f} ({ended})"),
    ):
        table.add_row(name, value)
    return table


def plural(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count} {noun}{'s' * (count != 1)}"


def _privacy_rows(summary: Record) -> list[tuple[str, str]]:
    """Return a row with ε, δ and what they protect, or [] without differential privacy."""
    privacy = summary.get("privacy", {})
    if "epsilon" not in privacy:
        return []
    about = f"{privacy['neighbours']} a {privacy['unit']}{_ERRORS.get(privacy.get('metrics'), '')}"
    return [("privacy", f"ε = {privacy['epsilon']:.3g}, δ = {privacy['delta']:g} ({about})")]


def clients_table(task: str, clients: CsvTable) -> FittingTable:
    """Return a table of the clients with the best and worst headline figures, or of all if few."""
    metrics = report_for(task).metrics
    headline = metrics.headline.column
    badness = [metrics.badness(value) for value in clients[headline.name].tolist()]
    evaluated = [row for row in range(len(badness)) if isfinite(badness[row])]
    evaluated.sort(key=badness.__getitem__)
    columns = [("client", clients.clients)]
    if any(clients.groups[row] for row in evaluated):
        columns.append(("group", clients.groups))
    facts = len(columns)
    columns.append(("samples", samples_texts(clients)))
    columns += [(shown.title, figure_texts(clients, shown)) for shown in metrics.clients]
    rows = [[texts[row] for _, texts in columns] for row in evaluated]
    if (hidden := len(rows) - 2 * _NAMED_CLIENTS) > 0:
        rows[_NAMED_CLIENTS:-_NAMED_CLIENTS] = [[f"… {hidden} more", *[""] * (len(columns) - 1)]]
    heading = f"best and worst clients by test {headline.title}"
    return FittingTable([title for title, _ in columns], rows, facts, heading)


def samples_texts(clients: CsvTable) -> list[str]:
    """Return the number of samples of each client as text, "" where it was withheld."""
    return ["" if isnan(count) else f"{count:.0f}" for count in clients["samples"].tolist()]


def figure_texts(clients: CsvTable, shown: Field) -> list[str]:
    """Return the text of a figure for each client."""
    values = clients[shown.name].tolist()
    return [shown.text(None if isnan(value) else value) for value in values]


def by_task(groups: Sequence[Group]) -> list[list[Group]]:
    """Split the groups by task, because each task has its own table. The order stays the same."""
    tasks = dict.fromkeys(group.task for group in groups)
    return [[group for group in groups if group.task == task] for task in tasks]


class Column(NamedTuple):
    """One figure of all groups. means: over seeds, to sort by, None if unknown."""

    title: str
    texts: list[str]
    means: list[float | None]


def comparison_columns(groups: Sequence[Group]) -> list[Column]:
    """Return columns for groups of one task: number of seeds, compared figures and costs."""
    seeds = [len(group.runs) for group in groups]
    compared = report_for(groups[0].task).metrics.comparison
    return [Column("seeds", list(map(str, seeds)), list(map(float, seeds)))] + [
        Column(
            shown.title,
            [_cell(group, shown) for group in groups],
            [group.spread(shown.name).mean for group in groups],
        )
        for shown in (*compared, *_COSTS)
        if not shown.only_wide
    ]


def _cell(group: Group, shown: Field) -> str:
    spread = group.spread(shown.name)
    if spread.mean is None or not shown.spread:
        return shown.text(spread.mean)
    return f"{shown.text(spread.mean)} ± {shown.text(spread.error)}"


def shown_columns(groups: Sequence[Group]) -> tuple[list[Column], str]:
    """Return the columns with any known figure, and a caption.

    The column of seeds is shown only if a group has several.
    """
    seeds, *figures = comparison_columns(groups)
    figures = [column for column in figures if set(column.texts) != {UNKNOWN}]
    caption = f"{report_for(groups[0].task).metrics.caption}; parameters up: per client and round"
    if any(len(group.runs) > 1 for group in groups):
        return [seeds, *figures], f"mean ± standard error over seeds; {caption}"
    return [
        column._replace(texts=[text.removesuffix(_NO_SPREAD) for text in column.texts])
        for column in figures
    ], caption


def comparison_table(question: Question) -> FittingTable:
    """Return a table for a terminal, with a row per group and the columns of `shown_columns`."""
    columns, caption = shown_columns(question.groups)
    rows = list(zip(question.labels, *(column.texts for column in columns), strict=True))
    titles = ["method", *(column.title for column in columns)]
    return FittingTable(titles, rows, 1, question.title, f"{caption}, and in all rounds")


def comparison_markdown(question: Question) -> str:
    """Return a Markdown table, one row per group of a question."""
    columns = comparison_columns(question.groups)
    rows = zip(question.labels, *(column.texts for column in columns), strict=True)
    titles = ["dataset", "method", *(column.title for column in columns)]
    return _markdown(titles, [[question.title, *row] for row in rows], texts=2)


def pairs_table(pairs: Sequence[Pair]) -> FittingTable:
    """Return a table for a terminal, one row per pair of a question."""
    caption = (
        "client by client, errors averaged over seeds; better, worse: number of clients with a "
        "lower and a higher error; median gain, interval and finding as in the verdict"
    )
    rows = [pair.row()[1:] for pair in pairs]
    return FittingTable(PAIR_COLUMNS[1:], rows, 2, f"{pairs[0].dataset}, client by client", caption)


def pairs_markdown(pairs: Sequence[Pair]) -> str:
    """Return a Markdown table, one row per pair."""
    return _markdown(PAIR_COLUMNS, [pair.row() for pair in pairs], texts=3)


def pairs_csv(pairs: Sequence[Pair]) -> str:
    """Return CSV, one row per pair. Numbers are not rounded. Unknown numbers are empty cells."""
    rows = [pair.figures for pair in pairs]
    for row in rows:
        row |= {key: str(row[key]).removesuffix(NOT_CONVERGED) for key in ("method", "against")}
    return _csv([list(rows[0]), *(list(row.values()) for row in rows)])


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().rstrip("\n")


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """Return a Markdown table. texts: the number of columns, from the left, without numbers."""
    rule = [*["---"] * texts, *["---:"] * (len(columns) - texts)]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in (columns, rule, *rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def comparison_csv(groups: Sequence[Group]) -> str:
    """Return CSV, one row per group of one task.

    Numbers are not rounded, and accuracies are fractions. Each figure has columns for its mean, its
    standard deviation and its standard error.
    """
    figures = [shown.name for shown in report_for(groups[0].task).metrics.comparison]
    heads = [f"{figure}_{part}" for figure in figures for part in ("mean", "std", "se")]
    rows: list[list[object]] = [
        ["dataset", "method", "seeds", *heads, *(cost.name for cost in _COSTS), "not_converged"]
    ]
    for group, label in zip(groups, labels(groups), strict=True):
        numbers = []
        for figure in figures:
            spread = group.spread(figure)
            numbers += [spread.mean, spread.std, spread.error]
        means = [group.spread(cost.name).mean for cost in _COSTS]
        facts = (group.dataset, label, len(group.runs))
        rows.append([*facts, *numbers, *means, group.had_not_converged])
    return _csv(rows)
