"""Make the runs behind a page of docs/results, and write its tables.

    python -m benchmarks.results forecasting                     # all tables of the page
    python -m benchmarks.results forecasting milano --seeds 0    # one table, one seed
    python -m benchmarks.results forecasting milano --only kindred,solo
    python -m benchmarks.results sequences --page-only           # from existing runs

Each row is a `fedproto run`; finished runs in the output folder are not repeated, so the command
can be interrupted; delete a run's folder to repeat it. A table summarises all finished runs of its
rows, from any call, and keeps the page's lines whose runs are missing. A run whose settings differ
from its row's present settings is refused. Test errors are never used to choose.

The pages: {pages}. benchmarks/results/PAGE.toml declares the rows and columns of each.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.pages import (
    ROOT,
    CannotMerge,
    has_section,
    merge,
    parse_provenance,
    parse_table,
    provenance,
    read_section,
    table_texts,
    write_section,
)
from benchmarks.parts import require_names
from benchmarks.results.declared import PAGES, Page, Table, page
from benchmarks.results.runs import finished, run_missing
from benchmarks.results.tables import about, arranged, lines_of

MAKER = "benchmarks.results"
_VERSIONS = ("fedproto-app", "flwr", "torch")


def section(table: Table, output: Path, old: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return the text of a table's section, and titles of old rows that new rows did not replace.
    Both are empty without a finished run.

    old: the section on the page, whose other rows stay.

    Raises `CannotMerge` if the old section and the new rows do not fit.
    """
    groups = finished(table, output)
    if not groups:
        return [], []
    on_page, paragraph = parse_table(old)
    lines, stay = merge(on_page, lines_of(table, groups), table.keys)
    runs = [run for group in groups.values() for run in group.runs]
    versions = {
        f"{package} {run.summary[f'versions.{package}']}"
        for run in runs
        for package in _VERSIONS
        if f"versions.{package}" in run.summary
    }
    summary = provenance([run.folder for run in runs], versions)
    summary = summary | (parse_provenance(paragraph) or summary)
    note = f"`{table.name}`, `configs/{table.config}`: {about(table, runs)}. {summary.text()}"
    return [*table_texts(arranged(table, lines)), "", note], stay


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the missing runs and write their tables.

    Ends with an error that names the tables into which the new rows did not fit.
    """
    options = _options(arguments)
    shown_page: Page = page(options.page)
    folder = f"{shown_page.folder}-quick" if options.quick else shown_page.folder
    output = (options.output or ROOT / "runs" / folder).resolve()

    console = Console()
    refused = []
    for name in options.tables:
        table = shown_page.tables[name]
        if options.quick:
            table = table.quick(shown_page.quick)
        if not options.page_only:
            if not table.is_possible:
                console.print(f"skipped {name}: {table.data} is missing among the real data")
                continue
            finished(table, output)  # before hours of work: do the runs belong to the rows?
            for jobs in table.waves(options.seeds or table.seeds, options.only, output):
                run_missing(name, jobs, output, options.parallel)
        is_shown = not options.quick and has_section(shown_page.file, name, MAKER)
        merges = is_shown and not options.whole
        old = read_section(shown_page.file, name, MAKER) if merges else []
        try:
            texts, stay = section(table, output, old)
        except CannotMerge as error:
            refused.append(f"{shown_page.file.name}, {name}: {error}")
            is_shown = False
            texts, stay = section(table, output)
        shown = list(texts) or [f"{name}: no finished run in {output}"]
        if stay:
            shown.append(f"kept on the page, of more seeds or figures: {'; '.join(stay)}")
        console.print("\n".join(shown), markup=False, highlight=False, soft_wrap=True)
        if texts and is_shown:
            write_section(shown_page.file, name, MAKER, texts)
    if refused:
        raise SystemExit("\n".join(["not written:", *refused]))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").format(pages=", ".join(PAGES)),
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("page", choices=PAGES)
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help="default: all but those on request"
    )
    parser.add_argument("--output", type=Path, help="default: the page's folder under runs/")
    parser.add_argument("--parallel", type=int, default=max(1, (os.cpu_count() or 1)))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: each table's seeds")
    parser.add_argument("--only", default="", metavar="ROW,ROW", help="make only these rows")
    parser.add_argument("--quick", action="store_true", help="a small trial, not on the page")
    parser.add_argument("--page-only", action="store_true", help="make no run")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="replace tables by the rows whose runs are here: other rows of the page go",
    )
    options = parser.parse_args(arguments)
    tables = page(options.page).tables
    require_names(parser, options.tables, tables, "table")
    options.tables = options.tables or [
        name for name in tables if options.page_only or not tables[name].on_request
    ]
    options.only = [row for row in options.only.split(",") if row]
    rows = {row for name in options.tables for row in tables[name].rows}
    for row in options.only:
        if row not in rows:
            parser.error(f"--only {row}: unknown row; known: {', '.join(sorted(rows))}")
    return options


if __name__ == "__main__":
    main()
