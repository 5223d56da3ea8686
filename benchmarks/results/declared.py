"""What a page of results shows, as its TOML file here declares it.

A file has `folder` (of the runs, under runs/), and these tables:

- `[tables.NAME]`: a table of the page. `like` names a table whose keys it takes where it has none,
  and tables without `like` take them from `[defaults]`. Keys: `config` (a file in configs/), `data`
  (a file of the real data, "" for embedded data), `seeds`, `rows`, `columns`, `settings` (of all
  its runs), `changed` (settings of a row, over everything), `without` (rows to leave out), `folder`
  (of a row's runs), `for` (repeats the rows for each value of a name in braces), and the fields of
  `Table`.
- `[rows.SET]`: rows by name. A row has its settings and perhaps `title` and `view`. `_all` are
  settings of the whole set.
- `[columns.NAME]`: columns by title. `tables.py` says what their texts mean.
- `[views.NAME]`: the lines of a row, each with its title, with figures by name, and with columns
  that it leaves out (`without`).
- `[papers.NAME]`: printed figures by row or by a view's `paper`.
- `[lists]`: names of rows.
- `[sections.NAME]`: a section of the page. `tables` are its tables by heading, by default the table
  of the same name, and "page/table" is another page's. `rows`, `columns` and `means` choose what
  it shows of their files (`benchmarks.pages.Shown`). A table that no section has gets a file too.

A group of a table's `rows` takes rows `of` sets, or `from` another table ("page/table"), with that
table's runs. `only` and `without` choose among them. `name`, `title` and `folder` are forms in
which {} is the row's. `settings` are the group's. `encoder` is the row whose run of the same seed
trains the encoder that these rows use. `hidden` rows have no line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.pages import ROOT, Shown, data_root
from fedproto_app.settings.reading import flat

RESULTS = ROOT / "docs" / "results"
PAGES = ("forecasting", "systems", "fuels", "classification", "sequences")

Changes = Mapping[str, object]
_Declaration = Mapping[str, Any]  # a table of TOML
# Keys of a table of TOML that make its rows, or whose values are names.
_OF_ROWS = ("settings", "changed", "without", "folder", "rows", "columns", "paper")


@dataclass(frozen=True)
class Job:
    """One run: its folder under the output folder, its file in configs/, changed settings.

    A string among the settings is passed to `--set` as it is. Other values are written as TOML.
    """

    name: str
    config: str
    changes: Changes


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed: `<folder>-s<seed>` under the output folder.

    encoder: the row whose run of the same seed trains the encoder that these runs use. set: the
    set that declares it.
    """

    folder: str
    changes: Changes
    title: str
    set: str
    encoder: Row | None = None
    view: str = ""
    hidden: bool = False

    def run_name(self, seed: int) -> str:
        return f"{self.folder}-s{seed}"

    def job(self, table: Table, seed: int, output: Path) -> Job:
        paths: dict[str, object] = {}
        if table.data:
            paths["data.path"] = data_root() / table.data
        if self.encoder:
            paths["encoder.path"] = output / self.encoder.run_name(seed)
        changes = {"seed": seed, **paths, **self.changes}
        return Job(self.run_name(seed), table.config, changes)


@dataclass(frozen=True)
class Table:
    """A table of a page.

    columns: their texts by title. about: what the table's file says of the runs. first: the title
    of the first column. order: the column that lines are sorted by, or "rows". view: the rows'
    view if they name none. Without a view a row has one line. paper: printed figures. pooled: with
    a line of trees on pooled data. by_labels: lines by the first two parts of the rows' names.
    shown_rounds: lines by row and round. rivals: the rows that `better_off` compares with.
    on_request: made only if it is named.
    """

    name: str
    config: str
    seeds: Sequence[int]
    rows: Mapping[str, Row]
    columns: Mapping[str, str]
    about: str
    views: Mapping[str, Sequence[_Declaration]]
    data: str = ""
    first: str = "method"
    order: str = ""
    view: str = ""
    paper: _Declaration = field(default_factory=dict)
    pooled: bool = False
    by_labels: bool = False
    shown_rounds: Sequence[int] = ()
    rivals: Sequence[str] = ()
    on_request: bool = False

    @property
    def is_possible(self) -> bool:
        return not self.data or (data_root() / self.data).exists()

    @property
    def keys(self) -> int:
        """The number of cells that identify a line."""
        return 2 if self.by_labels or self.shown_rounds else 1

    def waves(self, seeds: Sequence[int], only: Sequence[str], output: Path) -> list[list[Job]]:
        """Return the runs, and after them the runs that use an encoder which the first train.

        only: rows to make, with the runs that they need, and empty for all.
        """
        chosen = [row for key, row in self.rows.items() if not only or key in only]
        learners = [row.encoder for row in chosen if row.encoder]
        first = {row.folder: row for row in [*learners, *chosen] if not row.encoder}
        dependent = [row for row in chosen if row.encoder]
        return [
            [row.job(self, seed, output) for seed in seeds for row in wave]
            for wave in (list(first.values()), dependent)
        ]


