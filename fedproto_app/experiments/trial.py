"""Say whether federated learning pays for the clients in a file (``fedproto try``).

A trial recognises the file's format and chooses the settings of a forecast from the file's clock.
It then compares simple methods, closed forms of each client alone, and the federated closed form.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import isfinite, nan
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.tasks import TaskRecord
from fedproto_app.core.whole_file import write_whole
from fedproto_app.data.clock import DAY
from fedproto_app.data.period import period_of, step_of, weeks_repeat
from fedproto_app.experiments.run_settings import NODES, require_writable
from fedproto_app.report.check.findings import listed
from fedproto_app.report.comparison import client_errors, merged, questions
from fedproto_app.report.gain import is_lower
from fedproto_app.report.page import REPORT
from fedproto_app.report.progress import clock_text
from fedproto_app.report.runs import (
    DATA_WARNINGS,
    PROVISOS,
    Run,
    group_runs,
    read_clients,
    read_rounds,
    read_run,
    write_lines,
)
from fedproto_app.report.taking_part import Candidate, chosen_to_share, taking_part
from fedproto_app.report.task_report import report_for
from fedproto_app.settings import DataSettings, settings_from
from fedproto_app.settings.choice import known_in, text_of
from fedproto_app.settings.data import PERIODS_FOR_WEEKS

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedproto_app.data.format import Reading
    from fedproto_app.data.series import ClientSeries

FORECAST = "forecast.csv"
TOGETHER, TOGETHER_KNOWN = "kindred", "kindred-known"  # the federated rows, the second with columns
QUICK_HISTORY = 28  # periods that --quick learns from
FARTHEST = 288  # most steps ahead by default, since a sample has values for each of them
_MOST_NEWCOMERS = 3  # the facts name at most this many
_CHOSEN = {  # settings that a trial chooses, and from what
    "data.path": "FILE",
    "data.period": "--period",
    "data.horizon": "--horizon",
    "data.backtest": "--windows",
    "output.dir": "--folder",
    "output.name": "each row",
    "method": "each row",
    "kindred.sharing": "each row",
    "analytic.sharing": "each row",
    "response.sharing": "each row",
}
_OF_COLUMNS = ("data.known", "data.covariates", "data.holidays")  # settings of some rows only
_LEAST_HELD = 0.9  # warn if 95% intervals hold a smaller share of the test values
_REPEATS = (
    "But some clients have the same values as others (see the warnings). Their gain from sharing "
    "is not real."
)
_DRIFT = (
    "But for at least half of the clients, the test part differs from the train part in level or "
    "spread (see the warnings). Later data may give another answer."
)

Changes = Mapping[str, object]


@dataclass(frozen=True)
class Row:
    """A row of a trial's table. title: its name for people. cost: the relative time of its run."""

    title: str
    changes: Changes
    cost: float = 1.0


SERIES_ROWS = {
    "naive": Row("last value", {"method": "naive"}),
    "seasonal-naive": Row("a period before", {"method": "seasonal-naive"}),
    "mean": Row("mean of the past", {"method": "mean"}),
    "analytic-alone": Row(
        "linear regression (local)", {"method": "analytic", "analytic.sharing": "none"}, 3
    ),
    "kindred-alone": Row("Kindred (local)", {"method": "kindred", "kindred.sharing": "none"}, 2),
    "kindred": Row("Kindred (federated)", {"method": "kindred"}, 3),
}
# The same rows with columns known in advance. A client that does not share also fits its own
# response to them, so that the local and the federated rows have the same columns.
KNOWN_ROWS = {
    "analytic-alone-known": Row(
        "linear regression with columns (local)",
        {"method": "analytic", "analytic.sharing": "none", "response.sharing": "none"},
        4,
    ),
    "kindred-alone-known": Row(
        "Kindred with columns (local)",
        {"method": "kindred", "kindred.sharing": "none", "response.sharing": "none"},
        3,
    ),
    TOGETHER_KNOWN: Row("Kindred with columns (federated)", {"method": "kindred"}, 5),
}
CLASS_ROWS = {
    "naive": Row("most frequent class", {"method": "naive"}),
    "analytic-alone": Row(
        "closed form (local)", {"method": "analytic", "analytic.sharing": "none"}, 2
    ),
    "analytic": Row("closed form (federated)", {"method": "analytic"}, 3),
    "analytic-clustered": Row(
        "closed form (federated, clustered)",
        {"method": "analytic", "analytic.sharing": "clustered"},
        3,
    ),
}


