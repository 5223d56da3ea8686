"""Say whether federated learning pays, based on a comparison of runs.

The verdict is about the method that a user would choose without knowing test errors. Among the runs
that shared something, this is the run whose best round has the lowest validation error
(`validation_error`). Each client's test error is compared with the test error of its best local
model (report/comparison.py). The rule that says whether the method pays is in report/gain.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, median

from fedproto_app.core.tasks import task_record
from fedproto_app.maths.two_way_bootstrap import LEVEL
from fedproto_app.report.comparison import (
    Errors,
    Question,
    Rivals,
    client_errors,
    gain_between,
    mean_errors,
    merged,
    questions,
)
from fedproto_app.report.gain import RELEVANT, Finding, Gain
from fedproto_app.report.runs import (
    Group,
    KnownColumns,
    Run,
    enumerated,
    known_settings,
    labels,
    read_rounds,
    without_repeats,
)
from fedproto_app.report.task_report import report_for
from fedproto_app.settings import defaults_of
from fedproto_app.tasks.metrics import TaskMetrics

_TELLING = 1 + RELEVANT  # the quotient from which two errors contradict the finding
_TIMES, _MOST_TIMES = 2.0, 10.0  # between these quotients, texts say "2.5 times", not percent


def validation_error(folder: Path, kept_errors: Sequence[float], metrics: TaskMetrics) -> float:
    """Return the validation error of a run, for choosing between runs.

    With ``keep = "best-validation"`` every client ends with the model of the round where its own
    validation error was lowest. That error is optimistic, the more so the more rounds there are and
    the shorter the validation part is. A run is therefore judged by its best round, the round with
    the lowest mean over all clients. This makes one choice per run instead of one per client.
    docs/results/forecasting.md shows the effect. Because clients may be missing in early rounds, a
    run is never judged better than the models that its clients end with.

    kept_errors: the validation errors of the models that its clients end with, at least one.
    """
    field = metrics.validation.round.name
    return judged(kept_errors, (line.get(field) for line in read_rounds(folder)))


def judged(kept_errors: Sequence[float], rounds: Iterable[float | None]) -> float:
    """Return the lowest mean error of any round, but no less than the kept models' mean error.

    rounds: the mean error of each round, None for a round without evaluation.
    """
    means = [mean for mean in rounds if mean is not None and isfinite(mean)]
    return max(fmean(kept_errors), min(means, default=-inf))


@dataclass(frozen=True)
class Candidate:
    """A group of runs that shared something, and its comparison with the best local models.

    label: the group's name in the verdict. title: the question's title. errors, rival: the clients'
    errors in these runs and with their best local models, means over the seeds. gain: the
    comparison of errors and rival. constant: the number of clients that these three leave out,
    because their values hardly ever change. alone: the groups without sharing, by label.
    model_ran_alone: whether one of the groups without sharing ran the same model. missing: the
    task's simplest methods that did not run without sharing. known_columns: the columns known
    in advance, which the local models have too.
    """

    label: str
    title: str
    group: Group
    errors: Mapping[str, Errors]
    rival: Mapping[str, Errors]
    gain: Gain
    constant: int
    alone: Mapping[str, Group]
    model_ran_alone: bool
    missing: Sequence[str]
    known_columns: KnownColumns

    def promise(self, metrics: TaskMetrics) -> tuple[int, float, int, str]:
        """Return the sort key for choosing a candidate. The smallest key wins.

        It holds the number of clients without an error, then the validation error of the best
        round, averaged over clients and seeds. If both are equal, the candidate with the fewest
        settings that differ from their defaults wins.
        """
        errors = []
        for run in self.group.runs:
            validation = [client.validation for client in client_errors(run, metrics).values()]
            errors.append(validation_error(run.folder, validation, metrics) if validation else inf)
        defaults, settings = defaults_of(self.group.method), known_settings(self.group.runs[0])
        changed = sum(settings.get(key) != value for key, value in defaults.items())
        return len(self.rival.keys() - self.errors), fmean(errors), changed, self.label

    @property
    def compared(self) -> list[str]:
        """The clients with an error on both sides."""
        return sorted(self.errors.keys() & self.rival.keys())

    @property
    def finding(self) -> Finding:
        """What these runs show.

        If the same model never ran without sharing, a gain may come from the model. It is then open
        whether federated learning pays.
        """
        finding = self.gain.finding
        if finding is Finding.PAYS and not self.model_ran_alone:
            return Finding.OPEN
        return finding


def taking_part(groups: Sequence[Group]) -> list[str]:
    """Return a verdict for each question that has runs with and without sharing."""
    verdicts = []
    for question in questions(groups):
        chosen = chosen_to_share(question)
        sentences = brought_by_columns(question)
        sentences += totals_verdict(question) if chosen is None else verdict(chosen)
        if sentences:
            verdicts.append(" ".join([*sentences, *provisos_of(question.groups)]))
    return verdicts


def provisos_of(groups: Iterable[Group]) -> list[str]:
    """Return the sentences that limit the verdict, as the trials of these runs wrote them."""
    return without_repeats(run.provisos for group in groups for run in group.runs)


def chosen_to_share(question: Question) -> Candidate | None:
    """Return the sharing group with the lowest validation error.

    Return None if there are no runs with sharing or none without, if the errors of single clients
    are unknown, or if several groups share and none of them has a validation error.
    """
    metrics = question.metrics
    candidates = []
    for groups in _by_columns(question.groups).values():
        members = dict(zip(labels(groups), groups, strict=True))
        alone = {label: group for label, group in members.items() if group.is_alone}
        sharing = {label: group for label, group in members.items() if label not in alone}
        best = Rivals([*alone.values()], metrics)
        candidates += [
            _candidate(label, group, alone, best, question) for label, group in sharing.items()
        ]
    candidates = [candidate for candidate in candidates if candidate.rival and candidate.errors]
    if not candidates:
        return None
    chosen = min(candidates, key=lambda candidate: candidate.promise(metrics))
    judgeable = len(candidates) == 1 or isfinite(chosen.promise(metrics)[1])
    return chosen if judgeable else None


def _by_columns(groups: Sequence[Group]) -> dict[KnownColumns, list[Group]]:
    """Return the groups, by the columns known in advance that they use."""
    by_columns: dict[KnownColumns, list[Group]] = defaultdict(list)
    for group in groups:
        by_columns[group.known_columns].append(group)
    return by_columns


def brought_by_columns(question: Question) -> list[str]:
    """Say what clients that share nothing gain from columns known in advance."""
    by_columns = _by_columns([group for group in question.groups if group.is_alone])
    metrics = question.metrics
    without = Rivals(by_columns.pop(KnownColumns(), []), metrics, any_columns=True)
    sentences = []
    for columns, groups in by_columns.items():
        runs, best = groups[0].runs, Rivals(groups, metrics)
        errors = [best.best(run) for run in runs]
        rivals = [without.best(run) for run in runs]
        constant = _constant(merged(errors), metrics) | _constant(merged(rivals), metrics)
        gain = gain_between(errors, rivals, constant)
        if gain.ratios:
            sentences.append(_of_columns(columns.words, gain, metrics))
    return sentences


def _of_columns(words: str, gain: Gain, metrics: TaskMetrics) -> str:
    lead = {
        Finding.PAYS: f"Local models gain from {words}",
        Finding.HARMS: f"Local models are worse with {words}",
        Finding.NO_DIFFERENCE: f"Local models gain nothing from {words}",
        Finding.OPEN: f"Whether local models gain from {words} is open, because {gain.why_open}",
    }[gain.finding]
    return (
        f"{lead}: the test {metrics.error} of the median client's best local model is "
        f"{compared_text(gain.ratio)} that without ({_basis(gain)})."
    )


def _basis(gain: Gain) -> str:
    """Return in words the interval of a gain, and what was compared."""
    if gain.interval is None:
        return gain.basis
    return f"{LEVEL}% CI {interval_text(gain.interval, gain.ratio)}, {gain.basis}"


def _candidate(
    label: str, group: Group, alone: Mapping[str, Group], best: Rivals, question: Question
) -> Candidate:
    metrics = question.metrics
    errors = [client_errors(run, metrics) for run in group.runs]
    rivals = [best.best(run) for run in group.runs]
    constant = _constant(merged(errors), metrics) | _constant(merged(rivals), metrics)
    methods = {member.method for member in alone.values() if _shares_nothing(member.runs[0])}
    has_alone = f"{group.method}.sharing" in known_settings(group.runs[0])
    columns = group.known_columns
    return Candidate(
        f"{label} and {columns.words}" if columns else label,
        question.title,
        group,
        {name: errors for name, errors in merged(errors).items() if name not in constant},
        {name: errors for name, errors in merged(rivals).items() if name not in constant},
        gain_between(errors, rivals, constant),
        len(constant),
        alone,
        group.method in methods or (not has_alone and "solo" in methods),
        [name for name in task_record(group.task).simplest if name not in methods and not columns],
        columns,
    )


def _shares_nothing(run: Run) -> bool:
    """Return whether the run's method was set to share nothing, or has no setting for sharing."""
    return bool(known_settings(run).get(f"{run.summary['method']}.sharing", "none") == "none")


