"""Write ``report.html``: one file that makes no network requests.

Untrusted texts (names of clients, reasons, paths) are escaped by the templates or by ElementTree.
The page's content security policy forbids all requests, and all scripts except its own, which the
policy names by its digest.
"""

from __future__ import annotations

import base64
import re
import tomllib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from itertools import chain, count
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from fedproto_app.core.methods import METHODS
from fedproto_app.core.version import __version__
from fedproto_app.core.whole_file import write_whole
from fedproto_app.report.charts import errors_section, gains_chart, learning_section
from fedproto_app.report.comparison import (
    Question,
    heavy_clients,
    not_converged,
    questions,
    with_better_off,
)
from fedproto_app.report.drawing import are_rows, chart_svg, is_wide_chart
from fedproto_app.report.gain import Finding
from fedproto_app.report.page import REPORT
from fedproto_app.report.page.next_step import check_first, next_step
from fedproto_app.report.page.tables import (
    clients_table,
    methods_table,
    pairs_table,
    privacy,
    refusals_table,
    repeat_of,
)
from fedproto_app.report.runs import Group, Run, group_runs, ranked, read_run, without_repeats
from fedproto_app.report.table import bytes_text, count_text
from fedproto_app.report.taking_part import (
    Candidate,
    brought_by_columns,
    chosen_to_share,
    provisos_of,
    totals_verdict,
    verdict,
)
from fedproto_app.report.task_report import report_for

_TEXTS = "report/page/page.toml"
_MOST_REPEATS = 40


FEDERATED = (
    "Federated learning trains models for many clients, such as sites, devices or users, without "
    "collecting their data in one place. Clients train locally, and exchange models or summaries "
    "through a server."
)


def headline(question: Question, chosen: Candidate | None) -> str:
    """Return the main finding in one line. If there is none, return what was run."""
    if chosen is not None:
        gain = chosen.gain
        counts = f"{gain.better} of {len(gain.ratios)} clients have a lower error"
        return {
            Finding.PAYS: f"Federated learning pays: {counts}",
            Finding.HARMS: f"Federated learning does harm: {counts}",
            Finding.NO_DIFFERENCE: f"Federated learning makes no difference: {counts}",
            Finding.OPEN: f"Whether federated learning pays is open: {counts}",
        }[chosen.finding]
    if len(question.groups) == 1:
        return f"{question.groups[0].title} on {question.title}"
    return f"{len(question.groups)} ways of learning {question.title}, side by side"


def lead(question: Question, chosen: Candidate | None) -> tuple[str, list[str]]:
    """Return the finding in numbers as one sentence, and the sentences that it is based on."""
    groups = question.groups
    if chosen is not None:
        first, *basis = verdict(chosen)
        return first, [
            *brought_by_columns(question),
            *basis,
            f"{chosen.label} was selected because its mean validation error over all clients, in "
            "its best round, was the lowest. Test errors were used for reporting only, never to "
            "select a model.",
        ]
    if totals := totals_verdict(question):
        return totals[0], totals[1:]
    reached = f"{report_for(groups[0].task).in_words(groups[0].runs[0].summary)}."
    alone = [group.is_alone for group in groups]
    if len(groups) == 1:
        shows = "it shows what local models can do" if alone[0] else "it has nothing to compare"
        return reached, [
            f"{'Nothing was shared' if alone[0] else 'This is a single run'}: {shows}."
        ]
    missing = (
        "Nothing was shared in any of these runs."
        if all(alone)
        else "These runs do not show which method a client should choose when it does not know the "
        "test errors. That takes a run without sharing, and validation data."
    )
    return f"First row, {question.labels[0]}: {reached}", [missing]


