"""Read the artefacts of finished runs, and group the runs that differ only in their seed."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import isfinite, sqrt
from pathlib import Path
from statistics import fmean, stdev

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.tasks import FIRST_TASK, TASKS
from fedproto_app.core.version import __version__
from fedproto_app.core.whole_file import write_whole
from fedproto_app.report.run_files import (
    CsvTable,
    Record,
    parsed,
    read_record,
    read_records,
    read_table,
)
from fedproto_app.report.task_report import report_for
from fedproto_app.settings import defaults_of, without_other_methods
from fedproto_app.settings.choice import known_in
from fedproto_app.settings.reading import flat
from fedproto_app.tasks.metrics import badness

# Comparisons replace encoder.path by this, because only whether an encoder was given matters.
GIVEN_ENCODER = "given"
DATA_NOTES = "data-notes.txt"  # what was done to the data, a line each
# Two files in a trial's folder: a line for each warning about the data, and a line for each
# sentence that limits the trial's verdict because of these warnings.
DATA_WARNINGS = "data-warnings.txt"
PROVISOS = "provisos.txt"

_OF_COLUMNS = ("data.known", "data.covariates", "data.holidays")

NOT_CONVERGED = " †"  # added to the names of runs that had not converged
_PART = 5  # the last fifth of the evaluations is compared with the fifth before
_FALLING = 0.01  # a smaller relative fall of the validation error is ignored


def has_converged(errors: Iterable[float | None]) -> bool | None:
    """Return whether the validation error had levelled off by the end of a run.

    It had not if the lowest error lies in the last fifth of the evaluations, and the mean over this
    fifth is more than 1% below the mean over the fifth before. Single evaluations are too noisy to
    be compared.

    errors: the mean error over the clients after each round, None for a round without evaluation.
    Returns None if there are fewer than two evaluations.
    """
    values = [error for error in errors if error is not None and isfinite(error)]
    if len(values) < 2:
        return None
    size = max(1, len(values) // _PART)
    earlier, before, last = values[:-size], values[-2 * size : -size], values[-size:]
    return min(earlier) <= min(last) or fmean(last) >= fmean(before) * (1 - _FALLING)


@dataclass(frozen=True)
class Run:
    """One finished run.

    summary: the fields of ``summary.json``, and figures that a comparison adds. settings: the run's
    settings, with dotted keys.
    """

    folder: Path
    summary: Record
    settings: Record

    @property
    def task(self) -> str:
        return str(self.summary.get("task", FIRST_TASK))

    @property
    def method(self) -> str:
        """The method as the settings name it: "package.module:NAME" for a user's method."""
        return str(self.settings.get("method", self.summary["method"]))

    @property
    def had_not_converged(self) -> bool:
        """Whether the validation error still fell when the run ended. See `has_converged`."""
        return self.summary.get("converged") is False

    @property
    def known_columns(self) -> KnownColumns:
        """The columns that the run knows in advance."""
        settings = known_settings(self)
        return KnownColumns(
            tuple(column.name for column in known_in(settings.get("data.known", ""))),
            settings.get("data.covariates", ""),
            settings.get("data.holidays", ""),
            settings.get("data.calendar") == "year",
        )

    @property
    def is_alone(self) -> bool:
        """Whether the run shared nothing. False if its summary does not say."""
        return [self.summary.get(f"parameters_{way}") for way in ("up", "down")] == [0, 0]

    @property
    def repetition(self) -> tuple[int, str]:
        """The seed and the backtest window. Runs that differ only in these are in one group."""
        return self.summary["seed"], str(self.settings.get("data.backtest", ""))

    @cached_property
    def clients(self) -> CsvTable:
        """The run's `read_clients`."""
        return read_clients(self.folder)

    @property
    def notes(self) -> list[str]:
        """What was done to the data, a line each. Deployed sites keep their notes to themselves."""
        return _lines(self.folder / DATA_NOTES)

    @property
    def warnings(self) -> list[str]:
        """Doubts about the data of the trial that the run belongs to, a line each."""
        return _lines(self.folder.parent / DATA_WARNINGS)

    @property
    def provisos(self) -> list[str]:
        """Sentences that limit the verdict of the trial that the run belongs to."""
        return _lines(self.folder.parent / PROVISOS)

    @cached_property
    def rounds(self) -> list[Record]:
        """The run's `read_rounds`."""
        return read_rounds(self.folder)


