"""Whether taking part pays, in a sentence drawn from a comparison.

It speaks of the method that a person would choose before any test error is known: of the runs in
which something was shared those with the lowest validation error, that of their best round
(report/validation.py). Each client is compared with the best that it could do alone
(report/alone.py), twice: by test errors, which are hindsight, and by its validation errors, by
which it would decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf, isfinite
from statistics import fmean, median

import numpy as np

from fedproto_app.report.alone import Alone, client_errors, is_alone
from fedproto_app.report.pairs import asked_alike, best_alone, mean_errors, signed_rank
from fedproto_app.report.runs import Group
from fedproto_app.report.task_report import ClientErrors, report_for
from fedproto_app.report.validation import validation_error

_SIGNIFICANT = 0.05
_TIMES, _MOST_TIMES = 2.0, 10.0  # between these, an error is told as a multiple of another


@dataclass(frozen=True)
class Candidate:
    """Runs in which something was shared, and each client's best alone, as test errors by name.

    alone: the methods without sharing among which clients had their best. advised: the clients
    whose validation error is lower than with their best alone, None where no errors are known.
    """

    label: str
    group: Group
    own: Mapping[str, float]
    rival: Mapping[str, float]
    alone: str
    advised: Set[str] | None

    def promise(self, columns: ClientErrors) -> tuple[int, float, str]:
        """By what it is chosen, the least first: the clients that it leaves without an error, then
        the validation error of the best round, the mean over clients and seeds."""
        measure, errors = report_for(self.group.task).measure, []
        for run in self.group.runs:
            kept = [one.validation for one in client_errors(run, columns).values()]
            errors.append(validation_error(run.folder, kept, measure) if kept else inf)
        return len(self.rival.keys() - self.own), fmean(errors), self.label

    def ratios(self) -> dict[str, float]:
        """Its error over the best alone, of each client that has one; infinite without an error of
        its own, and where the best alone makes none."""
        return {
            client: _ratio(self.own.get(client, inf), error) for client, error in self.rival.items()
        }

    def p(self) -> float | None:
        """Of Wilcoxon's signed-rank test over the clients that have both errors."""
        both = self.own.keys() & self.rival.keys()
        return signed_rank(np.array([self.own[one] - self.rival[one] for one in sorted(both)]))


def taking_part(groups: Sequence[Group]) -> list[str]:
    """A sentence for each question that both kinds of runs were asked; groups: of one task."""
    return [sentence(chosen) for chosen in chosen_to_share(groups)]


def chosen_to_share(groups: Sequence[Group]) -> list[Candidate]:
    """Of the groups of each question that both kinds of runs were asked, the one that shared
    something and has the lowest validation error; among several of unknown ones none."""
    columns = report_for(groups[0].task).client_errors
    if columns is None:
        return []
    found = []
    for members in asked_alike(groups, columns):
        labelled = {label: group for label, group in members if all(map(is_alone, group.runs))}
        alone, names = [*labelled.values()], ", ".join(sorted(labelled))
        best = Alone(alone, columns)
        candidates = [
            Candidate(
                label,
                group,
                mean_errors(group, columns),
                rival,
                names,
                _advised(group, best, columns),
            )
            for label, group in members
            if group not in alone and (rival := best_alone(group, best))
        ]
        if candidates:
            chosen = min(candidates, key=lambda one: one.promise(columns))
            if len(candidates) == 1 or isfinite(chosen.promise(columns)[1]):
                found.append(chosen)
    return found


def _advised(group: Group, best: Alone, columns: ClientErrors) -> Set[str] | None:
    """The clients whose validation error, the mean over seeds, is lower than with the best alone;
    None where no validation errors are known."""
    differences: dict[str, list[float]] = defaultdict(list)
    for run in group.runs:
        own, alone = client_errors(run, columns), best.best(run)
        for client in own.keys() & alone.keys():
            difference = own[client].validation - alone[client].validation
            if isfinite(difference):
                differences[client].append(difference)
    if not differences:
        return None
    return {client for client, of_seeds in differences.items() if fmean(of_seeds) < 0}


def _ratio(own: float, rival: float) -> float:
    if own == rival:
        return 1.0
    return own / rival if rival > 0 else inf


def sentence(chosen: Candidate) -> str:
    """For how many clients taking part pays, by how much, and whether by chance."""
    columns = report_for(chosen.group.task).client_errors
    error = columns.name if columns else "error"
    ratios, dataset, alone = [*chosen.ratios().values()], chosen.group.dataset, chosen.alone
    better, clients = sum(ratio < 1 for ratio in ratios), len(ratios)
    median_client = (
        f"the median client's test {error} is {_beside(median(ratios))} the best that each client "
        f"could do alone ({alone}){_doubt(chosen.p())}."
    )
    if 2 * better > clients:
        hindsight = (
            f"Taking part pays for {better} of {clients} clients of {dataset}: "
            f"with {chosen.label} {median_client}"
        )
    else:
        hindsight = (
            f"Taking part does not pay for most clients of {dataset}: {chosen.label} helps "
            f"{better} of {clients}, and {median_client}"
        )
    return hindsight + _advice(chosen)


def _advice(chosen: Candidate) -> str:
    """What the clients would have decided, and how that would have gone."""
    if chosen.advised is None:
        return ""
    ratios, advised = chosen.ratios(), len(chosen.advised)
    if not advised:
        return f" Their own validation errors advise none of the {len(ratios)} to take part."
    gain = sum(ratios[client] < 1 for client in chosen.advised)
    return (
        f" Their own validation errors advise {advised} of {len(ratios)} to take part, of whom "
        f"{gain} {'does' if gain == 1 else 'do'} better so."
    )


def _doubt(p: float | None) -> str:
    if p is None:
        return "; so few clients that differ may do so by chance"
    return "" if p <= _SIGNIFICANT else f"; this may be chance (p = {p:.2g})"


def _beside(ratio: float) -> str:
    """How an error compares with another one."""
    if ratio > _MOST_TIMES:
        return "far above that of"
    if ratio >= _TIMES:
        return f"{ratio:.1f} times that of"
    return f"{abs(ratio - 1):.1%} {'below' if ratio < 1 else 'above'} that of"
