"""The part of ``fedproto data check`` that looks at labelled sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.charts import Matrix
from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.clients import make_sequence_clients
from fedproto_app.data.sequences.clusters import deal_sequences
from fedproto_app.data.sequences.pool import SequencePool, Targets
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.data.sequences.split import split_holding, why_refused
from fedproto_app.report.check.findings import (
    Cell,
    Checked,
    Findings,
    hint,
    refusals,
    some,
    span,
    too_large,
)
from fedproto_app.report.images.charts import partition_charts
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.tasks.sequences.clients import targets_of
from fedproto_app.tasks.table import fitting_task, require_fitting_targets

Counts = NDArray[np.int64]

PARTS = ("train", "validation", "test")
MOST_GROUPS = 8  # columns of the table of classes
_TELLING = 0.5  # the share of a level's variance between classes from which on losing it is told


@dataclass(frozen=True)
class DealtClient:
    """One client: its true cluster, or "", the targets [n] of its parts, how many sequences without
    a label it trains on, why a run would leave it out."""

    name: str
    group: str
    parts: Mapping[str, Targets]
    unlabelled: int
    refused: str | None

    @property
    def targets(self) -> Targets:
        """Of all parts."""
        return np.concatenate(list(self.parts.values()))


@dataclass(frozen=True)
class Dealing:
    """Who would hold what. value_range: the lowest and the highest value that models would see."""

    clients: tuple[DealtClient, ...]
    value_range: tuple[float, float] | None

    @property
    def refused(self) -> dict[str, str]:
        """The reason for each client that a run would leave out."""
        return {one.name: one.refused for one in self.clients if one.refused is not None}

    @property
    def groups(self) -> dict[str, list[DealtClient]]:
        """The clients of each true cluster, in ascending order; without those that have none."""
        names = sorted({one.group for one in self.clients if one.group})
        return {name: [one for one in self.clients if one.group == name] for name in names}


def check(settings: Settings, every: bool) -> Checked:
    """Print what the sequences are and what a run would deal to whom; whether a run could start.

    every: list all classes, or clients where targets are real numbers.
    """
    data = settings.data
    pool = load_sequences(data)
    require_fitting_targets(settings, targets_of(pool))
    dealing = None
    try:
        dealing = deal(pool, data, settings.seed)
        refused = refusals(dealing.refused)
    except DataError as error:
        refused = [str(error)]
    facts = _pool_facts(pool, data)
    if dealing is not None:
        facts += [(f"  {title}", text) for title, text in _dealing_facts(pool, dealing, data)]
    rows = _class_rows(pool, dealing) if pool.classes else _client_rows(dealing)
    sizes = (float(np.abs(one).max()) for one in (*pool.sequences, pool.targets))
    Findings(rows, facts, refused, too_large([(data.title, max(sizes))])).print(every)
    usable = dealing is not None and len(dealing.refused) < len(dealing.clients)
    dealt = _charts(dealing, pool) if dealing is not None and pool.classes else ()
    return Checked(usable, charts=dealt if pool.classes else None)


def deal(pool: SequencePool, settings: DataSettings, seed: int) -> Dealing:
    """Deal the sequences as a run with these settings and this seed would.

    Raises `DataError` if they are too few, or cannot be dealt so.
    """
    clients = []
    holdings = deal_sequences(pool, settings, seed)
    for one in holdings:
        split = split_holding(pool, one, settings, seed)
        parts = {title: pool.targets[getattr(split, title)] for title in PARTS}
        reason = why_refused(split, settings)
        clients.append(DealtClient(one.name, one.group, parts, len(split.unlabelled), reason))
    prepared, _ = make_sequence_clients(pool, holdings, settings, seed)
    values = [
        np.array([steps.min(), steps.max()])
        for one in prepared.values()
        for title in PARTS
        for steps in getattr(one, title).values
    ]
    seen = (float(np.min(values)), float(np.max(values))) if values else None
    return Dealing(tuple(clients), seen)


def class_counts(clients: Sequence[DealtClient], classes: int) -> Counts:
    """[N, C] sequences of each class in all parts of each client."""
    return np.stack([_counts(one.targets, classes) for one in clients])


def _counts(labels: Targets, classes: int) -> Counts:
    return np.bincount(labels.astype(np.int64), minlength=classes)


def constant_sequences(pool: SequencePool) -> int:
    """Sequences whose steps are all alike, such as those of one step."""
    return sum(bool((steps == steps[0]).all()) for steps in pool.sequences)


def level_shares(pool: SequencePool) -> NDArray[np.float64]:
    """[d] of each dimension's mean over a sequence, the share of its variance between classes.

    ε² (Kelley, 1935): of chance alone it is 0 in the mean, and may be below. Sequences with a label
    count; where they are no more than classes, or all levels alike, 0.
    """
    labelled = np.flatnonzero(pool.has_target)
    present, labels = np.unique(pool.targets[labelled], return_inverse=True)
    free = len(labelled) - len(present)
    if free < 1:
        return np.zeros(len(pool.dimensions))
    levels = np.stack([pool.sequences[i].mean(axis=0, dtype=np.float64) for i in labelled.tolist()])
    members = np.eye(len(present))[labels]  # (n, C)
    means = (members.T @ levels) / members.sum(axis=0)[:, None]
    within = ((levels - means[labels]) ** 2).sum(axis=0)
    total = ((levels - levels.mean(axis=0)) ** 2).sum(axis=0)
    between = total - within - (len(present) - 1) * within / free
    shares: NDArray[np.float64] = np.zeros_like(total)
    np.divide(between, total, out=shares, where=total > 0)
    return shares


def _class_rows(pool: SequencePool, dealing: Dealing | None) -> list[Sequence[Cell]]:
    """Each class: its sequences, and if dealt its clients and its share of each true cluster."""
    classes = len(pool.classes)
    columns = [["class", *pool.classes]]
    columns.append(["sequences", *map(str, _counts(pool.targets[pool.has_target], classes))])
    if dealing is not None:
        holders = (class_counts(dealing.clients, classes) > 0).sum(axis=0)
        columns.append(["clients", *map(str, holders)])
        if len(dealing.groups) <= MOST_GROUPS:
            for name, members in dealing.groups.items():
                held = class_counts(members, classes).sum(axis=0)
                columns.append([name, *(f"{share:.0%}" for share in held / max(held.sum(), 1))])
    return list(zip(*columns, strict=True))


def _client_rows(dealing: Dealing | None) -> list[Sequence[Cell]]:
    rows: list[Sequence[Cell]] = [("client", "group", *PARTS, "target")]
    for one in dealing.clients if dealing else ():
        sizes = (str(len(part)) for part in one.parts.values())
        target = span(one.targets) if len(one.targets) else "-"
        rows.append((one.name, one.group or "-", *sizes, target))
    return rows


def _pool_facts(pool: SequencePool, settings: DataSettings) -> list[tuple[str, Cell]]:
    """What the source holds, and how it is to be dealt."""
    task = fitting_task("labelled sequences", targets_of(pool))
    lengths = np.array([len(steps) for steps in pool.sequences])
    own = f", {pool.is_test.sum()} of them test" if pool.is_test is not None else ""
    steps = f"{lengths.min()} shortest, {np.median(lengths):g} median, {lengths.max()} longest"
    facts: list[tuple[str, Cell]] = [
        ("source", f"{settings.source}, for task = {task!r}"),
        ("sequences", f"{len(lengths)}{own}"),
        ("dimensions", f"{len(pool.dimensions)}: {some(pool.dimensions)}"),
        ("length", f"{steps}, in steps"),
    ]
    if constant := constant_sequences(pool):
        zeros = "; scaling sequence makes zeros of them"
        shown = zeros if settings.sequences.scaling == "sequence" else ""
        facts.append(("constant", f"{constant}: all steps alike, or only one{shown}"))
    if pool.classes:
        facts.append(("classes", f"{len(pool.classes)}: {some(pool.classes)}"))
        if unlabelled := int((~pool.has_target).sum()):
            facts.append(("unlabelled", f"{unlabelled} sequences"))
    else:
        middle = np.median(pool.targets)
        facts.append(("target", f"{span(pool.targets)}, median {middle:.4g}: real numbers"))
    if pool.clients is not None:
        names = np.unique(pool.clients).tolist()
        facts.append(("clients", f"{len(names)}: {some(names)}"))
    if groups := sorted({group for group in pool.groups.values() if group}):
        facts.append(("groups", f"{len(groups)}: {some(groups)}"))
    hints = [*_unused(pool, settings), *_lost_level(pool, settings)]
    return [*facts, ("dealing", _scheme(settings)), *map(hint, hints)]


def _scheme(settings: DataSettings) -> str:
    chosen = settings.clusters
    if chosen.scheme == "given":
        return "given: clients as the source has them"
    return f"dirichlet: clients {chosen.clients}, clusters {chosen.clusters}, beta {chosen.beta:g}"


def _unused(pool: SequencePool, settings: DataSettings) -> list[str]:
    """What the chosen scheme leaves unused of the source."""
    if settings.clusters.scheme == "given":
        return [] if pool.clients is not None else ["the source names no clients: one has them all"]
    known = {
        "clients": pool.clients is not None,
        "test part": pool.is_test is not None,
        "sequences without a label": not pool.has_target.all(),
    }
    unused = [title for title, there in known.items() if there]
    return [f"--scheme given takes the source's own {' and '.join(unused)}"] if unused else []


def _lost_level(pool: SequencePool, settings: DataSettings) -> list[str]:
    """That scaling each sequence by itself takes away what tells classes apart."""
    if settings.sequences.scaling != "sequence" or not pool.classes:
        return []
    shares = level_shares(pool)
    most = int(shares.argmax())
    if shares[most] < _TELLING:
        return []
    return [
        f"{shares[most]:.0%} of what the mean of {pool.dimensions[most]!r} over a sequence "
        "varies is between classes, and scaling sequence subtracts it: try --scaling none or client"
    ]


def _dealing_facts(
    pool: SequencePool, dealing: Dealing, settings: DataSettings
) -> list[tuple[str, str]]:
    """Who would hold what, and what models would see of it."""
    clients = dealing.clients
    facts = [("clients", f"{len(clients)}, of them {len(clients) - len(dealing.refused)} usable")]
    if groups := dealing.groups:
        sizes = [f"{name} {len(members)}" for name, members in groups.items()]
        facts.append(("groups", f"clients in {some(sizes)}"))
    for title in PARTS:
        held = np.array([len(one.parts[title]) for one in clients])
        facts.append((title, _a_client(held)))
    if (unlabelled := np.array([one.unlabelled for one in clients])).any():
        facts.append(("unlabelled", f"{_a_client(unlabelled)}, for methods that learn from such"))
    if pool.classes:
        distinct = (class_counts(clients, len(pool.classes)) > 0).sum(axis=1)
        facts.append(("classes", f"{span(distinct)} a client"))
    if dealing.value_range is not None:
        low, high = dealing.value_range
        facts.append(("values", f"{low:.4g} … {high:.4g}, scaling {settings.sequences.scaling}"))
    if most := settings.sequences.steps:
        longer = sum(len(steps) > most for steps in pool.sequences)
        facts.append(("steps", f"{longer} sequences resampled to {most}"))
    return facts


def _a_client(held: Counts) -> str:
    """held: [N] sequences of each."""
    return f"{span(held)} sequence{'s' * int(held.max() != 1)} a client"


def _charts(dealing: Dealing, pool: SequencePool) -> list[Matrix]:
    """The train part of every client, true clusters together."""
    counts = {
        f"{one.name} ({one.group})" if one.group else one.name: _counts(
            one.parts["train"], len(pool.classes)
        )[None]
        for one in sorted(dealing.clients, key=lambda one: (one.group, one.name))
    }
    return partition_charts(counts, pool.classes)