@dataclass(frozen=True)
class Wishes:
    """What a person sets. None or "" leaves the choice to the trial.

    horizon, period: numbers of steps. clients_from: the column of a table that names the clients.
    target: the column to forecast. clients: the number of simulated clients, for images and
    sequences that name none. windows: the number of windows of a rolling-origin backtest. quick:
    use fewer rows and less history. changes: further settings, with dotted keys.
    """

    horizon: int | None = None
    period: int | None = None
    clients_from: str = ""
    clients: int | None = None
    windows: int = 1
    quick: bool = False
    changes: Changes = field(default_factory=dict)
    target: str = ""


@dataclass(frozen=True)
class Plan:
    """The runs of a trial.

    settings: the settings that all runs share. facts: what was recognised, for people. windows:
    the number of windows of a backtest. Every row has a run in each. warnings: which columns are
    not read and why, and which values may be misleading. target: the column that is forecast, "" if
    every column is a client. together: the federated row, with columns known in advance if there
    are any. forecast: the row that writes the next values, "" if none does. provisos: sentences
    that limit the verdict, because of warnings. notes: what was done to the data.
    """

    settings: Changes
    rows: Mapping[str, Row]
    facts: Sequence[str]
    together: str
    windows: int = 1
    warnings: Sequence[str] = ()
    target: str = ""
    forecast: str = ""
    provisos: Sequence[str] = ()
    notes: Sequence[str] = ()

    def runs(self, row: str) -> dict[str, Changes]:
        """Return the settings of a row's runs by their folders' names, the oldest window first."""
        settings = {**self.settings, **self.rows[row].changes}
        if self.windows == 1:
            return {row: settings}
        return {
            f"{row}-{number}of{self.windows}": {
                **settings,
                "data.backtest": f"{number}/{self.windows}",
            }
            for number in range(1, self.windows + 1)
        }


@dataclass(frozen=True)
class Score:
    """The score of a row.

    figures: by name, the median over clients of each figure, but the mean of a share of right
    answers. best_for: for a federated row, how many clients have a lower error with it than with
    their best local model. For a local row, for how many other clients its model is the best.
    """

    title: str
    figures: Mapping[str, float]
    best_for: int


@dataclass(frozen=True)
class Trial:
    """A finished trial: its answer, and its folder with a run's folder for each row and window.

    verdict: whether federated learning pays, in words. scores: the best row first. forecast: the
    file with the next values of all series, None for other data. warnings: the plan's, and one if
    intervals held too few values.
    """

    folder: Path
    verdict: str
    scores: list[Score]
    report: Path
    forecast: Path | None
    warnings: Sequence[str] = ()

    @property
    def table(self) -> DataFrame:
        """The scores as a table, with a row for each."""
        import pandas as pd

        rows = {score.title: {**score.figures, "best for": score.best_for} for score in self.scores}
        return pd.DataFrame.from_dict(rows, orient="index")

    def __repr__(self) -> str:
        table = self.table.to_string(float_format="%.4g")
        warnings = "".join(f"warning: {line}\n" for line in self.warnings)
        return f"{warnings}{self.verdict}\n\n{table}\n\nreport: {self.report}"