def _constant(errors: Mapping[str, Errors], metrics: TaskMetrics) -> set[str]:
    """Return the clients whose values hardly change, so that a figure would be divided by 0."""
    quotients = [n for n, figure in enumerate(metrics.verdict.values()) if figure.over]
    return {
        client
        for client, of_client in errors.items()
        if any(not isfinite(of_client.more[number]) for number in quotients)
    }


def verdict(chosen: Candidate) -> list[str]:
    """Say whether federated learning pays, how sure that is, and what contradicts it.

    The first sentence states the finding, and the others state what it is based on.
    """
    metrics = report_for(chosen.group.task).metrics
    gain, title, label = chosen.gain, chosen.title, chosen.label
    lead = {
        Finding.PAYS: f"Federated learning pays for {title}",
        Finding.HARMS: f"Federated learning harms the clients of {title}",
        Finding.NO_DIFFERENCE: f"Federated learning makes no difference for {title}",
        Finding.OPEN: f"Whether federated learning pays is open for {title}",
    }[chosen.finding]
    if chosen.finding is Finding.OPEN:
        lead += f", because {_why_open(chosen)}"
    with_columns = " with the same columns" if chosen.known_columns else ""
    of_median = (
        f"median client's test {metrics.error} is {compared_text(gain.ratio)} that of its best "
        f"local model{with_columns} ({_basis(gain)})."
    )
    medians = _medians(chosen, metrics)
    if metrics.is_accuracy:
        sentences = [f"{lead}: with {label}, {_right(chosen)}.", f"The {of_median}"]
    else:
        sentences = [f"{lead}: with {label} the {of_median}", _client_counts(gain)]
    return [
        *sentences,
        *_not_converged(chosen),
        *_in_units(medians),
        *_against(chosen, metrics, medians),
        *_baseline(chosen),
    ]


