"""Write ``report.html``: one file that makes no network requests.

Untrusted texts – names of clients, reasons, paths – are escaped by the templates or by ElementTree.
The page's policy forbids all requests, and all scripts but its own, which is named by digest.
"""

from __future__ import annotations

import base64
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from itertools import chain, count
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fedproto_app.core.charts import Section
from fedproto_app.core.version import __version__
from fedproto_app.core.whole_file import write_whole
from fedproto_app.report.alone import with_better_off
from fedproto_app.report.charts import errors_section, gains_section, learning_section
from fedproto_app.report.drawing import chart_svg, is_wide_chart
from fedproto_app.report.page import REPORT, words
from fedproto_app.report.page.records import Repeat, privacy, refusals_table, repeats
from fedproto_app.report.page.tables import (
    PageTable,
    clients_table,
    methods_table,
    pairs_table,
)
from fedproto_app.report.pairs import heavy_clients
from fedproto_app.report.runs import Group, Run, group_runs, labels, ranked, read_run
from fedproto_app.report.taking_part import chosen_to_share
from fedproto_app.report.task_report import report_for

_TEXTS = "report/page/page.toml"
_MOST_REPEATS = 40


@dataclass(frozen=True)
class Part:
    """The part of a page about the runs on one dataset."""

    number: int
    headline: str
    lead: Sequence[str]
    facts: Sequence[tuple[str, str]]
    methods: PageTable
    figures: Sequence[tuple[str, str]]
    warnings: Sequence[str]
    gains: Section | None
    pairs: PageTable | None
    clients: PageTable | None
    errors: Section
    details: Sequence[Section]
    learning: Section
    refusals: PageTable | None
    refused: str
    privacy: Sequence[tuple[str, str, str]]
    repeats: Sequence[Repeat]
    left_out: int


def write_report(runs: Iterable[Run], file: Path) -> None:
    """Write a page on finished runs, completely or not at all.

    Runs that differ only in their seed share a row, as in a comparison. Each task and dataset has
    its own part.
    """
    page = render(runs).encode("utf-8", "replace")  # names may contain lone surrogates
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, page)


def report_of(folder: Path) -> Path:
    """Write ``report.html`` into the folder of a finished run, and return its path."""
    write_report([read_run(folder)], folder / REPORT)
    return folder / REPORT


def render(runs: Iterable[Run]) -> str:
    """Return the page on these runs as HTML."""
    groups, _ = group_runs(runs)
    by_data: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in ranked(with_better_off(groups)):
        by_data[group.task, group.dataset].append(group)
    parts = [_part(number, members) for number, members in enumerate(by_data.values(), start=1)]
    texts = tomllib.loads((files("fedproto_app") / _TEXTS).read_text("utf-8"))
    template = texts.pop("page")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"chart_svg": chart_svg, "is_wide_chart": is_wide_chart}
    return environment.from_string(template).render(
        parts=parts,
        **{name: Markup(text) for name, text in texts.items()},
        **{f"{name}_digest": _digest(text) for name, text in texts.items()},
        version=__version__,
        date=_date(groups),
        federated=words.FEDERATED,
        glossary=words.glossary({group.task for group in groups}),
    )


def _digest(text: str) -> str:
    """Return the digest that names a text in a content security policy."""
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


def _date(groups: Sequence[Group]) -> str:
    """Return the date on which the last run ended, which is when it wrote its summary."""
    files = [run.folder / "summary.json" for group in groups for run in group.runs]
    last = max(file.stat().st_mtime for file in files)
    return datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%d")


def _distinct(names: Iterable[str]) -> list[str]:
    """Number the names that occur more than once, as for runs of two versions."""
    distinct: list[str] = []
    for name in names:
        numbered = chain([name], (f"{name} ({number})" for number in count(2)))
        distinct.append(next(candidate for candidate in numbered if candidate not in distinct))
    return distinct


def _part(number: int, groups: Sequence[Group]) -> Part:
    """Return the part on groups of one task and dataset, best first."""
    names = _distinct(labels(groups))
    candidates = chosen_to_share(groups)
    chosen = (
        candidates[0] if len(candidates) == 1 else None
    )  # with several questions, no group answers all
    place = next((n for n, group in enumerate(groups) if chosen and group is chosen.group), 0)
    shown = groups[place]
    runs = {name: group.runs[0].folder for name, group in zip(names, groups, strict=True)}
    report = report_for(shown.task)
    refusals, refused = refusals_table(groups, names)
    return Part(
        number=number,
        headline=words.headline(groups, chosen),
        lead=words.lead(groups, names, chosen),
        facts=words.facts(groups, shown),
        methods=methods_table(groups, names, chosen),
        figures=report.run_rows(shown.runs[0].summary) if len(groups) == 1 else (),
        warnings=heavy_clients(groups),
        gains=gains_section(chosen) if chosen else None,
        pairs=pairs_table(groups) if len(groups) > 1 else None,
        clients=clients_table(groups, names, chosen),
        errors=errors_section(groups, names),
        details=report.sections(runs, names[place]),
        learning=learning_section(groups, names),
        refusals=refusals,
        refused=refused,
        privacy=privacy(groups, names),
        repeats=repeats(groups, names)[:_MOST_REPEATS],
        left_out=max(0, len(groups) - _MOST_REPEATS),
    )
