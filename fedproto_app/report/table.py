"""Tables of results: one run's, and several runs side by side."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedproto_app.report.runs import Group, Run, Spread, labels

_FEW = 3  # clients named as best and as worst
_COLUMNS = (
    "dataset",
    "method",
    "seeds",
    "MSE",
    "MAE",
    "last MSE",
    "parameters up",
    "bytes up",
    "seconds",
)


def run_table(run: Run) -> Table:
    """The figures of one run; errors on the standardised scale unless a row says otherwise."""
    summary = run.summary
    table = Table(
        title=f"{summary['method']} on {summary['dataset']}: {summary['clients']} clients, "
        f"{summary['rounds']} rounds, seed {summary['seed']}",
        title_justify="left",
        show_header=False,
    )
    table.add_column(style="cyan")
    table.add_column(justify="right")
    kept = "best validation" if summary["keep"] == "best-validation" else summary["keep"]
    ended = "patience ran out" if summary["stopped"] == "patience" else "all rounds done"
    for name, value in (
        (f"test MSE ({kept})", _error(summary["mse"])),
        (f"test MAE ({kept})", _error(summary["mae"])),
        ("test MSE (last model)", _error(summary["last_mse"])),
        ("test MAE (last model)", _error(summary["last_mae"])),
        ("RMSE in the data's units", _short(summary["rmse_units"])),
        ("MAE in the data's units", _short(summary["mae_units"])),
        ("parameters up per client and round", _count(summary["parameters_up_per_client_round"])),
        ("bytes up / down", f"{_bytes(summary['bytes_up'])} / {_bytes(summary['bytes_down'])}"),
        ("seconds", f"{summary['seconds']:.1f} ({ended})"),
    ):
        table.add_row(name, value)
    return table


def clients_table(clients: Sequence[Mapping[str, str]]) -> Table:
    """The clients with the smallest and the largest test MSE; all of them where they are few."""
    known = sorted(
        (row for row in clients if math.isfinite(float(row["mse"] or "nan"))),
        key=lambda row: float(row["mse"]),
    )
    table = Table(title="best and worst clients by test MSE", title_justify="left")
    for name in ("client", "group", "samples"):
        table.add_column(name)
    for name in ("MSE", "MAE", "RMSE (units)"):
        table.add_column(name, justify="right")
    for place, row in enumerate(known):
        if _FEW <= place < len(known) - _FEW:
            continue
        errors = [_error(float(row["mse"])), _error(float(row["mae"]))]
        table.add_row(
            *(row[name] for name in ("client", "group", "samples")),
            *errors,
            _short(float(row["rmse_units"])),
            end_section=place == _FEW - 1 and len(known) > 2 * _FEW,
        )
    return table


def comparison_table(groups: Sequence[Group]) -> Table:
    """One row a group, for a terminal."""
    table = Table(
        box=SIMPLE_HEAD,
        padding=0,
        caption="mean ± standard deviation over seeds; last: the models of the last round; "
        "parameters up: per client and round",
        caption_justify="left",
    )
    for number, column in enumerate(_COLUMNS):
        # On a narrow terminal a name is broken, but no figure is cut.
        table.add_column(column, justify="left" if number < 2 else "right", overflow="fold")
    for group, row, after in zip(groups, comparison_rows(groups), [*groups[1:], None], strict=True):
        last_of_dataset = after is not None and after.dataset != group.dataset
        table.add_row(*row, end_section=last_of_dataset)
    return table


def comparison_markdown(groups: Sequence[Group]) -> str:
    """One row a group, as a Markdown table."""
    rule = ["---", "---", *["---:"] * (len(_COLUMNS) - 2)]
    lines = [_COLUMNS, rule, *comparison_rows(groups)]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def comparison_csv(groups: Sequence[Group]) -> str:
    """One row a group, as CSV with unrounded numbers; mean and std have a column each."""
    figures = ("mse", "mae", "last_mse")
    plain = ("parameters_up_per_client_round", "bytes_up", "seconds")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [f"{figure}_{part}" for figure in figures for part in ("mean", "std")]
    writer.writerow(["dataset", "method", "seeds", *heads, *plain])
    for group, label in zip(groups, labels(groups), strict=True):
        spreads = [group.spread(figure) for figure in figures]
        numbers = [part for spread in spreads for part in (spread.mean, spread.std)]
        means = [group.spread(figure).mean for figure in plain]
        writer.writerow([group.dataset, label, len(group.runs), *numbers, *means])
    return text.getvalue().rstrip("\n")


def comparison_rows(groups: Sequence[Group]) -> list[list[str]]:
    """The cells of the columns dataset … seconds, one list a group."""
    return [
        [
            group.dataset,
            label,
            str(len(group.runs)),
            _spread(group.spread("mse")),
            _spread(group.spread("mae")),
            _error(group.spread("last_mse").mean),
            _count(group.spread("parameters_up_per_client_round").mean),
            _bytes(group.spread("bytes_up").mean),
            _count(group.spread("seconds").mean),
        ]
        for group, label in zip(groups, labels(groups), strict=True)
    ]


def _spread(spread: Spread) -> str:
    return f"{_error(spread.mean)} ± {_error(spread.std)}"


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _bytes(value: Any) -> str:
    if value is None:
        return "-"
    size, units = float(value), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
