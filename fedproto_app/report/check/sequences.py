"""The part of ``fedproto data check`` that looks at labelled sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.charts import Matrix
from fedproto_app.core.errors import DataError
from fedproto_app.core.method import Method
from fedproto_app.data.sequences.clients import make_sequence_clients
from fedproto_app.data.sequences.partition import deal_sequences, split_holding, why_refused
from fedproto_app.data.sequences.pool import SequencePool, Targets
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.report.check.doubts import doubts_about_sequences
from fedproto_app.report.check.findings import (
    Cell,
    Checked,
    Findings,
    hint,
    listed,
    refusals,
    span,
    too_large,
    with_own_clients,
)
from fedproto_app.report.images.charts import partition_charts
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.tasks.sequences.clients import targets_of
from fedproto_app.tasks.table import fitting_task, require_fitting_targets

Counts = NDArray[np.int64]

PARTS = ("train", "validation", "test")
MOST_GROUPS = 8  # columns of the table of classes
_TELLING = 0.5  # share of a level's variance. If classes explain more, there is a hint on scaling


@dataclass(frozen=True)
class DealtClient:
    """A client and the sequences that it would hold.

    group: its true cluster, or "". parts: for each part, the targets [n]. unlabelled: the number of
    its train sequences without a label. refused: why a run would leave it out, or None.
    """

    name: str
    group: str
    parts: Mapping[str, Targets]
    unlabelled: int
    refused: str | None

    @property
    def targets(self) -> Targets:
        """The targets of all parts."""
        return np.concatenate(list(self.parts.values()))


@dataclass(frozen=True)
class Dealing:
    """All clients with their sequences. value_range: the lowest and highest value models see."""

    clients: tuple[DealtClient, ...]
    value_range: tuple[float, float] | None

    @property
    def refused(self) -> dict[str, str]:
        """For each client that a run would leave out, the reason."""
        return {
            client.name: client.refused for client in self.clients if client.refused is not None
        }

    @property
    def groups(self) -> dict[str, list[DealtClient]]:
        """The clients by true cluster, sorted by its name. Clients without one are left out."""
        names = sorted({client.group for client in self.clients if client.group})
        return {name: [client for client in self.clients if client.group == name] for name in names}


def check(settings: Settings, all_rows: bool) -> Checked:
    """Print facts about the sequences and how they would be dealt to clients.

    all_rows: list all classes or, if targets are real numbers, all clients. The result says whether
    a run could start.
    """
    pool = load_sequences(settings.data)
    # Only classes can be dealt, so sequences with real numbers stay with the source's clients.
    own_clients = pool.clients is not None or not pool.classes
    data = with_own_clients(settings.data, "clusters", own_clients)
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
    sizes = (float(np.abs(values).max()) for values in (*pool.sequences, pool.targets))
    warnings = [*doubts_about_sequences(pool), *too_large([(data.title, max(sizes))])]
    Findings(rows, facts, refused, warnings).print(all_rows)
    usable = dealing is not None and len(dealing.refused) < len(dealing.clients)
    dealt = _charts(dealing, pool) if dealing is not None and pool.classes else ()
    proposed = {"data.clusters.scheme": "given"} if data.clusters.scheme == "given" else {}
    return Checked(usable, proposed, charts=dealt if pool.classes else None)


def deal(pool: SequencePool, settings: DataSettings, seed: int) -> Dealing:
    """Deal the sequences as a run with these settings and this seed would.

    Raises `DataError` if there are too few sequences, or they cannot be dealt like this.
    """
    clients = []
    holdings = deal_sequences(pool, settings, seed)
    for holding in holdings:
        split = split_holding(pool, holding, settings, seed)
        parts = {title: pool.targets[getattr(split, title)] for title in PARTS}
        reason = why_refused(split, settings)
        clients.append(
            DealtClient(holding.name, holding.group, parts, len(split.unlabelled), reason)
        )
    prepared, _ = make_sequence_clients(pool, holdings, settings, seed)
    values = [
        np.array([steps.min(), steps.max()])
        for holding in prepared.values()
        for title in PARTS
        for steps in getattr(holding, title).values
    ]
    value_range = (float(np.min(values)), float(np.max(values))) if values else None
    return Dealing(tuple(clients), value_range)


def class_counts(clients: Sequence[DealtClient], classes: int) -> Counts:
    """Return the number of sequences by client and class, [N, C], over all parts."""
    return np.stack([_counts(client.targets, classes) for client in clients])


def _counts(labels: Targets, classes: int) -> Counts:
    return np.bincount(labels.astype(np.int64), minlength=classes)


def constant_sequences(pool: SequencePool) -> int:
    """Return the number of sequences whose steps are all equal, which includes single steps."""
    return sum(bool((steps == steps[0]).all()) for steps in pool.sequences)


def level_shares(pool: SequencePool) -> NDArray[np.float64]:
    """Return for each dimension the share of its level's variance that classes explain, [d].

    The level of a sequence is its mean. The share is ε² (Kelley, 1935), which may be negative. If
    levels and classes are unrelated, its mean is 0. Only labelled sequences are used. The share is
    0 if there are no more sequences than classes, or if all levels are equal.
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
    """Return a row per class: its sequences and, if they were dealt, its clients and its share of
    each cluster."""
    classes = len(pool.classes)
    columns = [["class", *pool.classes]]
    columns.append(["sequences", *map(str, _counts(pool.targets[pool.has_target], classes))])
    if dealing is not None:
        holders = (class_counts(dealing.clients, classes) > 0).sum(axis=0)
        columns.append(["clients", *map(str, holders)])
        if len(dealing.groups) <= MOST_GROUPS:
            for name, members in dealing.groups.items():
                counts = class_counts(members, classes).sum(axis=0)
                columns.append([name, *(f"{share:.0%}" for share in counts / max(counts.sum(), 1))])
    return list(zip(*columns, strict=True))