def plan_of(path: Path, wishes: Wishes) -> Plan:
    """Recognise the file and choose the settings of a trial.

    Raises `DataError` for a file that cannot be read or that names no clients, and `SettingsError`
    if a wish does not suit the data.
    """
    from fedproto_app.data.format import Reading
    from fedproto_app.data.recognition import reading_of
    from fedproto_app.tasks.table import record_of_source

    for option, value, least in (
        ("--horizon", wishes.horizon, 1),
        ("--period", wishes.period, 2),
        ("--clients", wishes.clients, 2),
        ("--windows", wishes.windows, 1),
    ):
        if value is not None and value < least:
            raise SettingsError(f"{option} {value}: must be at least {least}")
    for key in wishes.changes.keys() & _CHOSEN.keys():
        raise SettingsError(
            f"{key} = {wishes.changes[key]!r}: fedproto try takes this from {_CHOSEN[key]}"
        )
    answers = dict(wishes.changes)
    answers |= {"data.client-column": wishes.clients_from} if wishes.clients_from else {}
    answers |= {"data.columns": wishes.target} if wishes.target else {}
    source = str(answers.get("data.source", ""))
    reading = Reading(source) if source else reading_of(path, answers)
    if wishes.clients_from and ":" not in source and reading.form != "long":
        raise SettingsError(
            f"--clients-from {wishes.clients_from}: {path} is read as {reading.source}, whose "
            "clients are not in a column"
        )
    table = {**reading.all_settings, **reading.fitting(answers), "data.path": str(path)}
    record = record_of_source(settings_from(table).data)
    if record.forecasts:
        return _plan_of_series(path, table, reading, wishes)
    return _plan_of_classes(path, table, reading, record, wishes)


def try_plan(plan: Plan, folder: Path, console: Console) -> Trial:
    """Make the runs of a plan in a folder, compare them, and write the report and forecasts."""
    make_runs(plan, folder, console)
    return _answer(plan, folder)


def make_runs(plan: Plan, folder: Path, console: Console) -> None:
    """Make the runs of a plan in a folder, and print a line before each.

    If the folder already holds a run, it is kept if it is finished, else resumed.
    """
    from fedproto_app.experiments.simulation import complete_run

    require_writable(folder, _CHOSEN["output.dir"])
    runs = [(row, name, run) for row in plan.rows for name, run in plan.runs(row).items()]
    costs = [plan.rows[row].cost for row, _, _ in runs]
    quiet, started = Console(quiet=True), time.monotonic()
    for number, (row, name, changes) in enumerate(runs):
        spent, done = time.monotonic() - started, sum(costs[:number])
        time_left = f", about {clock_text(spent / done * sum(costs[number:]))} left" if done else ""
        window = f", window {name.rpartition('-')[2]}" if plan.windows > 1 else ""
        console.print(f"{number + 1} of {len(runs)}  {plan.rows[row].title}{window}{time_left}")
        output = {"output.dir": str(folder), "output.name": name, "output.pictures": False}
        complete_run({**changes, **output}, NODES, quiet)


def try_file(
    path: str | Path,
    *,
    horizon: int | None = None,
    period: int | None = None,
    clients_from: str = "",
    clients: int | None = None,
    windows: int = 1,
    quick: bool = False,
    changes: Changes | None = None,
    folder: str | Path | None = None,
    progress: bool = True,
    target: str = "",
) -> Trial:
    """Say whether federated learning pays for the clients in a file, as ``fedproto try`` does.

    horizon, period: numbers of steps. clients_from: the column of a table that names the clients.
    target: the column to forecast. clients: the number of simulated clients to divide images or
    sequences among. windows: the number of windows of a backtest, which retrains the models for
    each. quick: use less history and compare fewer methods. changes: further settings, with dotted
    keys, such as data.source for a function of your own. folder: the folder for the runs, by
    default runs/try-NAME. Stopped runs in it are resumed. Raises `FedProtoError` with the message
    that the command would print.
    """
    file = Path(path)
    console = Console(stderr=True, quiet=not progress, highlight=False)
    wishes = Wishes(horizon, period, clients_from, clients, windows, quick, changes or {}, target)
    plan = plan_of(file, wishes)
    for fact in plan.facts:
        console.print(fact, soft_wrap=True, markup=False)
    return try_plan(plan, Path(folder) if folder else unused_folder(file), console)


def with_period(series: Sequence[ClientSeries], settings: Changes) -> dict[str, object]:
    """Return the settings, with period and calendar from the series' clock if they are not set.

    settings: the settings, with dotted keys.
    """
    period = int(str(settings.get("data.period", period_of(series)[0])))
    calendar = _calendar(series, period)
    return {"data.period": period, "data.calendar": calendar, **settings}


def unused_folder(path: Path) -> Path:
    """Return a folder in runs that does not exist yet, for a trial of this file."""
    name = f"try-{path.name.split('.')[0] or 'data'}"
    numbered = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in count(1))
    return next(folder for folder in numbered if not folder.exists())


