"""What a page says of its runs in sentences, for somebody who knows nothing of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fedproto_app.report.alone import is_alone
from fedproto_app.report.runs import Group
from fedproto_app.report.table import bytes_text, count_text
from fedproto_app.report.taking_part import Candidate, sentence
from fedproto_app.report.task_report import report_for

FEDERATED = (
    "Federated learning trains models for many clients – sites, devices, users – without bringing "
    "their data together in one place: clients learn at home and exchange models, or summaries, "
    "through a server."
)


def headline(groups: Sequence[Group], chosen: Candidate | None) -> str:
    """The finding in one line; without one, what was run."""
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
    """What follows the headline: the finding in numbers, and what it is about."""
    first, summary = groups[0], groups[0].runs[0].summary
    if chosen is not None:
        return [
            sentence(chosen),
            f"Of the ways of sharing, {chosen.label} has the lowest validation error, each by the "
            "round that was best for all clients together. Test errors, which are shown here, "
            "chose nothing; neither did they choose what a client does alone, which is what its "
            "own validation error says is best without the others.",
        ]
    reached = f"{report_for(first.task).in_words(summary)}."
    alone = [all(map(is_alone, group.runs)) for group in groups]
    if len(groups) == 1:
        missing = (
            "In this run nothing was shared: it shows what clients can do alone."
            if alone[0]
            else "Whether sharing helped can be told when a run without sharing (solo, say) on the "
            "same data stands beside it."
        )
        return [reached, missing]
    missing = (
        "Nothing was shared in any of them."
        if all(alone)
        else "Which way is best for a client that decides before it knows the test errors cannot "
        "be told from these runs: that needs one in which nothing is shared, and validation data."
    )
    return [f"Of the first row, {labels[0]}: {reached}", missing]


def facts(groups: Sequence[Group], shown: Group) -> list[tuple[str, str]]:
    """Names and values of what was run. shown: the group that the page is mostly about."""
    summary = shown.runs[0].summary
    seeds = sorted({run.summary["seed"] for group in groups for run in group.runs})
    sent = summary.get("parameters_up_per_client_round")
    each_round = "nothing" if not sent else f"{count_text(sent)} numbers"
    return [
        ("data", str(summary["dataset"])),
        ("clients", count_text(summary["clients"])),
        ("task", shown.task),
        ("methods" if len(groups) > 1 else "method", _methods(groups)),
        ("rounds", count_text(summary["rounds"])),
        ("seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds))),
        ("a client sends a round", each_round),
        ("sent in all", bytes_text(summary["bytes_up"] + summary["bytes_down"])),
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
    """The words to explain; of figures those that tables of these tasks have."""
    reports = list(map(report_for, tasks))
    titles = " ".join(shown.title for report in reports for shown in report.comparison)
    captions = " ".join(report.caption for report in reports)
    return {
        word: meaning
        for word, meaning in _GLOSSARY.items()
        if word not in _FIGURES
        or any(re.search(rf"\b{one}\b", f"{titles} {captions}") for one in word.split(", "))
    }


_FIGURES = ("MSE", "MAE, RMSE", "MASE", "A_loc, A_glo, A_sel")
_GLOSSARY = {
    "client": "one participant that owns data: a site, a device, a user",
    "round": "the server asks clients to train, they answer, the server makes what they share next",
    "alone": "what a client reaches with its own data and nothing from the others",
    "validation": "a part of the data that models are chosen by; the test part only tells how good "
    "the choice was",
    "MSE": "mean squared error; here on values that were scaled to mean 0 and variance 1 for each "
    "client, so 1 is what always forecasting the mean reaches on data like the training data",
    "MAE, RMSE": "mean absolute error, and root of the mean squared error",
    "MASE": "mean absolute error over that of repeating the value of one period before, on the "
    "training data: below 1 is better than that",
    "median": "half of the clients are better, half worse; one extreme client does not move it",
    "A_loc, A_glo, A_sel": "accuracy of clients' own models, of the averaged model, of the own "
    "models of the clients that trained in a round",
    "parameters up": "numbers that a client sends to the server",
    "p": "how often chance alone would make such a difference, by Wilcoxon's signed-rank test; "
    "corrected by Holm where several are told",
}
