"""Methods two by two over the same clients: how many gain, by how much, and whether by chance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from fedproto_app.maths.client_errors import largest_share
from fedproto_app.report.alone import Alone, client_errors, is_alone, question
from fedproto_app.report.pairs import FEWEST, holm, signed_rank
from fedproto_app.report.runs import Group, labels
from fedproto_app.report.task_report import ClientErrors, report_for

PAIR_COLUMNS = (
    "dataset", "method", "against", "clients", "better", "median difference", "p", "p (Holm)",
)  # fmt: skip
BEST_ALONE = "best alone"
_MOST = 0.5  # of a mean
_FEWEST_CLIENTS = 3  # of two clients one always makes half of the mean


@dataclass(frozen=True)
class Pair:
    """A method against another over the clients that both have, each client's errors averaged over
    seeds.

    better: clients with the lower error. by_client: the differences, in the order of the clients'
    names, below 0 where the method is better; difference: their median. p: of Wilcoxon's
    signed-rank test; corrected: by Holm, for all pairs with the same question. Both are None where
    too few clients differ.
    """

    dataset: str
    method: str
    against: str
    clients: int
    better: int
    difference: float
    p: float | None
    corrected: float | None = None
    by_client: tuple[float, ...] = ()

    def row(self) -> list[str]:
        """The cells of `PAIR_COLUMNS`."""
        return [
            *(self.dataset, self.method, self.against, str(self.clients), str(self.better)),
            f"{self.difference:+.4f}",
            *(_p_text(p) for p in (self.p, self.corrected)),
        ]


def pairs(groups: Sequence[Group]) -> list[Pair]:
    """Every group of one task, best first, against the best that its clients could do alone; where
    no run shares nothing, against the first group that was asked the same."""
    columns = report_for(groups[0].task).client_errors
    if columns is None:
        return []
    found: list[Pair] = []
    for members in asked_alike(groups, columns):
        alone = [group for _, group in members if all(map(is_alone, group.runs))]
        family = (
            _against_alone(members, alone, columns) if alone else _against_best(members, columns)
        )
        found += _corrected([pair for pair in family if pair.clients])
    return found


def asked_alike(
    groups: Sequence[Group], columns: ClientErrors
) -> Iterable[Sequence[tuple[str, Group]]]:
    """The groups of one task, each with its label, apart by the question that they were asked."""
    found: dict[tuple[object, ...], list[tuple[str, Group]]] = defaultdict(list)
    for label, group in zip(labels(groups), groups, strict=True):
        found[question(group.runs[0], columns)].append((label, group))
    return found.values()


def _against_alone(
    members: Sequence[tuple[str, Group]], alone: Sequence[Group], columns: ClientErrors
) -> Iterator[Pair]:
    best = Alone(alone, columns)
    for label, group in members:
        if [group] != alone:  # which would be the best alone itself
            yield _pair(group, label, columns, BEST_ALONE, best_alone(group, best))


def _against_best(members: Sequence[tuple[str, Group]], columns: ClientErrors) -> Iterator[Pair]:
    (first, best), *others = members
    errors = mean_errors(best, columns)
    for label, group in others:
        yield _pair(group, label, columns, first, errors)


def mean_errors(group: Group, columns: ClientErrors) -> dict[str, float]:
    """Each client's test error, the mean over the seeds that have it."""
    runs = [client_errors(run, columns) for run in group.runs]
    return _means([{client: one.test for client, one in errors.items()} for errors in runs])


def best_alone(group: Group, best: Alone) -> dict[str, float]:
    """The test error of the best that each client could do alone, the mean over the group's
    seeds."""
    return _means([best.errors(run) for run in group.runs])


def heavy_clients(groups: Sequence[Group]) -> list[str]:
    """A line for each client and dataset where the client makes most of a mean over clients; all
    groups are of one task."""
    columns = report_for(groups[0].task).client_errors
    if columns is None:
        return []
    shares: dict[tuple[str, str], list[str]] = defaultdict(list)
    for group, label in zip(groups, labels(groups), strict=True):
        errors = mean_errors(group, columns)
        if len(errors) >= _FEWEST_CLIENTS:
            worst, share = largest_share(np.array(list(errors.values())))
            if share > _MOST:
                shares[group.dataset, list(errors)[worst]].append(f"{label} ({share:.0%})")
    return [
        f"{dataset}: client {client!r} makes most of the mean {columns.name} of {', '.join(those)}"
        for (dataset, client), those in shares.items()
    ]


def _means(of_seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    clients = sorted(set().union(*of_seeds))
    return {
        client: fmean(errors[client] for errors in of_seeds if client in errors)
        for client in clients
    }


def _pair(
    group: Group, label: str, columns: ClientErrors, against: str, rival: Mapping[str, float]
) -> Pair:
    own = mean_errors(group, columns)
    both = sorted(own.keys() & rival.keys())
    differences = np.array([own[client] - rival[client] for client in both])
    return Pair(
        dataset=group.dataset,
        method=label,
        against=against,
        clients=len(both),
        better=int((differences < 0).sum()),
        difference=float(np.median(differences)) if both else 0.0,
        p=signed_rank(differences),
        by_client=tuple(differences.tolist()),
    )


def _corrected(family: Sequence[Pair]) -> list[Pair]:
    corrected = iter(holm([pair.p for pair in family if pair.p is not None]))
    return [pair if pair.p is None else replace(pair, corrected=next(corrected)) for pair in family]


def _p_text(p: float | None) -> str:
    return f"n < {FEWEST}" if p is None else f"{p:.2g}"