def _answer(plan: Plan, folder: Path) -> Trial:
    from fedproto_app.report.page.document import write_report

    runs_of_rows = {row: [read_run(folder / name) for name in plan.runs(row)] for row in plan.rows}
    runs = [run for of_row in runs_of_rows.values() for run in of_row]
    report = folder / REPORT
    forecast, warnings = None, plan.warnings
    if plan.forecast:
        newest = runs_of_rows[plan.forecast][-1].folder
        forecast = _forecast(newest, folder / FORECAST)
        coverage = float(np.nanmean(read_clients(newest)["coverage_95"]))
        if coverage < _LEAST_HELD:
            words = (
                f"the 95% intervals held {coverage:.0%} of the test values, the mean over clients"
            )
            warnings = [*warnings, words]
    warnings = [*warnings, *(f"left out: {line}" for line in left_out(runs))]
    write_lines(folder / DATA_WARNINGS, warnings)
    write_lines(folder / PROVISOS, plan.provisos)
    write_report(runs, report, plan.notes)
    scores = _scores(plan, runs_of_rows)
    without_finding = (
        "The clients' values hardly ever change, so there is nothing to gain."
        if scores
        else "None of the rows has an error for any client."
    )
    verdict = " ".join(taking_part(group_runs(runs)[0])) or without_finding
    if len(names := list(client_errors(runs[-1], report_for(runs[-1].task).metrics))) == 1:
        verdict = f"{names[0]} is the only client, so there is nobody to share with."
    if plan.target:
        verdict = f"Forecasting {plan.target}. {verdict}"
    return Trial(folder, verdict, scores, report, forecast, warnings)


def left_out(runs: Sequence[Run]) -> list[str]:
    """Return a line for each client, or for clients with the same reason, that no run evaluated."""
    from fedproto_app.report.check.findings import refusals

    metrics = report_for(runs[0].task).metrics
    evaluated = {client for run in runs for client in client_errors(run, metrics)}
    reasons = {
        refusal["client"] or f"node {refusal['node']}": refusal["reason"]
        for run in runs
        for line in read_rounds(run.folder)
        for refusal in line["refused"]
    }
    return refusals({name: why for name, why in reasons.items() if name not in evaluated})


def _scores(plan: Plan, runs_of_rows: Mapping[str, Sequence[Run]]) -> list[Score]:
    """Return the rows that have errors, the lowest median error first."""
    runs = [run for of_row in runs_of_rows.values() for run in of_row]
    metrics = report_for(runs[0].task).metrics
    errors = {
        row: merged([client_errors(run, metrics) for run in of_row])
        for row, of_row in runs_of_rows.items()
    }
    errors = {row: of_row for row, of_row in errors.items() if of_row}
    row_of = {run.folder: row for row, of_row in runs_of_rows.items() for run in of_row}

    def best_local(client: str, candidate: Candidate) -> str:
        local = [row_of[group.runs[0].folder] for group in candidate.alone.values()]
        rivals = [row for row in errors if row in local and client in errors[row]]
        return min(rivals, key=lambda row: errors[row][client].validation)

    winners = [
        row_of[candidate.group.runs[0].folder]
        if is_lower(ratio, 1)
        else best_local(client, candidate)
        for question in questions(group_runs(runs)[0])
        if (candidate := chosen_to_share(question)) is not None
        for client, ratio in candidate.gain.ratios.items()
    ]

    def figures(row: str) -> dict[str, float]:
        if metrics.is_accuracy:
            return {"right answers %": 100 * (1 - fmean(e.test for e in errors[row].values()))}
        # A client whose values hardly ever change has no MASE.
        of_clients = {
            title: [e.more[number] for e in errors[row].values() if isfinite(e.more[number])]
            for number, title in enumerate(metrics.verdict)
        }
        return {title: median(values) if values else nan for title, values in of_clients.items()}

    order = sorted(errors, key=lambda row: median(e.test for e in errors[row].values()))
    return [Score(plan.rows[row].title, figures(row), winners.count(row)) for row in order]


