"""Say in a sentence whether taking part pays, based on a comparison of runs.

The sentence is about the method that a user would choose without test errors: among the runs that
shared something, the runs whose best round has the lowest validation error (`validation_error`).
Each client is compared with the best that it could do alone (report/comparison.py) twice: by test
errors, in hindsight, and by validation errors, which the client would use to decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, median

import numpy as np

from fedproto_app.report.comparison import (
    Alone,
    asked_alike,
    best_alone,
    client_errors,
    is_alone,
    mean_errors,
    signed_rank,
)
from fedproto_app.report.runs import Group, read_rounds
from fedproto_app.report.task_report import report_for
from fedproto_app.tasks.metrics import TaskMetrics

_SIGNIFICANT = 0.05
_TIMES, _MOST_TIMES = 2.0, 10.0  # between these, errors are compared as multiples


def validation_error(folder: Path, kept_errors: Sequence[float], metrics: TaskMetrics) -> float:
    """Return the validation error of a run, for choosing between runs.

    With ``keep = "best-validation"`` every client ends with the model of its round with the lowest
    validation error. That error is optimistic, more so with many rounds and a short validation
    part. A run is therefore judged by its best round: the lowest mean over all clients in any
    single round, which is one choice per run instead of one per client. docs/results/choice.md
    shows the effect. A run is never judged better than the models that its clients end with,
    because some clients may have been missing in early rounds.

    kept_errors: the validation errors of the models that its clients end with, at least one.
    """
    field = metrics.validation.round.name
    return judged(kept_errors, (line.get(field) for line in read_rounds(folder)))


def judged(kept_errors: Sequence[float], rounds: Iterable[float | None]) -> float:
    """Return the lowest mean of the rounds, but at least the mean of the kept models' errors.

    rounds: the mean of each round, None for a round without evaluation.
    """
    means = [mean for mean in rounds if mean is not None and isfinite(mean)]
    return max(fmean(kept_errors), min(means, default=-inf))


@dataclass(frozen=True)
class Candidate:
    """Runs that shared something, with each client's test error and its best alone, by name.

    errors, rival: the clients' test errors with these runs and with their best alone. alone: the
    methods without sharing that were compared. advised: the clients whose validation error is
    lower than alone, None without validation errors.
    """

    label: str
    group: Group
    errors: Mapping[str, float]
    rival: Mapping[str, float]
    alone: str
    advised: Set[str] | None

    def promise(self, metrics: TaskMetrics) -> tuple[int, float, str]:
        """Return the sort key that chooses a candidate; the smallest wins.

        First the number of clients without an error, then the validation error of the best round,
        the mean over clients and seeds.
        """
        errors = []
        for run in self.group.runs:
            validation = [client.validation for client in client_errors(run, metrics).values()]
            errors.append(validation_error(run.folder, validation, metrics) if validation else inf)
        return len(self.rival.keys() - self.errors), fmean(errors), self.label

    def ratios(self) -> dict[str, float]:
        """Return each client's error divided by its best alone.

        Infinite for a client without an error, and where only the best alone is 0.
        """
        return {
            client: _ratio(self.errors.get(client, inf), error)
            for client, error in self.rival.items()
        }

    def p(self) -> float | None:
        """Return p of Wilcoxon's signed-rank test over the clients that have both errors."""
        clients = self.errors.keys() & self.rival.keys()
        return signed_rank(
            np.array([self.errors[client] - self.rival[client] for client in sorted(clients)])
        )


def taking_part(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each question with runs of both kinds; groups: of one task."""
    return [sentence(chosen) for chosen in chosen_to_share(groups)]


def chosen_to_share(groups: Sequence[Group]) -> list[Candidate]:
    """Return the sharing group with the lowest validation error, for each question.

    Questions need runs with and without sharing. If several groups share and none has a validation
    error, none is chosen.
    """
    metrics = report_for(groups[0].task).metrics
    candidates_chosen = []
    for members in asked_alike(groups, metrics):
        labelled = {label: group for label, group in members if all(map(is_alone, group.runs))}
        alone, names = [*labelled.values()], ", ".join(sorted(labelled))
        best = Alone(alone, metrics)
        candidates = [
            Candidate(
                label,
                group,
                mean_errors(group, metrics),
                rival,
                names,
                _advised(group, best, metrics),
            )
            for label, group in members
            if group not in alone and (rival := best_alone(group, best))
        ]
        if candidates:
            chosen = min(candidates, key=lambda candidate: candidate.promise(metrics))
            if len(candidates) == 1 or isfinite(chosen.promise(metrics)[1]):
                candidates_chosen.append(chosen)
    return candidates_chosen


def _advised(group: Group, best: Alone, metrics: TaskMetrics) -> Set[str] | None:
    """Return the clients whose mean validation error over seeds is lower than with the best alone.

    None without validation errors.
    """
    differences: dict[str, list[float]] = defaultdict(list)
    for run in group.runs:
        run_errors, alone = client_errors(run, metrics), best.best(run)
        for client in run_errors.keys() & alone.keys():
            difference = run_errors[client].validation - alone[client].validation
            if isfinite(difference):
                differences[client].append(difference)
    if not differences:
        return None
    return {client for client, of_seeds in differences.items() if fmean(of_seeds) < 0}


def _ratio(error: float, rival: float) -> float:
    if error == rival:
        return 1.0
    return error / rival if rival > 0 else inf


def sentence(chosen: Candidate) -> str:
    """Say for how many clients taking part pays, by how much, and whether this may be chance."""
    error = report_for(chosen.group.task).metrics.error
    ratios, dataset, alone = [*chosen.ratios().values()], chosen.group.dataset, chosen.alone
    better, clients = sum(ratio < 1 for ratio in ratios), len(ratios)
    median_client = (
        f"the median client's test {error} is {_compared(median(ratios))} its best alone ({alone})"
        f"{_doubt(chosen.p())}."
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
    """Say what the clients would have decided, and how many would have been right."""
    if chosen.advised is None:
        return ""
    ratios, advised = chosen.ratios(), len(chosen.advised)
    if not advised:
        return (
            f" Their own validation errors advise none of the {len(ratios)} clients to take part."
        )
    gain = sum(ratios[client] < 1 for client in chosen.advised)
    return (
        f" Their own validation errors advise {advised} of {len(ratios)} clients to take part; "
        f"{gain} of these {'does' if gain == 1 else 'do'} better."
    )


def _doubt(p: float | None) -> str:
    if p is None:
        return "; too few clients differ to rule out chance"
    return "" if p <= _SIGNIFICANT else f"; this may be chance (p = {p:.2g})"


def _compared(ratio: float) -> str:
    """Compare an error with another one in words."""
    if ratio > _MOST_TIMES:
        return "far above"
    if ratio >= _TIMES:
        return f"{ratio:.1f} times"
    return f"{abs(ratio - 1):.1%} {'below' if ratio < 1 else 'above'}"
