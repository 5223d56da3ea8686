"""The sentences of a page, for readers who are new to its runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fedproto_app.report.alone import is_alone
from fedproto_app.report.runs import Group
from fedproto_app.report.table import bytes_text, count_text
from fedproto_app.report.taking_part import Candidate, sentence
from fedproto_app.report.task_report import report_for

FEDERATED = (
    "Federated learning trains models for many clients – sites, devices, users – without "
    "collecting their data in one place: clients train locally and exchange models, or summaries, "
    "through a server."
)


def headline(groups: Sequence[Group], chosen: Candidate | None) -> str:
    """Return the main finding in one line, or what was run if there is none."""
    first = groups[0]
    if chosen is not None:
        ratios = chosen.ratios()
        better = sum(ratio < 1 for ratio in ratios.values())
        if 2 * better > len(ratios):
            return f"Learning together helps {better} of {len(ratios)} clients"
        return (
            f"Learning together does not pay for most: it helps {better} of {len(ratios)} clients"
        )
    if len(groups) == 1:
        return f"{first.method} on {first.dataset}"
    return f"{len(groups)} ways of learning {first.dataset}, side by side"


def lead(groups: Sequence[Group], labels: Sequence[str], chosen: Candidate | None) -> list[str]:
    """Return the paragraphs below the headline: the finding in numbers, and its basis."""
    first, summary = groups[0], groups[0].runs[0].summary
    if chosen is not None:
        return [
            sentence(chosen),
            f"Of the ways of sharing, {chosen.label} has the lowest validation error in its best "
            "round, the mean over all clients. A client's best alone is the run without sharing "
            "that has the client's lowest validation error. Test errors were used for reporting "
            "only, never to select a model.",
        ]
    reached = f"{report_for(first.task).in_words(summary)}."
    alone = [all(map(is_alone, group.runs)) for group in groups]
    if len(groups) == 1:
        missing = (
            "Nothing was shared in this run: it shows what clients can do alone."
            if alone[0]
            else "To see whether sharing helped, compare it with a run without sharing, such as "
            "solo, on the same data."
        )
        return [reached, missing]
    missing = (
        "Nothing was shared in any of these runs."
        if all(alone)
        else "These runs do not show which method a client should choose without test errors: this "
        "needs a run without sharing, and validation data."
    )
    return [f"First row, {labels[0]}: {reached}", missing]


def facts(groups: Sequence[Group], shown: Group) -> list[tuple[str, str]]:
    """Return names and values that describe the runs. shown: the group that the page is about."""
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
    names = list(dict.fromkeys(group.method for group in groups))
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} ({len(groups)} rows)"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def glossary(tasks: Iterable[str]) -> dict[str, str]:
    """Return words and their meanings; of figures, only those in the tables of these tasks."""
    metrics = [report_for(task).metrics for task in tasks]
    titles = " ".join(shown.title for of_task in metrics for shown in of_task.comparison)
    captions = " ".join(of_task.caption for of_task in metrics)
    return {
        word: meaning
        for word, meaning in _GLOSSARY.items()
        if word not in _FIGURES
        or any(re.search(rf"\b{name}\b", f"{titles} {captions}") for name in word.split(", "))
    }


_FIGURES = ("MSE", "MAE, RMSE", "MASE", "A_loc, A_glo, A_sel")
_GLOSSARY = {
    "client": "a participant that owns data: a site, a device, a user",
    "round": "the server asks clients to train, they reply, and the server combines their replies",
    "alone": "the result of a client with its own data and nothing from the others",
    "validation": "the part of the data that chooses models; the test part only measures how good "
    "the choice was",
    "MSE": "mean squared error, here on values scaled to mean 0 and variance 1 for each client: "
    "always forecasting the mean scores 1 on data like the training data",
    "MAE, RMSE": "mean absolute error, and root of the mean squared error",
    "MASE": "mean absolute error divided by the error of repeating the value one period before, "
    "on the training data: below 1 is better than repeating",
    "median": "half of the clients are better, half are worse; an extreme client hardly changes it",
    "A_loc, A_glo, A_sel": "accuracy of clients' own models, of the averaged model, and of the "
    "own models of the clients that trained in a round",
    "parameters up": "numbers that a client sends to the server",
    "p": "the probability of such a difference by chance alone, by Wilcoxon's signed-rank test; "
    "with Holm's correction where there are several tests",
}