def _forecast(run: Path, file: Path) -> Path:
    """Write the next values of all clients that the run can forecast."""
    from fedproto_app.data.known_columns import with_calendar
    from fedproto_app.data.sources import load_histories
    from fedproto_app.serving import forecast, open_run, write_csv

    states = open_run(run)
    data = states[0].settings.data
    histories = [with_calendar(h, data, data.horizon) for h in load_histories(data)]
    forecasts, _ = forecast(states, histories, data.horizon)
    text = io.StringIO()
    write_csv(forecasts, text)
    write_whole(file, text.getvalue().encode())
    return file


def _plan_of_series(path: Path, table: dict[str, object], reading: Reading, wishes: Wishes) -> Plan:
    from fedproto_app.data.series import notes_of
    from fedproto_app.data.sources import load_series
    from fedproto_app.data.windows import shortest_length
    from fedproto_app.report.check.doubts import doubts_about_gain, doubts_about_series
    from fedproto_app.report.check.forecasting import drift_of_most

    if wishes.clients is not None:
        raise SettingsError(f"--clients {wishes.clients}: {path} holds series, one per client")
    column_settings = {key: str(table.pop(key)) for key in _OF_COLUMNS if key in table}
    if table.get("data.calendar") == "year":
        column_settings["data.calendar"] = str(table.pop("data.calendar"))
    series = load_series(settings_from(table).data)
    period, why = (wishes.period, "as you say") if wishes.period else period_of(series)
    table = {"data.calendar": _calendar(series, period), **table, "data.period": period}
    table["data.horizon"] = wishes.horizon or min(period, FARTHEST)
    if wishes.windows > 1:
        table["data.backtest"] = f"1/{wishes.windows}"  # the window with the least data
    if wishes.quick:
        table.setdefault("data.history", QUICK_HISTORY)
    wished = settings_from(table).data
    usable, newcomers = _make_usable(series, table, fixed=wishes.horizon is not None)
    table.pop("data.backtest", None)
    data = settings_from(table).data
    columns, reaches, facts_on_columns = _known_in_advance(series, table, column_settings, reading)
    target = reading.target or next((c.table.values for c in series if c.table), "")
    rows = dict(SERIES_ROWS)
    if columns:
        rows |= {
            name: replace(row, changes={**row.changes, **columns})
            for name, row in KNOWN_ROWS.items()
        }
    if wishes.quick:
        rows = {name: row for name, row in rows.items() if not name.startswith("analytic-alone")}
    lengths = [len(client.values) for client in series]
    clock = step_of(series)
    step = "" if clock is None else f" of {clock.rhythm}" * (not clock.is_of_calendar)
    step += f", {clock.words}" if clock is not None and clock.is_of_calendar else ""
    clients = {
        "wide": "" if target else ", a client in each column",
        "long": f", clients from {next((c.table.clients for c in series if c.table), '')}",
        "folder": ", a client in each file",
    }.get(reading.form, "")
    calendar = {
        "none": "no calendar, as "
        + (
            "you say"
            if "data.calendar" in wishes.changes
            else "there is too little data"
            if period > 1
            else "a period is a step"
        ),
        "phase": "models know the place in the period",
        "week": "models know the time of day and the weekday",
        "year": "models know the time of day, the weekday and the time of the year",
    }[str(table["data.calendar"])]
    facts = [
        f"{path.name}: {len(series)} series of {_span(lengths)} steps{step}, read as "
        f"{reading.source}{f', forecasting {target}' if target else ''}{clients}",
        *(notes := (*reading.notes, *notes_of(series))),
        *facts_on_columns,
        f"period {period} ({why}), forecasts {table['data.horizon']} ahead, {calendar}",
    ]
    if (data.horizon, data.periodic_window) != (wished.horizon, wished.periodic_window):
        facts.append(
            f"data.horizon = {wished.horizon} and data.periodic-window = {wished.periodic_window} "
            f"need {shortest_length(wished)} steps; {data.horizon} and {data.periodic_window} are "
            f"used instead, which need {shortest_length(data)}"
        )
    if usable < len(series):
        facts.append(f"{len(series) - usable} series are too short or empty, and left out")
    facts += [f"newcomer {line}" for line in newcomers[:_MOST_NEWCOMERS]]
    if (more := len(newcomers) - _MOST_NEWCOMERS) > 0:
        facts.append(f"{more} more newcomers train on what they have")
    if wishes.windows > 1:
        facts.append(f"tested in {wishes.windows} windows, with models retrained for each")
    repeating, drift = doubts_about_gain(series), drift_of_most(series, data)
    warnings = (*reading.left_out, *repeating, *doubts_about_series(series, data), *drift)
    together = TOGETHER_KNOWN if columns else TOGETHER
    forecast = together if reaches else TOGETHER
    return Plan(
        table,
        rows,
        facts,
        together,
        wishes.windows,
        warnings,
        target,
        forecast,
        [*([_REPEATS] if repeating else []), *([_DRIFT] if drift else [])],
        (*notes, *reading.left_out),
    )


