"""Say whether taking part pays, based on a comparison of runs.

The sentence is about the method that a user would choose without test errors: among the runs that
shared something, the runs whose best round has the lowest validation error (`validation_error`).
Each client is compared with the best that it could do alone (report/comparison.py) twice: by test
errors, in hindsight, and by validation errors, which the client would use to decide.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

import numpy as np

from fedproto_app.core.tasks import task_record
from fedproto_app.report.comparison import (
    Alone,
    Errors,
    Question,
    best_alone,
    client_errors,
    is_alone,
    mean_errors,
    questions,
)
from fedproto_app.report.runs import Group, Run, known_settings, labels, read_rounds
from fedproto_app.report.task_report import report_for
from fedproto_app.tasks.metrics import TaskMetrics

_FEWEST = 6  # clients for an interval
_DRAWS, _LEVEL = 2000, 95  # of the bootstrap over clients; in percent
_TELLING = 1.005  # a smaller difference, as a multiple, contradicts nothing
_TIMES, _MOST_TIMES = 2.0, 10.0  # between these, errors are compared as multiples
ClientValue = TypeVar("ClientValue")


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


class Finding(Enum):
    """What a comparison with the best alone shows for most clients."""

    PAYS = auto()
    DOES_NOT_PAY = auto()
    MAY_BE_CHANCE = auto()
    MAY_BE_THE_MODEL = auto()  # which did not run without the others

    @property
    def is_open(self) -> bool:
        """Whether most clients gain, but not surely because they take part."""
        return self in (Finding.MAY_BE_CHANCE, Finding.MAY_BE_THE_MODEL)


@dataclass(frozen=True)
class Candidate:
    """Runs that shared something, with each client's test error and its best alone, by name.

    label: their name among the runs that shared something. title: of the question. errors, rival:
    the clients' test errors with these runs and with their best alone. more, rival_more: their
    further figures (`TaskMetrics.verdict`). constant: the number of clients that are left out of
    all these, because their values hardly ever change. alone: the groups without sharing, by label.
    model_ran_alone: whether the same model is among them. missing: the task's simplest methods that
    are not. advised: the clients whose validation error is lower than alone, None without
    validation errors.
    """

    label: str
    title: str
    group: Group
    errors: Mapping[str, float]
    rival: Mapping[str, float]
    more: Mapping[str, Sequence[float]]
    rival_more: Mapping[str, Sequence[float]]
    constant: int
    alone: Mapping[str, Group]
    model_ran_alone: bool
    missing: Sequence[str]
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

    @cached_property
    def ratios(self) -> Mapping[str, float]:
        """Each client's error divided by its best alone.

        Infinite for a client without an error, and where only the best alone is 0.
        """
        return {
            client: _ratio(self.errors.get(client, inf), error)
            for client, error in self.rival.items()
        }

    @property
    def better(self) -> int:
        """The number of clients with a lower error than alone."""
        return sum(ratio < 1 for ratio in self.ratios.values())

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the median ratio, by bootstrap over the clients.

        None with fewer clients than an interval needs.
        """
        ratios = np.array([*self.ratios.values()])
        if len(ratios) < _FEWEST:
            return None
        draws = np.random.default_rng(0).integers(len(ratios), size=(_DRAWS, len(ratios)))
        medians = np.sort(np.median(ratios[draws], axis=1))
        outside = round(_DRAWS * (1 - _LEVEL / 100) / 2)
        return float(medians[outside]), float(medians[-1 - outside])

    @property
    def finding(self) -> Finding:
        """What these runs show for most clients."""
        if 2 * self.better <= len(self.ratios):
            return Finding.DOES_NOT_PAY
        if not self.model_ran_alone:
            return Finding.MAY_BE_THE_MODEL
        if self.interval is not None and self.interval[1] >= 1:
            return Finding.MAY_BE_CHANCE
        return Finding.PAYS


def taking_part(groups: Sequence[Group]) -> list[str]:
    """Return a verdict for each question with runs of both kinds."""
    verdicts = []
    for question in questions(groups):
        chosen = chosen_to_share(question)
        sentences = totals_verdict(question) if chosen is None else verdict(chosen)
        if sentences:
            verdicts.append(" ".join(sentences))
    return verdicts


def chosen_to_share(question: Question) -> Candidate | None:
    """Return the sharing group with the lowest validation error.

    None without runs of both kinds, without errors of single clients, and if several groups share
    and none has a validation error.
    """
    metrics = question.metrics
    members = dict(zip(labels(question.groups), question.groups, strict=True))
    alone = {label: group for label, group in members.items() if all(map(is_alone, group.runs))}
    sharing = {label: group for label, group in members.items() if label not in alone}
    best = Alone([*alone.values()], metrics)
    candidates = [
        _candidate(label, group, alone, best, question) for label, group in _short(sharing).items()
    ]
    candidates = [candidate for candidate in candidates if candidate.rival and candidate.errors]
    if not candidates:
        return None
    chosen = min(candidates, key=lambda candidate: candidate.promise(metrics))
    judgeable = len(candidates) == 1 or isfinite(chosen.promise(metrics)[1])
    return chosen if judgeable else None