def _client_rows(dealing: Dealing | None) -> list[Sequence[Cell]]:
    rows: list[Sequence[Cell]] = [("client", "group", *PARTS, "target")]
    for client in dealing.clients if dealing else ():
        sizes = (str(len(part)) for part in client.parts.values())
        target = span(client.targets) if len(client.targets) else "-"
        rows.append((client.name, client.group or "-", *sizes, target))
    return rows


def _pool_facts(pool: SequencePool, settings: DataSettings) -> list[tuple[str, Cell]]:
    """Return facts about the source, and how its sequences would be dealt to clients."""
    task = fitting_task("labelled sequences", targets_of(pool))
    lengths = np.array([len(steps) for steps in pool.sequences])
    test_count = f", {pool.is_test.sum()} of them test" if pool.is_test is not None else ""
    steps = f"{lengths.min()} shortest, {np.median(lengths):g} median, {lengths.max()} longest"
    facts: list[tuple[str, Cell]] = [
        ("source", f"{settings.source}, for task = {task!r}"),
        ("sequences", f"{len(lengths)}{test_count}"),
        ("dimensions", f"{len(pool.dimensions)}: {listed(pool.dimensions)}"),
        ("length", f"{steps}, in steps"),
    ]
    if constant := constant_sequences(pool):
        zeros = "; scaling sequence turns them into zeros"
        shown = zeros if _scaling(settings) == "sequence" else ""
        facts.append(("constant", f"{constant}: all steps equal, or only one{shown}"))
    if pool.classes:
        facts.append(("classes", f"{len(pool.classes)}: {listed(pool.classes)}"))
        if unlabelled := int((~pool.has_target).sum()):
            facts.append(("unlabelled", f"{unlabelled} sequences"))
    else:
        middle = np.median(pool.targets)
        facts.append(("target", f"{span(pool.targets)}, median {middle:.4g}: real numbers"))
    if pool.clients is not None:
        names = np.unique(pool.clients).tolist()
        facts.append(("clients", f"{len(names)}: {listed(names)}"))
    if groups := sorted({group for group in pool.groups.values() if group}):
        facts.append(("groups", f"{len(groups)}: {listed(groups)}"))
    hints = [*_unused(pool, settings), *_lost_level(pool, settings)]
    return [*facts, ("dealing", _scheme(settings)), *map(hint, hints)]