def _known_in_advance(
    series: Sequence[ClientSeries], table: Changes, column_settings: Changes, reading: Reading
) -> tuple[dict[str, object], bool, list[str]]:
    """Return settings for the rows with columns known in advance, and facts about the columns.

    Returns the settings, which are {} if no column is used. Also returns whether the columns reach
    as far as a forecast, and facts for people. series: the series that `table` reads, without these
    columns. column_settings: the person's settings on columns. If there are none, the columns that
    reach as far as a forecast are used. Raises `DataError` for a named column that cannot be used.
    """
    from fedproto_app.data.known_columns import advice_on, with_calendar
    from fedproto_app.data.series import notes_of
    from fedproto_app.data.sources import columns_beside, load_histories

    data = settings_from(table).data
    named_columns = [column.name for column in known_in(str(column_settings.get("data.known", "")))]
    names = reading.beside or [column.partition("=")[0] for column in series[0].columns]
    beside = columns_beside(data, list(dict.fromkeys(names)))
    used_columns = [column for column in beside if column.name in named_columns]
    if not {"data.known", "data.covariates"} & column_settings.keys():
        used_columns = [c for c in beside if not c.why_not and c.steps >= data.horizon]
    facts = advice_on([column for column in beside if column not in used_columns], "--known ")
    settings = {"data.known": text_of(column.name for column in used_columns), **column_settings}
    settings = {key: value for key, value in settings.items() if value}
    if not settings:
        return {}, False, facts
    with_columns = settings_from({**table, **settings}).data
    histories = [
        with_calendar(client, with_columns, data.horizon) for client in load_histories(with_columns)
    ]
    for column in used_columns:
        if column.why_not:
            raise DataError(f"{data.path}: column {column.name!r} {column.why_not}; leave it out")
    futures = [client.future[: data.horizon] for client in histories]
    reaches = all(len(f) == data.horizon and bool(np.isfinite(f).all()) for f in futures)
    facts = [f"known in advance: {listed(histories[0].columns)}", *facts]
    if not reaches:
        facts.insert(
            1,
            "the columns do not reach as far as the forecast, which is made without them; if they "
            "were measured, not forecast, what they bring is an upper bound",
        )
    notes = [note for note in notes_of(histories) if note not in notes_of(series)]
    return settings, reaches, [*facts, *notes]


def _plan_of_classes(
    path: Path, table: dict[str, object], reading: Reading, record: TaskRecord, wishes: Wishes
) -> Plan:
    windows = wishes.windows if wishes.windows > 1 else None
    for option, value in (
        ("--horizon", wishes.horizon),
        ("--period", wishes.period),
        ("--windows", windows),
    ):
        if value is not None:
            raise SettingsError(f"{option} {value}: for series, but {path} holds {record.holds}")
    images = record.holds == "images"
    facts_of = _image_facts if images else _sequence_facts
    clients, samples, rounds, task, doubts = facts_of(settings_from(table).data)
    table["task"] = task
    scheme = "data.partition" if images else "data.clusters"
    if clients and wishes.clients is None:
        table[f"{scheme}.scheme"] = "given"
        dealt = f"{clients} clients, named in the data"
    elif wishes.clients is not None:
        table |= {f"{scheme}.scheme": "dirichlet", f"{scheme}.clients": wishes.clients}
        table |= {"data.partition.stages": 1} if images else {}
        dealt = f"divided over {wishes.clients} simulated clients, as you say"
    else:
        raise DataError(
            f"{path}: the data name no clients; --clients 10 makes 10 simulated clients"
        )
    table |= {"rounds": rounds, "keep": "last"} if images else {"rounds": rounds}
    facts = [f"{path.name}: {samples}, read as {reading.source}", *reading.notes, dealt]
    rows = {name: row for name, row in CLASS_ROWS.items() if _is_possible({**table, **row.changes})}
    return Plan(table, rows, facts, "analytic", warnings=doubts)