@dataclass(frozen=True)
class Section:
    """A part of a page. tables: their pages and names by heading."""

    tables: Mapping[str, tuple[str, str]]
    shown: Shown


@dataclass(frozen=True)
class Page:
    """A page of docs/results, and what its TOML file declares."""

    name: str
    folder: str
    tables: Mapping[str, Table]
    sections: Mapping[str, Section]

    @property
    def file(self) -> Path:
        return RESULTS / f"{self.name}.md"


@cache
def page(name: str) -> Page:
    declared = _read(name)
    tables = {table: _table(name, table) for table in declared["tables"]}
    sections = {}
    for section, keys in declared["sections"].items():
        named = keys.get("tables", {section: section})
        of_section = {heading: _place(name, text) for heading, text in named.items()}
        first = _table(*next(iter(of_section.values())))
        chosen = {key: value for key, value in keys.items() if key != "tables"}
        sections[section] = Section(of_section, Shown(**chosen, keys=first.keys))
    return Page(name, declared["folder"], tables, sections)


@cache
def _read(name: str) -> _Declaration:
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def _complete(page_name: str, table: str) -> dict[str, Any]:
    """Return the keys of a table and of the tables that it is like."""
    declared = _read(page_name)
    keys = dict(declared["tables"][table])
    if "like" in keys:
        base = _complete(*_place(page_name, keys.pop("like")))
    else:
        base = declared.get("defaults", {})
    settings = flat(base.get("settings", {})) | flat(keys.get("settings", {}))
    return {**base, **keys, "settings": settings}


def _place(page_name: str, text: str) -> tuple[str, str]:
    """Return page and table of "page/table", or of a table of this page."""
    named_page, _, table = text.rpartition("/")
    return named_page or page_name, table


@cache
def _table(page_name: str, name: str) -> Table:
    declared, keys = _read(page_name), _complete(page_name, name)
    repeated = keys.pop("for", {})
    rows: dict[str, Row] = {}
    for values in product(*repeated.values()):
        fillings = {"table": name, "data": data_root(), **dict(zip(repeated, values, strict=True))}
        filled = _filled(keys, fillings)
        for group in filled["rows"]:
            rows |= _rows(page_name, filled, group, rows)
    columns = keys["columns"]
    return Table(
        name=name,
        rows=rows,
        columns=declared["columns"][columns] if isinstance(columns, str) else columns,
        views=declared.get("views", {}),
        paper=declared["papers"][keys["paper"]] if "paper" in keys else {},
        **{key.replace("-", "_"): value for key, value in keys.items() if key not in _OF_ROWS},
    )


def _filled(value: Any, fillings: Changes) -> Any:
    """Put values in place of their names in braces, in all texts of a TOML value."""
    if isinstance(value, Mapping):
        return {key: _filled(part, fillings) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, fillings) for part in value]
    if isinstance(value, str):
        for name, filling in fillings.items():
            if value == f"{{{name}}}":
                return filling
            value = value.replace(f"{{{name}}}", str(filling))
    return value


def _rows(
    page_name: str, table: _Declaration, group: _Declaration, before: Mapping[str, Row]
) -> dict[str, Row]:
    """Return the rows of a group. before: the table's rows of earlier groups."""
    declared, only = _read(page_name), group.get("only", ())
    only = declared["lists"][only] if isinstance(only, str) else only
    if "from" in group:
        rows = _table(*_place(page_name, group["from"])).rows
        return {name: rows[name] for name in only}
    sets = [group["of"]] if isinstance(group["of"], str) else group["of"]
    by_name = {
        name: (set_name, {**flat(declared["rows"][set_name].get("_all", {})), **flat(keys)})
        for set_name in sets
        for name, keys in declared["rows"][set_name].items()
        if name != "_all"
    }
    rows = {}
    for name in only or by_name:
        if name in table.get("without", ()) or name in group.get("without", ()):
            continue
        set_name, keys = by_name[name]
        full_name = group.get("name", "{}").replace("{}", name)
        changed = flat(table.get("changed", {}).get(name, {}))
        rows[full_name] = Row(
            folder=group.get("folder", table["folder"]).replace("{}", name),
            changes={
                **table["settings"],
                **flat(group.get("settings", {})),
                **{key: value for key, value in keys.items() if key not in ("title", "view")},
                **changed,
            },
            title=group.get("title", "{}").replace("{}", keys.get("title", name)),
            set=set_name,
            encoder=before[group["encoder"]] if "encoder" in group else None,
            view=keys.get("view", ""),
            hidden=group.get("hidden", False),
        )
    return rows