def facts(groups: Sequence[Group], shown: Group) -> list[tuple[str, str]]:
    """Return names and values of facts about the runs. shown: the group that the page is about."""
    summary = shown.runs[0].summary
    seeds = sorted({run.summary["seed"] for group in groups for run in group.runs})
    numbers_sent = summary.get("parameters_up_per_client_round")
    each_round = "nothing" if not numbers_sent else f"{count_text(numbers_sent)} numbers"
    return [
        ("data", str(summary["dataset"])),
        ("clients", count_text(summary["clients"])),
        ("task", shown.task),
        ("methods" if len(groups) > 1 else "method", _methods(groups)),
        ("rounds", count_text(summary["rounds"])),
        ("seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds))),
        ("sent per client and round", each_round),
        ("sent in total", bytes_text(summary["bytes_up"] + summary["bytes_down"])),
        ("time", _duration(summary["seconds"])),
    ]


def _methods(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(group.title for group in groups))
    return ", ".join(names) if len(names) <= 4 else str(len(names))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def glossary(groups: Sequence[Group]) -> dict[str, str]:
    """Return words and their meanings, with only those figures and methods that tables show."""
    metrics = [report_for(task).metrics for task in {group.task for group in groups}]
    titles = {
        group.method: METHODS[group.method].title_for(group.task)
        for group in sorted(groups, key=lambda group: group.method)
        if group.method in METHODS
    }
    figures = " ".join(shown.title for of_task in metrics for shown in of_task.comparison)
    captions = " ".join(of_task.caption for of_task in metrics)
    return {
        word: meaning
        for word, meaning in _GLOSSARY.items()
        if word not in _FIGURES
        or any(re.search(rf"\b{name}\b", f"{figures} {captions}") for name in word.split(", "))
    } | {title: METHODS.meaning(name) for name, title in titles.items()}


_FIGURES = ("MSE", "MAE, RMSE", "MASE", "A_loc, A_glo, A_sel")
_GLOSSARY = {
    "client": "a participant that owns data: a site, a device, a user",
    "round": "the server asks clients to train, they reply, and the server combines their replies",
    "local": "a model that a client trains on its own data, with nothing from the other clients",
    "federated": "a model that a client trains with the help of what the other clients send",
    "validation": "the part of the data on which models are chosen; the test part only measures "
    "how good the choice was",
    "MSE": "mean squared error, here after each client's values were scaled to mean 0 and variance "
    "1, so a forecast that is always the mean has an MSE of 1 on data like the training data",
    "MAE, RMSE": "mean absolute error, and root of the mean squared error",
    "MASE": "mean absolute error divided by that of a forecast, on the training data, that repeats "
    "the value one period before; below 1 is better than this forecast",
    "median": "the middle value: half of the clients are better and half are worse. An extreme "
    "client hardly changes it",
    "A_loc, A_glo, A_sel": "accuracy of all clients' own models, of the averaged model, and of the "
    "own models of only those clients that trained in a round",
    "parameters up": "numbers that a client sends to the server",
    "gain": "how much lower a client's error is with federated learning than with its best local "
    "model, which is the local model with the lowest validation error",
    "95% CI": "the interval that holds the median gain in 95% of repetitions, each of which draws "
    "the clients and the days of the test part again",
}


def write_report(runs: Iterable[Run], file: Path, notes: Sequence[str] = ()) -> None:
    """Write a page on finished runs, completely or not at all.

    notes: what was done to the data, in addition to the notes of the runs. Runs that differ only
    in their seed share a row, as in a comparison. Each question has its own part of the page. For
    example, all runs on one dataset and horizon answer one question.
    """
    page = render(runs, notes)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, page.encode("utf-8", "replace"))  # names may contain lone surrogates


def report_of(folder: Path) -> Path:
    """Write ``report.html`` into the folder of a finished run, and return its path."""
    write_report([read_run(folder)], folder / REPORT)
    return folder / REPORT