def _scheme(settings: DataSettings) -> str:
    chosen = settings.clusters
    if chosen.scheme == "given":
        return "given: clients as the source has them"
    return f"dirichlet: clients {chosen.clients}, clusters {chosen.clusters}, beta {chosen.beta:g}"


def _unused(pool: SequencePool, settings: DataSettings) -> list[str]:
    """Return a hint if the chosen scheme leaves parts of the source unused."""
    if settings.clusters.scheme == "given":
        return [] if pool.clients is not None else ["the source names no clients, so one has all"]
    offered = {
        "clients": pool.clients is not None,
        "test part": pool.is_test is not None,
        "sequences without a label": not pool.has_target.all(),
    }
    unused = [title for title, is_offered in offered.items() if is_offered]
    setting_text = "--set data.clusters.scheme=given"
    return [f"{setting_text} takes the source's own {' and '.join(unused)}"] if unused else []


def _lost_level(pool: SequencePool, settings: DataSettings) -> list[str]:
    """Return a hint if scaling each sequence removes levels that distinguish classes."""
    if _scaling(settings) != "sequence" or not pool.classes:
        return []
    shares = level_shares(pool)
    strongest = int(shares.argmax())
    if shares[strongest] < _TELLING:
        return []
    return [
        f"classes explain {shares[strongest]:.0%} of the variance of the sequences' mean "
        f"{pool.dimensions[strongest]!r}, which scaling sequence removes, except for closed forms: "
        "try --set data.sequences.scaling=none or client"
    ]


def _scaling(settings: DataSettings) -> str:
    """Return the scaling of the values. If methods choose it, return what most of them choose."""
    scaling = settings.sequences.scaling
    return Method.scaling if scaling == "auto" else scaling


def _dealing_facts(
    pool: SequencePool, dealing: Dealing, settings: DataSettings
) -> list[tuple[str, str]]:
    """Return facts about what the clients would hold, and which values models would see."""
    clients = dealing.clients
    facts = [("clients", f"{len(clients)}, of them {len(clients) - len(dealing.refused)} usable")]
    if groups := dealing.groups:
        sizes = [f"{name} {len(members)}" for name, members in groups.items()]
        facts.append(("groups", f"clients in {listed(sizes)}"))
    for title in PARTS:
        sizes_of_part = np.array([len(client.parts[title]) for client in clients])
        facts.append((title, _a_client(sizes_of_part)))
    if (unlabelled := np.array([client.unlabelled for client in clients])).any():
        facts.append(("unlabelled", f"{_a_client(unlabelled)}, for methods that learn from them"))
    if pool.classes:
        distinct = (class_counts(clients, len(pool.classes)) > 0).sum(axis=1)
        facts.append(("classes", f"{span(distinct)} a client"))
    if dealing.value_range is not None:
        low, high = dealing.value_range
        facts.append(("values", f"{low:.4g} … {high:.4g}, scaling {_scaling(settings)}"))
    if longest := settings.sequences.steps:
        longer = sum(len(steps) > longest for steps in pool.sequences)
        facts.append(("steps", f"{longer} sequences resampled to {longest}"))
    return facts


def _a_client(counts: Counts) -> str:
    """Return in words the range of the clients' numbers of sequences [N]."""
    return f"{span(counts)} sequence{'s' * int(counts.max() != 1)} a client"


def _charts(dealing: Dealing, pool: SequencePool) -> list[Matrix]:
    """Return the chart of every client's train part, sorted by true cluster."""
    counts = {
        f"{client.name} ({client.group})" if client.group else client.name: _counts(
            client.parts["train"], len(pool.classes)
        )[None]
        for client in sorted(dealing.clients, key=lambda client: (client.group, client.name))
    }
    return partition_charts(counts, pool.classes)
