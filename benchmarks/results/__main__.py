"""Make the runs behind a page of docs/results, and write its tables.

    python -m benchmarks.results forecasting                     # all tables of the page
    python -m benchmarks.results forecasting milano --seeds 0    # one table, one seed
    python -m benchmarks.results forecasting milano --only kindred,solo
    python -m benchmarks.results sequences --page-only           # from existing runs

Each row is a `fedproto run`. Finished runs in the output folder are not repeated, so the command
can be interrupted. Delete a run's folder to repeat it. A table summarises all finished runs of its
rows, from any call. All its lines go to docs/results/tables/PAGE-TABLE.csv, whose lines stay if
their runs are missing, and the page shows some of them. A run whose settings differ from its row's
present settings is refused. Test errors are never used to choose.

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
    Lines,
    merge,
    provenance,
    read_table,
    section_of,
    table_file,
    table_texts,
    with_origin,
    write_section,
    write_table,
)
from benchmarks.parts import parser_of, require_names
from benchmarks.results.declared import PAGES, Page, Section, Table, page
from benchmarks.results.runs import finished, run_missing
from benchmarks.results.tables import about, arranged, lines_of

MAKER = "benchmarks.results"
_VERSIONS = ("fedproto-app", "flwr", "torch")


def new_lines(table: Table, page_name: str, output: Path) -> Lines:
    """Return the lines of a table's finished runs, with their origin, none without a run."""
    groups = finished(table, output)
    if not groups:
        return []
    runs = [run for group in groups.values() for run in group.runs]
    versions = {
        f"{package} {run.summary[f'versions.{package}']}"
        for run in runs
        for package in _VERSIONS
        if f"versions.{package}" in run.summary
    }
    origin = provenance([run.folder for run in runs], versions).text()
    command = f"`python -m {MAKER} {page_name} {table.name}`, {about(table, runs)}"
    return with_origin(lines_of(table, groups), command, origin)


def texts_of(section: Section) -> list[str]:
    """Return the text of a section, from the files of its tables."""
    files = {h: table_file(page(of).file, name) for h, (of, name) in section.tables.items()}
    return section_of(files, section.shown)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the missing runs and write their tables.

    Ends with an error that names the tables into which the new rows did not fit.
    """
    options = _options(arguments)
    shown_page: Page = page(options.page)
    output = (options.output or ROOT / "runs" / shown_page.folder).resolve()

    console = Console()
    refused = []
    for name in options.tables:
        table = shown_page.tables[name]
        if not options.page_only:
            if not table.is_possible:
                console.print(f"skipped {name}: {table.data} is missing among the real data")
                continue
            finished(table, output)  # before hours of work: do the runs belong to the rows?
            for jobs in table.waves(options.seeds or table.seeds, options.only, output):
                run_missing(name, jobs, output, options.parallel)
        lines = new_lines(table, options.page, output)
        if not lines:
            console.print(f"{name}: no finished run in {output}")
            continue
        file = table_file(shown_page.file, name)
        try:
            present = [] if options.whole else read_table(file)
            lines, stay = merge(present, lines, table.keys)
        except CannotMerge as error:
            refused.append(f"{file.name}: {error}")
            continue
        lines = arranged(table, lines)
        shown = table_texts([line[:-2] for line in lines], table.keys)
        if stay:
            shown.append(f"kept, of more seeds or figures: {'; '.join(stay)}")
        console.print("\n".join(shown), markup=False, highlight=False, soft_wrap=True)
        write_table(file, lines)
    changed = {(options.page, table) for table in options.tables}
    for of_page in map(page, PAGES):
        for name, section in of_page.sections.items():
            if changed & set(section.tables.values()):
                write_section(of_page.file, name, MAKER, texts_of(section))
    if refused:
        raise SystemExit("\n".join(["not written:", *refused]))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of((__doc__ or "").format(pages=", ".join(PAGES)))
    parser.add_argument("page", choices=PAGES)
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help="default: all but those on request"
    )
    parser.add_argument("--output", type=Path, help="default: the page's folder under runs/")
    parser.add_argument("--parallel", type=int, default=max(1, (os.cpu_count() or 1)))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: each table's seeds")
    parser.add_argument("--only", default="", metavar="ROW,ROW", help="make only these rows")
    parser.add_argument("--page-only", action="store_true", help="make no run")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="replace tables by the rows whose runs are here: other lines of the files go",
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