def render(runs: Iterable[Run], notes: Sequence[str] = ()) -> str:
    """Return the page on these runs as HTML. See `write_report` for the arguments."""
    groups, _ = group_runs(runs)
    by_question = questions(ranked(with_better_off(groups)))
    parts = [_part(number, question, notes) for number, question in enumerate(by_question, start=1)]
    texts = tomllib.loads((files("fedproto_app") / _TEXTS).read_text("utf-8"))
    template = texts.pop("page")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawing = {"are_rows": are_rows, "chart_svg": chart_svg, "is_wide_chart": is_wide_chart}
    environment.globals |= drawing
    environment.filters["breakable"] = _breakable
    return environment.from_string(template).render(
        parts=parts,
        **{name: Markup(text) for name, text in texts.items()},
        **{f"{name}_digest": _digest(text) for name, text in texts.items()},
        version=__version__,
        date=_date(groups),
        federated=FEDERATED,
        glossary=glossary(groups),
    )


def _breakable(label: str) -> Markup:
    """Allow line breaks after "." and "=" in a label such as "kindred response.sharing=none"."""
    return Markup(re.sub(r"([.=])(?=\D)", r"\1<wbr>", str(escape(label))))


def _digest(text: str) -> str:
    """Return the digest that names a text in a content security policy."""
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


def _date(groups: Sequence[Group]) -> str:
    """Return the date on which the last run ended. A run writes its summary when it ends."""
    files = [run.folder / "summary.json" for group in groups for run in group.runs]
    last = max(file.stat().st_mtime for file in files)
    return datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%d")


def _distinct(names: Iterable[str]) -> list[str]:
    """Number the names that occur more than once, for example names of runs of two versions."""
    distinct: list[str] = []
    for name in names:
        numbered = chain([name], (f"{name} ({number})" for number in count(2)))
        distinct.append(next(candidate for candidate in numbered if candidate not in distinct))
    return distinct


def _part(number: int, question: Question, notes: Sequence[str]) -> dict[str, object]:
    """Return what the template shows in the page's part on one question.

    notes: shown in addition to the runs' own notes.
    """
    groups, chosen = question.groups, chosen_to_share(question)
    names = _distinct(question.labels)
    place = next((n for n, group in enumerate(groups) if chosen and group is chosen.group), 0)
    shown = groups[place]
    runs = {name: group.runs[0].folder for name, group in zip(names, groups, strict=True)}
    report = report_for(shown.task)
    refusals, refused = refusals_table(groups, names)
    first, basis = lead(question, chosen)
    runs_of_all = [run for group in groups for run in group.runs]
    provisos = provisos_of(groups) if len(groups) > 1 else []  # one alone has no verdict
    figures = report.run_rows(shown.runs[0].summary) if len(groups) == 1 else ()
    clients, errors = clients_table(groups, names, chosen), errors_section(groups, names)
    sections = (*report.sections(runs, names[place]), learning_section(groups, names))
    looks = [section for section in sections if section]
    headings = {
        "basis": "Basis",
        "results": "Results" if figures else "Methods side by side",
        "clients": "Clients" if clients or errors.charts else "",
        **{f"look-{number}": look.title for number, look in enumerate(looks, start=1)},
        "runs": "How the runs were made",
    }
    return {
        "number": number,
        "contents": {f"{name}-of-{number}": title for name, title in headings.items() if title},
        "headline": headline(question, chosen),
        "lead": " ".join([first, *provisos]),
        "doubts": without_repeats(run.warnings for run in runs_of_all),
        "basis": basis,
        "gains": gains_chart(chosen) if chosen else None,
        "next_step": check_first(shown) if provisos else next_step(question, chosen),
        "facts": facts(groups, shown),
        "notes": without_repeats([notes, *(run.notes for run in runs_of_all)]),
        "methods": methods_table(groups, names, chosen),
        "figures": figures,
        "warnings": [*heavy_clients(groups), *not_converged(groups)],
        "pairs": pairs_table(groups) if len(groups) > 1 else None,
        "clients": clients,
        "errors": errors,
        "looks": looks,
        "refusals": refusals,
        "refused": refused,
        "privacy": privacy(groups, names),
        "repeats": [*map(repeat_of, groups, names)][:_MOST_REPEATS],
        "left_out": max(0, len(groups) - _MOST_REPEATS),
    }