def without_repeats(lists: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of all lists in their order, but repeated lines only once."""
    return list(dict.fromkeys(chain.from_iterable(lists)))


def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines() if file.exists() else []


def write_lines(file: Path, lines: Iterable[str]) -> None:
    """Write the lines into the file, completely or not at all.

    They may hold lone surrogates, as clients' names may.
    """
    write_whole(file, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))


@dataclass(frozen=True)
class KnownColumns:
    """The columns that a run knows in advance.

    A fair rival knows the same columns. Otherwise a gain that comes from the columns would look
    like a gain from sharing.
    """

    names: tuple[str, ...] = ()
    table: str = ""
    holidays: str = ""
    year: bool = False

    def __bool__(self) -> bool:
        return self != KnownColumns()

    @property
    def words(self) -> str:
        """The columns in words, for the middle of a sentence."""
        columns = f"the column{'s' * (len(self.names) > 1)} {enumerated(self.names)}"
        parts = {
            columns: self.names,
            f"the columns of {Path(self.table).name}": self.table,
            f"the holidays of {self.holidays}": self.holidays,
            "the time of the year": self.year,
        }
        return enumerated([words for words, is_there in parts.items() if is_there])


def enumerated(names: Sequence[str]) -> str:
    """Return the names as they are listed in a sentence: a, b and c."""
    *first, last = names or [""]
    return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True)
class Spread:
    """Mean, sample standard deviation and standard error of the mean over seeds.

    They are None without enough values.
    """

    mean: float | None
    std: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class Group:
    """Runs of one task, dataset, method and settings, one for each seed and backtest window."""

    runs: tuple[Run, ...]

    @property
    def task(self) -> str:
        return self.runs[0].task

    @property
    def dataset(self) -> str:
        return str(self.runs[0].summary["dataset"])

    @property
    def method(self) -> str:
        return str(self.runs[0].summary["method"])

    @property
    def title(self) -> str:
        """The method's name for readers, such as "Kindred (local)".

        If a method can be used both ways, its name says whether it was local or federated.
        """
        title = str(self.runs[0].summary.get("title", self.method))
        if f"{self.method}.sharing" not in known_settings(self.runs[0]):
            return title
        return f"{title} ({'local' if self.is_alone else 'federated'})"

    @property
    def known_columns(self) -> KnownColumns:
        """The columns that its runs know in advance."""
        return self.runs[0].known_columns

    @property
    def is_alone(self) -> bool:
        """Whether every run of the group shared nothing."""
        return all(run.is_alone for run in self.runs)

    @property
    def had_not_converged(self) -> bool:
        """Whether any run of the group had not converged."""
        return any(run.had_not_converged for run in self.runs)

    def spread(self, key: str) -> Spread:
        """Return the spread of a figure of ``summary.json`` over the runs, in its units."""
        values = [run.summary[key] for run in self.runs if run.summary.get(key) is not None]
        if len(values) < 2:
            return Spread(fmean(values) if values else None)
        std = stdev(values)
        return Spread(fmean(values), std, std / sqrt(len(values)))


def read_run(folder: Path) -> Run:
    """Read a finished run. If a file cannot be used, raise `FedProtoError` that names the file."""
    settings = parsed(folder / "settings.toml", tomllib.loads)
    return Run(folder, read_record(folder / "summary.json"), flat(settings))


def read_task(folder: Path) -> str:
    """Return the task of a run, which need not be finished, from its ``settings.toml``."""
    if not (folder / "settings.toml").exists():
        return FIRST_TASK
    return str(parsed(folder / "settings.toml", tomllib.loads).get("task", FIRST_TASK))


def read_rounds(folder: Path) -> list[Record]:
    """Return the records of ``rounds.jsonl``, one per round, or [] if no round has ended."""
    file = folder / "rounds.jsonl"
    return read_records(file) if file.exists() else []


def read_clients(folder: Path) -> CsvTable:
    """Return ``clients.csv``, a row per client."""
    return read_table(folder / "clients.csv", ("client", "node", "group"))


def find_runs(places: Iterable[Path]) -> tuple[list[Run], list[Path]]:
    """Return the finished runs in these folders, and the folders without a finished run.

    A run may be a place itself, or lie directly below a place. Raises `FedProtoError` if a place
    does not exist, or if there is no finished run at all.
    """
    finished: dict[Path, None] = {}
    without: dict[Path, None] = {}
    for place in places:
        if not place.is_dir():
            raise FedProtoError(f"{place}: no such folder")
        inside = sorted(path.parent for path in place.glob("*/summary.json"))
        if (place / "summary.json").exists():
            finished[place.resolve()] = None
        elif inside:
            finished.update((folder.resolve(), None) for folder in inside)
            unfinished = {path.parent for path in place.glob("*/settings.toml")} - set(inside)
            without.update((folder, None) for folder in sorted(unfinished))
        else:
            without[place] = None
    if not finished:
        raise FedProtoError(f"no finished run (summary.json) in {', '.join(map(str, without))}")
    return [read_run(folder) for folder in finished], list(without)


def group_runs(runs: Iterable[Run]) -> tuple[list[Group], list[Run]]:
    """Return the groups, sorted by `ranked`, and the runs that another run repeats.

    Two runs with the same settings and seed are one experiment. Only the run whose folder name
    sorts last is used: if both were, the spread over seeds would look smaller than it is. A run
    without a backtest is never in one group with the windows of a backtest.
    """
    by_settings: dict[tuple[object, ...], dict[tuple[int, str], Run]] = defaultdict(dict)
    repeated = []
    for run in sorted(runs, key=lambda run: run.folder.name):
        summary = run.summary
        alike = by_settings[
            summary["dataset"],
            summary["method"],
            summary["settings_digest"],
            windows_of(run.settings),
        ]
        if run.repetition in alike:
            repeated.append(alike[run.repetition])
        alike[run.repetition] = run
    groups = [
        Group(tuple(run for _, run in sorted(alike.items()))) for alike in by_settings.values()
    ]
    return ranked(groups), repeated


def ranked(groups: Iterable[Group], order: str = "") -> list[Group]:
    """Return the groups sorted by task and dataset, and within these from best to worst.

    order: the name of one of the task's orders, or "" for its first. If the task lacks this order,
    the groups are sorted by the headline figure. Groups that lack the order's figure come last,
    sorted by the headline figure.
    """

    return sorted(groups, key=lambda group: _place(group, order))


def labels(groups: Sequence[Group]) -> list[str]:
    """Return a name for each group: its title, and the settings that distinguish it.

    Only settings that differ between groups of the same dataset and title are named, for example
    ``FUELS inter-weight=1.0``. The keys of the data settings and of the method's own settings are
    given without the name of their section.
    """
    alike: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        alike[group.dataset, group.title].append(group)
    names = []
    for group in groups:
        settings = [_comparable(member) for member in alike[group.dataset, group.title]]
        keys = sorted({key for table in settings for key in table})
        differing = [key for key in keys if len({table.get(key) for table in settings}) > 1]
        group_settings = _comparable(group)
        traits = [
            f"{_short(key, group.method)}={group_settings.get(key)}"
            for key in differing
            if not _is_idle(key, group)
        ]
        names.append(" ".join([group.title, *traits]))
    return names


def marked_labels(groups: Sequence[Group]) -> list[str]:
    """Return the `labels` for readers. Groups that had not converged are marked."""
    return [
        label + NOT_CONVERGED * group.had_not_converged
        for label, group in zip(labels(groups), groups, strict=True)
    ]


def windows_of(settings: Record) -> str:
    """Return the number of windows of a backtest as text, or "" without a backtest."""
    return str(settings.get("data.backtest", "")).partition("/")[2]


def _is_idle(key: str, group: Group) -> bool:
    """Return whether the setting has no effect because the group knows no columns in advance."""
    if key.startswith("response."):
        return not group.known_columns
    return key in _OF_COLUMNS and not known_settings(group.runs[0]).get(key)


def _short(key: str, method: str) -> str:
    """Return the key without its section, if that is the method's own or one of the data's."""
    if key.startswith("data."):
        return key.rpartition(".")[2]
    return key.removeprefix(f"{method}.").removeprefix("own.")


def _place(group: Group, order: str) -> tuple[int, str, float, float, str]:
    metrics = report_for(group.task).metrics
    chosen = metrics.orders.get(order or next(iter(metrics.orders), ""))
    first = 0.0
    if chosen is not None:
        first = badness(group.spread(chosen.name).mean, chosen.larger_is_better)
    second = metrics.badness(group.spread(metrics.headline.summary[0].name).mean)
    return list(TASKS).index(group.task), group.dataset, first, second, group.method


def known_settings(run: Run) -> Record:
    """Return the run's settings, with defaults for settings that are newer than the run.

    A run of this version already has all settings. Its method need not be imported for them, which
    would take seconds.
    """
    if run.summary.get("versions", {}).get("fedproto-app") == __version__:
        return dict(run.settings)
    return {**defaults_of(run.method), **without_other_methods(run.settings, run.method)}


def _comparable(group: Group) -> Record:
    """Return the settings that distinguish groups."""
    table = known_settings(group.runs[0])
    compared = {k: v for k, v in table.items() if k != "seed" and not k.startswith("output.")}
    compared["data.backtest"] = windows_of(compared)
    if compared.get("encoder.path"):
        compared["encoder.path"] = GIVEN_ENCODER
    return compared