def _short(groups: Mapping[str, Group]) -> dict[str, Group]:
    """Return the groups with the method as the label, where no other group has this method."""
    times = Counter(group.method for group in groups.values())
    return {
        group.method if times[group.method] == 1 else label: group
        for label, group in groups.items()
    }


def _candidate(
    label: str, group: Group, alone: Mapping[str, Group], best: Alone, question: Question
) -> Candidate:
    metrics = question.metrics
    more = _means_of_more([client_errors(run, metrics) for run in group.runs])
    rival_more = _means_of_more([best.best(run) for run in group.runs])
    constant = _constant(more, metrics) | _constant(rival_more, metrics)
    methods = {member.method for member in alone.values() if _shares_nothing(member.runs[0])}
    has_alone = f"{group.method}.sharing" in known_settings(group.runs[0])
    return Candidate(
        label,
        question.title,
        group,
        _without(constant, mean_errors(group, metrics)),
        _without(constant, best_alone(group, best)),
        _without(constant, more),
        _without(constant, rival_more),
        len(constant),
        _short(alone),
        group.method in methods or (not has_alone and "solo" in methods),
        [name for name in task_record(group.task).simplest if name not in methods],
        _advised(group, best, metrics),
    )


def _shares_nothing(run: Run) -> bool:
    """Whether the run's method was set to share nothing, if it can be set to share."""
    return bool(known_settings(run).get(f"{run.summary['method']}.sharing", "none") == "none")


def _means_of_more(seeds: Sequence[Mapping[str, Errors]]) -> dict[str, list[float]]:
    """Return each client's further figures, the means over the seeds that have it."""
    of_clients: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for errors in seeds:
        for client, error in errors.items():
            of_clients[client].append(error.more)
    return {
        client: [fmean(values) for values in zip(*figures, strict=True)]
        for client, figures in of_clients.items()
    }


def _constant(more: Mapping[str, Sequence[float]], metrics: TaskMetrics) -> set[str]:
    """Return the clients that lack a quotient, as its divisor is 0: their values hardly change."""
    quotients = [n for n, figure in enumerate(metrics.verdict.values()) if figure.over]
    return {
        client
        for client, figures in more.items()
        if any(not isfinite(figures[number]) for number in quotients)
    }


def _without(clients: Set[str], values: Mapping[str, ClientValue]) -> dict[str, ClientValue]:
    return {client: value for client, value in values.items() if client not in clients}


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


def verdict(chosen: Candidate) -> list[str]:
    """Return sentences: for how many clients taking part pays, how sure that is, what contradicts.

    The first holds the finding, the others what it stands on.
    """
    metrics = report_for(chosen.group.task).metrics
    clients, interval = len(chosen.ratios), chosen.interval
    finding = (
        f"the median client's test {metrics.error} is "
        f"{_compared(median(chosen.ratios.values()))} its best alone{_doubt(interval)}."
    )
    lead = {
        Finding.DOES_NOT_PAY: (
            f"Taking part does not pay for most clients of {chosen.title}: {chosen.label} helps "
            f"{chosen.better} of {clients}, and {finding}"
        ),
        Finding.MAY_BE_THE_MODEL: (
            f"Whether taking part pays is open for {chosen.title}, as the model of {chosen.label} "
            f"did not run alone: with {chosen.label} {chosen.better} of {clients} clients do "
            f"better, and {finding}"
        ),
        Finding.MAY_BE_CHANCE: (
            f"Whether taking part pays is open for {chosen.title}: with {chosen.label} "
            f"{chosen.better} of {clients} clients do better, and {finding}"
        ),
        Finding.PAYS: (
            f"Taking part pays for {chosen.better} of {clients} clients of {chosen.title}: with "
            f"{chosen.label} {finding}"
        ),
    }[chosen.finding]
    medians = _medians(chosen, metrics)
    return [
        lead,
        *_rivals(chosen),
        *_not_converged(chosen),
        *_in_units(medians),
        *_against(chosen, metrics, medians),
        *_advice(chosen),
    ]


def _rivals(chosen: Candidate) -> list[str]:
    """Name what a client could have chosen alone, what was not compared, and who is left out."""
    names = sorted(chosen.alone)
    best = names[0] if len(names) == 1 else f"the best of {_listed(names)}"
    choice = " by its validation error" if len(names) > 1 else ""
    lines = [f"Alone, a client uses {best}{choice}."]
    if chosen.missing:
        lines.append(f"Not compared: {', '.join(chosen.missing)}.")
    if chosen.constant:
        clients = "client" if chosen.constant == 1 else "clients"
        lines.append(f"{chosen.constant} {clients} with values that hardly ever change left out.")
    return lines