def _why_open(chosen: Candidate) -> str:
    if chosen.gain.finding is Finding.PAYS:
        return f"the model of {chosen.label} did not run without sharing"
    return chosen.gain.why_open


def _right(chosen: Candidate) -> str:
    """State the mean accuracy, federated and local, and how many clients gain and lose."""
    federated, local = _mean_errors_of_both(chosen)
    gain = chosen.gain
    level = len(gain.ratios) - gain.better - gain.worse
    verbs = {("gains", "gain"): gain.better, ("loses", "lose"): gain.worse}
    verbs["stays level", "stay level"] = level
    sides = [f"{n} {forms[0 if n == 1 else 1]}" for forms, n in verbs.items() if n]
    clients = len(chosen.compared)
    return (
        f"{1 - federated:.1%} of the answers are right instead of {1 - local:.1%}, the mean over "
        f"{clients} {'client' if clients == 1 else 'clients'}, of which {enumerated(sides)}"
    )


def _client_counts(gain: Gain) -> str:
    """Say for how many clients the error is lower, higher and equal."""
    clients = len(gain.ratios)
    counts = [f"{gain.better} of {clients} clients have a lower error"]
    equal = clients - gain.better - gain.worse
    counts += [f"{number} {kind}" for number, kind in (
        (gain.worse, "a higher one"), (equal, "an equal one"),
    ) if number]  # fmt: skip
    return f"{', '.join(counts)}."


def _baseline(chosen: Candidate) -> list[str]:
    """Name the local models that were compared, those that were not, and any clients left out."""
    names = sorted(chosen.alone)
    best = names[0] if len(names) == 1 else f"the best of {enumerated(names)} by validation error"
    lines = [f"Baseline: each client's best local model, {best}."]
    if chosen.missing:
        lines.append(f"Not compared: {', '.join(chosen.missing)}.")
    if chosen.constant:
        clients = "client" if chosen.constant == 1 else "clients"
        lines.append(f"{chosen.constant} {clients} with values that hardly ever change left out.")
    return lines


def _not_converged(chosen: Candidate) -> list[str]:
    """Name the compared groups that had not converged, so more rounds may lower their errors."""
    compared = {chosen.label: chosen.group, **chosen.alone}
    names = [name for name, group in compared.items() if group.had_not_converged]
    if not names:
        return []
    return [f"{enumerated(names)} had not converged, so more rounds may change this."]


def _in_units(medians: Sequence[tuple[str, float, float]]) -> list[str]:
    """State the medians of the further figures over the clients, federated and local."""
    parts = [
        f"{name} {together:.3g} instead of {alone:.3g}"
        for name, together, alone in medians
        if isfinite(together) and isfinite(alone)
    ]
    return [f"Medians over the clients: {', '.join(parts)}."] if parts else []