def _is_possible(settings: Changes) -> bool:
    """Return whether a row works with the person's settings. Noise and masks rule out clusters."""
    try:
        settings_from(settings)
    except SettingsError:
        return settings.get("analytic.sharing") != "clustered"
    return True


def _image_facts(data: DataSettings) -> tuple[int, str, int, str, list[str]]:
    """Return the number of named clients, the images in words, the stages, the task and doubts."""
    from fedproto_app.data.images.sources import load_pool
    from fedproto_app.report.check.doubts import doubts_about_images

    pool = load_pool(data)
    images = len(pool.train.labels) + len(pool.test.labels)
    stages = 1 if pool.train.stages is None else 1 + int(pool.train.stages.max())
    clients = 0 if pool.train.clients is None else len(np.unique(pool.train.clients))
    words = f"{images} images of {len(pool.classes)} classes"
    return clients, words, stages, "classification", doubts_about_images(pool)


def _sequence_facts(data: DataSettings) -> tuple[int, str, int, str, list[str]]:
    """Return the same as `_image_facts` for sequences, which have one stage."""
    from fedproto_app.data.sequences.sources import load_sequences
    from fedproto_app.report.check.doubts import doubts_about_sequences

    pool = load_sequences(data)
    if not pool.classes:
        raise DataError(
            f"{data.path}: the targets are real numbers, for which there is no closed form; "
            "fedproto data check prints the command that trains models"
        )
    clients = 0 if pool.clients is None else len(np.unique(pool.clients))
    words = f"{len(pool.sequences)} sequences of {len(pool.classes)} classes"
    return clients, words, 1, "sequence-classification", doubts_about_sequences(pool)


def _make_usable(
    series: Sequence[ClientSeries], table: dict[str, object], *, fixed: bool
) -> tuple[int, list[str]]:
    """Shorten the samples, if necessary, until at least half of the clients have enough values.

    Returns how many clients can take part, and a text for each newcomer among them. fixed: whether
    a person has set the horizon. Raises `DataError` if no client has enough values to train.
    """
    from fedproto_app.data.windows import cut_of, shortest_length, why_refused

    choices: list[dict[str, object]] = [{}]
    choices += [] if fixed else [{"data.horizon": 1}]
    if "data.periodic-window" not in table:
        choices.append({**choices[-1], "data.periodic-window": 1})
    for choice in choices:
        data = settings_from({**table, **choice}).data
        usable = [client for client in series if why_refused(client, data) is None]
        cuts = [cut_of(client, data) for client in usable]
        newcomers = [f"{cut.series.name}, {cut.words}" for cut in cuts if cut.is_young]
        if 2 * (len(cuts) - len(newcomers)) >= len(series):
            break
    if any(cut.sends for cut in cuts):
        table |= choice
        return len(usable), newcomers
    longest = max(len(client.values) for client in series)
    if not longest:
        raise DataError(f"{table['data.path']}: no value is present")
    shorter = " or ".join(["--horizon"] * fixed + ["--period"])
    raise DataError(
        f"{table['data.path']}: the longest series has {longest} steps, but a period of "
        f"{data.period} needs {shortest_length(data)}; set a shorter {shorter}"
    )


def _calendar(series: Sequence[ClientSeries], period: int) -> str:
    """Return the largest calendar that half of the clients have enough train values for.

    It includes weekdays only if weeks repeat.
    """
    train = float(np.median([len(client.values) for client in series])) * DataSettings().train_share
    clock = step_of(series)
    is_day = clock is not None and clock.steps_in(DAY) == period
    has_weeks = is_day and train >= PERIODS_FOR_WEEKS * period
    if has_weeks and weeks_repeat(series, period):
        return "week"
    return "phase" if period > 1 and train >= 2 * period else "none"


def _span(numbers: Sequence[int]) -> str:
    smallest, largest = min(numbers), max(numbers)
    return f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"