def _not_converged(chosen: Candidate) -> list[str]:
    """Name the compared groups whose errors more rounds may lower."""
    compared = {chosen.label: chosen.group, **chosen.alone}
    names = [name for name, group in compared.items() if group.had_not_converged]
    if not names:
        return []
    return [f"{_listed(names)} had not converged, so more rounds may change this."]


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _in_units(medians: Sequence[tuple[str, float, float]]) -> list[str]:
    """State the further figures of the median client, together and alone."""
    parts = [
        f"{name} {together:.3g} instead of {alone:.3g}"
        for name, together, alone in medians
        if isfinite(together) and isfinite(alone)
    ]
    return [f"The median client: {', '.join(parts)}."] if parts else []


def _against(
    chosen: Candidate, metrics: TaskMetrics, medians: Sequence[tuple[str, float, float]]
) -> list[str]:
    """Name the figures by which the opposite of the finding holds."""
    gains = median(chosen.ratios.values()) < 1
    clients = chosen.errors.keys() & chosen.rival.keys()
    figures = [(f"the median {name}", together, alone) for name, together, alone in medians]
    if clients:
        figures.insert(0, (f"the mean {metrics.error}", *_means_of_both(chosen, clients)))
    opposed = [
        f"{name} ({together:.3g}, alone {alone:.3g})"
        for name, together, alone in figures
        if (together > alone * _TELLING if gains else together * _TELLING < alone)
    ]
    if not opposed:
        return []
    return [f"By {' and '.join(opposed)} {'working alone' if gains else 'taking part'} is better."]


def _means_of_both(chosen: Candidate, clients: Iterable[str]) -> tuple[float, float]:
    clients = sorted(clients)
    errors = [chosen.errors[client] for client in clients]
    return fmean(errors), fmean(chosen.rival[client] for client in clients)


def _medians(chosen: Candidate, metrics: TaskMetrics) -> list[tuple[str, float, float]]:
    """Return each further figure's name, and its median over the clients, together and alone."""
    clients = sorted(chosen.more.keys() & chosen.rival_more.keys())
    return [
        (
            name,
            median(chosen.more[client][number] for client in clients),
            median(chosen.rival_more[client][number] for client in clients),
        )
        for number, name in enumerate(metrics.verdict)
        if clients
    ]


def _advice(chosen: Candidate) -> list[str]:
    """Say what the clients would have decided, and how many would have been right."""
    if chosen.advised is None:
        return []
    clients = len(chosen.ratios)
    advised = [client for client in chosen.advised if client in chosen.ratios]
    if not advised:
        return [f"Their own validation errors advise none of the {clients} clients to take part."]
    gain = sum(chosen.ratios[client] < 1 for client in advised)
    return [
        f"Their own validation errors advise {len(advised)} of {clients} clients to take part; "
        f"{gain} of these {'does' if gain == 1 else 'do'} better."
    ]


def totals_verdict(question: Question) -> list[str]:
    """Return sentences that compare means over clients, where single clients' errors are withheld.

    [] without runs of both kinds, or where a run with errors of single clients shared something.
    """
    metrics = question.metrics
    kinds: dict[bool, list[tuple[float, str, float]]] = {True: [], False: []}
    for label, group in zip(question.labels, question.groups, strict=True):
        alone = all(map(is_alone, group.runs))
        if not alone and mean_errors(group, metrics):
            return []
        mean = group.spread(metrics.kept.summary[0].name).mean
        if mean is not None:
            error = 1 - mean if metrics.is_accuracy else mean
            kinds[alone].append((_lowest_validation(group, metrics), label, error))
    if not (kinds[True] and kinds[False]):
        return []
    (_, rival, alone_error), (_, label, error) = min(kinds[True]), min(kinds[False])
    return [
        f"With {label} the mean test {metrics.error} over all clients of {question.title} is "
        f"{error:.3g}, {_compared(_ratio(error, alone_error))} that of {rival} alone "
        f"({alone_error:.3g}).",
        "The errors of single clients were withheld, so this compares totals: how many clients "
        "gain, and whether this may be chance, remains open.",
    ]


def _lowest_validation(group: Group, metrics: TaskMetrics) -> float:
    """Return the lowest mean validation error of any round, the mean over seeds."""
    field = metrics.validation.round.name
    rounds = ([line.get(field) for line in read_rounds(run.folder)] for run in group.runs)
    return fmean(min((e for e in errors if e is not None), default=inf) for errors in rounds)


def _doubt(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return "; there are too few clients to rule out chance"
    least, most = interval
    span = f"{_LEVEL}% interval: {_compared(least)} to {_compared(most)}"
    return f"; this may be chance ({span})" if least <= 1 <= most else f" ({span})"


def _compared(ratio: float) -> str:
    """Compare an error with another one in words."""
    if ratio > _MOST_TIMES:
        return "far above"
    if ratio >= _TIMES:
        return f"{ratio:.1f} times"
    return f"{abs(ratio - 1):.1%} {'below' if ratio < 1 else 'above'}"