def _against(
    chosen: Candidate, metrics: TaskMetrics, medians: Sequence[tuple[str, float, float]]
) -> list[str]:
    """Name the figures that contradict the finding, unless the finding is that nothing differs."""
    if chosen.finding is Finding.NO_DIFFERENCE:
        return []
    gains = chosen.gain.ratio < 1
    figures = [(f"the median {name}", together, alone) for name, together, alone in medians]
    if chosen.compared:
        figures.insert(0, (f"the mean {metrics.error}", *_mean_errors_of_both(chosen)))
    opposed = [
        f"{name} ({together:.3g}, local {alone:.3g})"
        for name, together, alone in figures
        if (together > alone * _TELLING if gains else together * _TELLING < alone)
    ]
    if not opposed:
        return []
    better = "the best local model" if gains else chosen.label
    return [f"By {' and '.join(opposed)} {better} is better."]


def _mean_errors_of_both(chosen: Candidate) -> tuple[float, float]:
    federated = fmean(chosen.errors[client].test for client in chosen.compared)
    return federated, fmean(chosen.rival[client].test for client in chosen.compared)


def _medians(chosen: Candidate, metrics: TaskMetrics) -> list[tuple[str, float, float]]:
    """Return each further figure's name, and its median over the clients, federated and local."""
    return [
        (
            name,
            median(chosen.errors[client].more[number] for client in chosen.compared),
            median(chosen.rival[client].more[number] for client in chosen.compared),
        )
        for number, name in enumerate(metrics.verdict)
        if chosen.compared
    ]


def totals_verdict(question: Question) -> list[str]:
    """Return sentences that compare only means over clients, because single errors are withheld.

    Return [] if there are no runs with sharing or none without, or if a run that shared something
    has errors of single clients.
    """
    metrics = question.metrics
    kinds: dict[bool, list[tuple[float, str, float, KnownColumns]]] = {True: [], False: []}
    for label, group in zip(question.labels, question.groups, strict=True):
        alone = group.is_alone
        if not alone and mean_errors(group, metrics):
            return []
        mean = group.spread(metrics.kept.summary[0].name).mean
        if mean is not None:
            error = 1 - mean if metrics.is_accuracy else mean
            kinds[alone].append(
                (_lowest_validation(group, metrics), label, error, group.known_columns)
            )
    with_rival = {columns for *_, columns in kinds[True]}
    sharing = [kind for kind in kinds[False] if kind[-1] in with_rival]
    if not sharing:
        return []
    _, label, error, columns = min(sharing, key=lambda kind: kind[:2])
    rivals = [kind for kind in kinds[True] if kind[-1] == columns]
    _, rival, alone_error, _ = min(rivals, key=lambda kind: kind[:2])
    compared = compared_text(error / alone_error if alone_error else inf)
    return [
        f"With {label} the mean test {metrics.kept_error} over all clients of {question.title} is "
        f"{error:.3g}, {compared} that of {rival} ({alone_error:.3g}).",
        "The errors of single clients were withheld, so whether federated learning pays is open: "
        "these totals show neither how many clients gain nor whether the difference is chance.",
    ]


def _lowest_validation(group: Group, metrics: TaskMetrics) -> float:
    """Return the lowest mean validation error of any round, averaged over the seeds."""
    field = metrics.validation.round.name
    rounds = ([line.get(field) for line in run.rounds] for run in group.runs)
    return fmean(min((e for e in errors if e is not None), default=inf) for errors in rounds)


def compared_text(ratio: float) -> str:
    """Return words such as "5.1% lower than", to be followed by "that of" a rival."""
    if ratio > _MOST_TIMES:
        return "far higher than"
    if ratio >= _TIMES:
        return f"{ratio:.1f} times"
    percent = f"{abs(ratio - 1):.1%}"
    if percent == "0.0%":
        return "the same as"
    return f"{percent} {'lower' if ratio < 1 else 'higher'} than"


def interval_text(interval: tuple[float, float], ratio: float) -> str:
    """Return the interval of a ratio in percent of the rival's error.

    The text says "lower" or "higher" where the ratio itself does not make this clear.
    """
    low, high = interval
    if high > _MOST_TIMES:
        return f"at least {low:.2g} times"
    if high >= _TIMES:
        return f"{low:.1f} to {high:.1f} times"
    smallest, largest = (round(100 * (1 - end), 1) for end in (high, low))
    if smallest == largest == 0:
        return "within 0.05%"
    if smallest < 0 < largest:
        return f"{largest:.1f}% lower to {-smallest:.1f}% higher"
    lower = largest > 0
    near, far = (smallest, largest) if lower else (-largest, -smallest)
    clear = abs(1 - ratio) >= 0.0005 and (ratio < 1) == lower
    return f"{abs(near):.1f}–{far:.1f}%{'' if clear else ' lower' if lower else ' higher'}"
