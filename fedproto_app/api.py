"""The Python interface: train on frames or files, read results, use and compare models.

    import fedproto_app

    run = fedproto_app.run(frame, method="kindred", data__horizon=24)
    run.predictions()
    run.forecast()  # or, for classes, run.predict(client, samples)
    fedproto_app.compare([run, another_run])

Mistakes and failures raise `FedProtoError` with the message that the command line would print.
docs/python.md shows more.
"""

from __future__ import annotations

import html
import io
import json
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from fedproto_app.core.endings import removed_if_empty, shown
from fedproto_app.core.errors import FederationError, FedProtoError, SettingsError
from fedproto_app.core.loading import is_code, look_here_for_users_code
from fedproto_app.core.tasks import task_record
from fedproto_app.experiments.run_settings import (
    NODES,
    read_toml,
    resumed_settings,
    simulated_settings,
)
from fedproto_app.experiments.simulation import OnRound, show_after, simulate_here
from fedproto_app.experiments.trial import try_file as try_file
from fedproto_app.experiments.trial import with_period
from fedproto_app.report.page import REPORT
from fedproto_app.report.runs import find_runs, group_runs, read_clients, read_rounds, read_run
from fedproto_app.report.task_report import report_for
from fedproto_app.settings import Settings, settings_from
from fedproto_app.settings.reading import flat
from fedproto_app.tasks.forecasting.metrics import LEVELS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from pandas import DataFrame, DatetimeIndex
    from torch import Tensor

    from fedproto_app.data.clock import Clock
    from fedproto_app.data.series import ClientSeries
    from fedproto_app.tasks.labelled import NewSamples

Config = str | Path | Mapping[str, object] | None
_FRAMES = "frames"  # in the folder of the runs


def run(
    data: DataFrame | Config = None,
    config: Config = None,
    *,
    id_col: str = "",
    time_col: str = "",
    target_col: str = "",
    model: object = None,
    on_round: OnRound | None = None,
    nodes: int = NODES,
    workers: int | None = None,
    progress: bool = True,
    **changes: object,
) -> Run:
    """Simulate an experiment in this process and worker processes.

    data: a frame of series. It is long, with a row per client and time, or wide, with a column per
    client (docs/python.md). If there is no frame, config may come first. config: a TOML file or a
    mapping with settings that override the defaults. changes: single settings that override both,
    such as ``local_epochs=2``, or ``fuels__beta=30`` for a setting in a table. If no setting says
    otherwise, a frame's times determine the period and the calendar.

    id_col, time_col, target_col: the columns of a long frame, by default those with usual names,
    such as unique_id, ds and y. model: a subclass of `torch.nn.Module` or a function that makes a
    module (docs/extending.md), instead of ``model.module``. on_round: called after each round with
    a dict like a row of `Run.rounds`. An exception that it raises ends the run. nodes: the number
    of simulated nodes. workers: the number of worker processes, which does not change results. By
    default there is one per core, but no more than there is work for. progress: whether to show
    each round when it ends.
    """
    look_here_for_users_code()
    table = _settings_of(data, config, (id_col, time_col, target_col), model, changes, "runs")
    return _simulated(simulated_settings(table, nodes), nodes, workers, progress, on_round)


def resume(
    path: str | Path,
    *,
    on_round: OnRound | None = None,
    workers: int | None = None,
    progress: bool = True,
    **changes: object,
) -> Run:
    """Resume an interrupted run, or continue any run with more ``rounds`` or ``patience``."""
    look_here_for_users_code()
    assignments = [f"{key}={json.dumps(value)}" for key, value in _changes(changes).items()]
    settings, nodes = resumed_settings(str(path), None, assignments, None)
    return _simulated(settings, nodes, workers, progress, on_round)


def load(path: str | Path) -> Run:
    """Return the finished run in this folder."""
    return Run(Path(path).expanduser().resolve())


def compare(runs: Runs) -> DataFrame:
    """Return a table of finished runs. Each has a row, and the best comes first.

    runs: runs, their folders, or folders that contain several runs. Runs that differ only in their
    seed share a row. ``fedproto compare --format csv`` has the same columns (docs/running.md).
    For forecasts these are ``mse_mean``, ``mase_median_mean``, the share of clients that are better
    off than alone, and others. If the runs have several tasks, the table has all their columns.
    """
    import pandas as pd

    from fedproto_app.report.comparison import with_better_off
    from fedproto_app.report.runs import ranked
    from fedproto_app.report.table import by_task, comparison_csv

    groups, _ = group_runs(find_runs(_places(runs))[0])
    tables = map(comparison_csv, by_task(ranked(with_better_off(groups))))
    return pd.concat([pd.read_csv(io.StringIO(text)) for text in tables], ignore_index=True)


def report(runs: Runs, path: str | Path | None = None) -> Path:
    """Write a report on finished runs into one HTML file, and return the file's path.

    runs: as for `compare`. path: the path of the file. By default this is report.html in the given
    folder, or in the current folder if several runs or folders are given.
    """
    from fedproto_app.report.page.document import write_report

    look_here_for_users_code()  # forecasts of models may need the user's modules
    places = _places(runs)
    file = Path(path) if path else (places[0] if len(places) == 1 else Path()) / REPORT
    write_report(find_runs(places)[0], file)
    return file


def check(
    data: DataFrame | str | Path,
    *,
    id_col: str = "",
    time_col: str = "",
    target_col: str = "",
    **changes: object,
) -> DataFrame:
    """Return how a run would read series. The table has a row per client.

    data: a frame as for `run`, or a path as for ``fedproto data check``. changes: as for `run`.

    The columns are unique_id, start (the first time or step), steps (how many there are), period
    (found by autocorrelation, missing if there is none), missing (the share of missing values),
    verdict (``ok``, ``constant`` or ``refused``) and notes (the reason, or what is odd).
    """
    import pandas as pd

    from fedproto_app.data.sources import trimmed
    from fedproto_app.report.check.forecasting import facts_of

    series, table = _series_and_settings(data, (id_col, time_col, target_col), _changes(changes))
    settings = settings_from(table).data
    series = [trimmed(client) for client in series]
    facts = [facts_of(client, settings) for client in series]
    starts = _moments(series, [(client.start,) for client in series])
    columns = {
        "unique_id": [client.name for client in facts],
        "start": starts,
        "steps": [client.length for client in facts],
        "period": pd.array([client.period for client in facts], dtype="Int64"),
        "missing": [client.missing_share for client in facts],
        "verdict": [client.verdict.plain for client in facts],
        "notes": [client.refused or client.notes for client in facts],
    }
    return pd.DataFrame(columns)


@dataclass(frozen=True)
class Swept:
    """A finished sweep. table: sweep.csv, the best trial first. best: a run of the chosen trial."""

    folder: Path
    table: DataFrame
    best: Run


def sweep(
    data: DataFrame | Config = None,
    config: Config = None,
    *,
    grid: Mapping[str, Sequence[object]] | None = None,
    ranges: Mapping[str, str] | None = None,
    search: str = "grid",
    trials: int | None = None,
    seeds: Sequence[int] = (0,),
    folder: str | Path | None = None,
    id_col: str = "",
    time_col: str = "",
    target_col: str = "",
    model: object = None,
    parallel: int | None = None,
    nodes: int = NODES,
    progress: bool = True,
    **changes: object,
) -> Swept:
    """Try settings in many runs, and choose by validation error, as ``fedproto sweep`` does.

    data, config, changes and the columns: as for `run`. grid: for each setting, by its dotted key,
    the values to try. ranges: for each setting, a text such as ``1e-4..1e-2:log``. Ranges need
    search ``random`` or ``optuna`` and a number of trials. folder: by default a folder in sweeps,
    named after the settings. The same call resumes a sweep that was stopped. parallel: how many
    runs are made at the same time.
    """
    import pandas as pd

    from fedproto_app.experiments.sweep import FOLDER, open_sweep
    from fedproto_app.experiments.sweep_plan import Plan
    from fedproto_app.experiments.sweep_results import write_results

    look_here_for_users_code()
    frames = Path(folder).parent if folder else Path(FOLDER)
    settings = _settings_of(
        data, config, (id_col, time_col, target_col), model, changes, str(frames)
    )
    options = {
        "search": search,
        "trials": trials,
        "seeds": list(seeds),
        "nodes": nodes,
        "grid": {key: list(values) for key, values in (grid or {}).items()},
        "range": dict(ranges or {}),
    }
    plan = Plan.of(options, settings)
    console = Console(stderr=True, quiet=not progress, highlight=False)
    with open_sweep(Path(folder or frames / plan.name), plan, extend=False) as ready:
        results, chosen = ready.run(parallel, console)
        write_results(ready.folder, plan, results, chosen)
    ready.require_runs()
    if not chosen:
        raise FederationError(f"{ready.folder}: no run has a validation error")
    table = pd.read_csv(ready.folder / "sweep.csv")
    return Swept(ready.folder, table, Run(chosen[0].folders[plan.seeds[0]]))


@dataclass(frozen=True)
class ClientModel:
    """The model that a client ended with.

    parameters: the model's parameters, without a client axis, under the method's names. scale: the
    scale of the client's values (for forecasting, the numbers of `TrainedSeries`, such as mean and
    std). errors: the validation and test metrics. kept_round: the round that the model is from.
    """

    client: str
    node: str
    parameters: dict[str, Tensor]
    scale: dict[str, float]
    errors: dict[str, float]
    kept_round: int


class Run:
    """A finished run, read from its folder (docs/artefacts.md).

    path: the folder. summary: the content of summary.json. settings: all settings of the run.
    """

    def __init__(self, path: Path) -> None:
        stored = read_run(path)
        self.path = path
        self.summary = stored.summary
        self.settings: Settings = settings_from(stored.settings)

    def __repr__(self) -> str:
        summary = self.summary
        description = f"{summary['method']} on {summary['dataset']}, {summary['rounds']} rounds"
        return f"<run of {description}: {self.path}>"

    def _repr_html_(self) -> str:
        """Return the run's result as a sentence and a table, for a notebook."""
        of_task = report_for(str(self.settings.task))
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
            for name, text in of_task.run_rows(self.summary)
        )
        words, place = map(html.escape, (of_task.in_words(self.summary), shown(self.path)))
        return f"<p>{words}.</p><table>{rows}</table><p><code>{place}</code></p>"

    @property
    def rounds(self) -> DataFrame:
        """The rounds in rounds.jsonl, a row each. Nested figures have names like ``loss.total``."""
        import pandas as pd

        return pd.json_normalize(read_rounds(self.path)).set_index("round")

    @property
    def clients(self) -> DataFrame:
        """The clients in clients.csv, a row each. An unknown group is "", an unknown number NaN."""
        import pandas as pd

        table = read_clients(self.path)
        frame = pd.DataFrame({**table.texts, **table.numbers})
        counts = [name for name in ("samples", "kept_round") if frame[name].notna().all()]
        return frame.astype(dict.fromkeys(counts, int))

    def model(self, client: str) -> ClientModel:
        """Return a client's kept model.

        The run must be a simulation, because the nodes' state must lie in its folder. Raises
        `FedProtoError` if there is no such model.
        """
        from fedproto_app.serving import model_and_task, owner_of, states_of

        look_here_for_users_code()
        state = owner_of(states_of(self.path, None), client)
        parameters, _ = model_and_task(state, client)
        record = state.store.record(client)
        return ClientModel(
            client, state.folder.name, parameters, record.scale, record.metrics, record.kept_round
        )

    def predict(self, client: str, samples: NewSamples) -> DataFrame:
        """Predict the classes of new images or sequences with a client's kept model.

        samples: images uint8 [n, channels, height, width] of the run's size, or n sequences [T, d]
        of any lengths. With a pretrained encoder and without data.image-size, images may have any
        size. If the run's sequences have named columns, a data frame's columns are found by name.
        Samples are treated like the client's samples in the run.

        Returns a row per sample and a column per class, with the class's probability. The heads of
        Fed-REACT, IFCA and FLSC know no probabilities, so only their order means something. If the
        run predicts real numbers, the only column is y_hat. Raises `FedProtoError` if the run is no
        simulation or forecasts series (see `forecast`), if the client has no kept model, if the
        method predicts with something that is not kept, or for samples that do not fit.
        """
        import pandas as pd

        from fedproto_app.serving import Predictor, states_of

        look_here_for_users_code()
        predictor = Predictor(states_of(self.path, None), client)
        return pd.DataFrame(predictor(samples), columns=list(predictor.columns))

    def predictions(self) -> DataFrame:
        """Return the test predictions of every client with a kept model, with intervals.

        Each value of the test part is forecast once, data.horizon values at a time, from the values
        before them. Columns: unique_id, ds, y (the true value, NaN if it is missing), y_hat, and
        the ends of the intervals lo-80, hi-80, lo-95 and hi-95. All are in the series' units.
        Raises `FedProtoError` if the run is not a simulation of forecasts, or if its data have
        changed.
        """
        from fedproto_app.report.forecasting.examples import (
            evaluated_clients,
            find_examples,
            kept_forecasts,
        )
        from fedproto_app.serving import limits_of

        self._require_forecasts()
        look_here_for_users_code()
        names = evaluated_clients(self.path)
        examples = find_examples(self.path, self.settings, dict(zip(names, names, strict=True)))
        parts = kept_forecasts(examples, self.settings)
        return _frame(
            [example.client for example in examples],
            _moments(parts, [part.positions for part in parts]),
            [
                {
                    "y": part.truth,
                    "y_hat": part.forecast.clip(min=part.floor),
                    **limits_of(part.forecast, part.half_widths, part.floor),
                }
                for part in parts
            ],
        )

    def forecast(
        self,
        frame: DataFrame | None = None,
        steps: int | None = None,
        clients: Collection[str] = (),
        *,
        future: DataFrame | None = None,
        levels: Sequence[int] = LEVELS,
        id_col: str = "",
        time_col: str = "",
        target_col: str = "",
    ) -> DataFrame:
        """Forecast the next values of the clients' series with intervals, in the series' units.

        frame: the series up to now, with columns as for `run`. None means the series that the run's
        source has now. steps: how many, by default data.horizon. clients: the clients that must be
        forecast. If none are named, all that can be are forecast. future: the next steps of columns
        known in advance, with a row for each client and time, or for each time if all clients have
        the same values. None means that these come from the rows after the last values and from
        data.covariates. levels: the levels of the intervals, in percent, from 1 to 99.

        Returns a row per client and step with the columns unique_id, ds (a time, or a step if there
        are no times), y_hat, and the ends of the intervals, such as lo-80 and hi-80. These are NaN
        beyond data.horizon steps. Ids and times are written as in the frame. At weekdays and times
        of day that never have a value, forecasts are NaN, and a warning says so. Warnings also name
        clients in the data that cannot be forecast, for instance because they did not train, and
        changes to columns known in advance. Raises `FedProtoError` if one of `clients`, or every
        client, cannot be forecast, or if a column known in advance lacks a value.
        """
        import numpy as np

        from fedproto_app.data.frame import WHERE, future_of_frame, labels_of, series_of_frame
        from fedproto_app.data.known_columns import as_trained, with_known_columns
        from fedproto_app.data.series import notes_of
        from fedproto_app.data.sources import histories_of, load_histories
        from fedproto_app.report.check.findings import refusals
        from fedproto_app.serving import forecast, open_run, reasons_for_gaps, trained_columns

        self._require_forecasts()
        states = open_run(self.path)
        look_here_for_users_code()
        steps = self.settings.data.horizon if steps is None else steps
        if not isinstance(steps, int | np.integer) or steps < 1:
            raise FedProtoError(f"steps = {steps}: expected a whole number from 1 on")
        table = None if future is None else future_of_frame(future, id_col, time_col)
        columns = trained_columns(states, table)
        data = as_trained(self.settings.data, columns)
        if frame is None:
            series = load_histories(data.model_copy(update={"max_steps": 0}), steps, table)
        else:
            loaded = series_of_frame(frame, id_col, time_col, target_col, data=data)
            series = histories_of(with_known_columns(loaded, data, WHERE, steps, table))
        for note in notes_of(series) if columns else []:
            warnings.warn(note, stacklevel=2)
        results, left_out = forecast(
            states, series, steps, clients=clients, levels=list(dict.fromkeys(levels))
        )
        in_data = {client.name for client in series}
        if lines := refusals({name: why for name, why in left_out.items() if name in in_data}):
            warnings.warn(f"not forecast: {'; '.join(lines)}", stacklevel=2)
        for line in refusals(reasons_for_gaps(results)):
            warnings.warn(line, stacklevel=2)
        forecasts = _frame(
            [result.client for result in results],
            _moments(results, [result.first + np.arange(steps) for result in results]),
            [{"y_hat": result.values, **result.limits} for result in results],
        )
        return forecasts if frame is None else labels_of(frame, id_col, time_col).put_on(forecasts)

    def _require_forecasts(self) -> None:
        if not task_record(self.settings.task).forecasts:
            raise FedProtoError(
                f"{self.path}: is a run of task = {self.settings.task!r}, which forecasts nothing; "
                "see Run.predict"
            )


Runs = Run | str | Path | Iterable[Run | str | Path]


class _CallableRoom(ModuleType):
    """Lets the package `fedproto_app.report` be called, because `report` here has the same name."""

    def __call__(self, runs: Runs, path: str | Path | None = None) -> Path:
        return report(runs, path)


sys.modules["fedproto_app.report"].__class__ = _CallableRoom


def _simulated(
    settings: Settings,
    nodes: int,
    workers: int | None,
    progress: bool,
    on_round: OnRound | None,
) -> Run:
    console = Console(stderr=True, quiet=not progress, highlight=False)
    folder = Path(settings.output.dir) / settings.output.name
    with removed_if_empty(folder):
        simulate_here(settings, nodes, workers, console, verbose=False, on_round=on_round)
    if settings.output.pictures:
        show_after(folder, console)
    return Run(folder)


def _places(runs: Runs) -> list[Path]:
    """Return the folders of these runs."""
    if isinstance(runs, Run | str | Path):
        runs = [runs]
    return [run.path if isinstance(run, Run) else Path(run).expanduser() for run in runs]


def _settings_of(
    data: DataFrame | Config,
    config: Config,
    columns: tuple[str, str, str],
    model: object,
    changes: Mapping[str, object],
    folder: str,
) -> dict[str, object]:
    """Return the settings that follow from the arguments of `run`, with dotted keys.

    A frame is saved for the worker processes, in `output.dir` or, by default, in the folder given.
    """
    is_frame = not (data is None or isinstance(data, str | Path | Mapping))
    if not is_frame and data is not None:
        if config is not None:
            raise SettingsError("settings are given twice; the first argument should be a frame")
        config = data  # type: ignore[assignment]
    table = _table(config) | _changes(changes)
    if isinstance(model, Mapping):  # the table [model]
        table |= flat(model, "model.")
    elif model is not None:
        table["model.module"] = _name_of(model)
    if not is_frame:
        if names := [name for name in columns if name]:
            raise SettingsError(f"{names[0]!r} names a column, but there is no frame")
        return table
    from fedproto_app.data.frame import saved_series
    from fedproto_app.data.sources import histories_of

    series, table = _series_and_settings(data, columns, table)  # type: ignore[arg-type]
    output = table.get("output.dir", folder)
    if not isinstance(output, str | Path):
        raise SettingsError(f"output.dir = {output!r}: the path of a folder is needed")
    frames = Path(output).expanduser() / _FRAMES
    path = saved_series(histories_of(series), frames)
    return {**table, "data.source": "npz", "data.path": str(path)}


def _series_and_settings(
    data: DataFrame | str | Path, columns: tuple[str, str, str], table: Mapping[str, object]
) -> tuple[list[ClientSeries], dict[str, object]]:
    """Return the series of a frame or file, and settings that suit them."""
    from fedproto_app.data.format import Reading
    from fedproto_app.data.frame import WHERE, known_settings, series_of_frame
    from fedproto_app.data.known_columns import with_known_columns
    from fedproto_app.data.recognition import reading_of
    from fedproto_app.data.sources import load_series
    from fedproto_app.tasks.table import record_of_source

    if isinstance(data, str | Path):
        reading = Reading(str(table["data.source"])) if "data.source" in table else None
        reading = reading or reading_of(Path(data), table)
        complete = {**reading.all_settings, "data.path": str(data), **table}
        settings = settings_from(complete).data
        if not (record := record_of_source(settings)).forecasts:
            raise FedProtoError(f"{data}: holds {record.holds}; fedproto data check shows them")
        series = load_series(settings)
        return series, with_period(series, complete)
    for key in ("data.source", "data.path"):
        if key in table:
            raise SettingsError(f"{key} = {table[key]!r}: the data are the frame")
    data_settings = known_settings(table)
    series = series_of_frame(data, *columns, data=data_settings)
    with_known_columns(series, data_settings, WHERE)  # refuses here what the run would refuse
    return series, with_period(series, table)


def _name_of(model: object) -> str:
    """Return the name under which other code can import a class or function."""
    if isinstance(model, str):
        return model
    module, name = getattr(model, "__module__", ""), getattr(model, "__qualname__", "")
    defined = getattr(sys.modules.get(module), name, None)
    if not is_code(f"{module}:{name}") or defined is not model:
        raise SettingsError(
            f"model = {model!r}: expected a class or function that its module or notebook defines "
            "under its own name, not within a function"
        )
    return f"{module}:{name}"


def _moments(
    series: Sequence[_Clocked], positions: Sequence[ArrayLike]
) -> DatetimeIndex | NDArray[np.int64]:
    """Return the times at these positions on the series' clocks, or the positions if one has none.

    positions: an array for each of the series. Times with an offset from UTC are in UTC.
    """
    import numpy as np
    import pandas as pd

    clocks = [item.clock for item in series if item.clock is not None]
    arrays = [np.asarray(places, dtype=np.int64) for places in positions]
    if not clocks or len(clocks) < len(series):
        return np.concatenate([*arrays, np.empty(0, dtype=np.int64)])
    times = [clock.moments(places) for clock, places in zip(clocks, arrays, strict=True)]
    moments = pd.DatetimeIndex(np.concatenate(times))
    return moments.tz_localize("UTC") if clocks[0].utc else moments


class _Clocked(Protocol):
    """A series or a forecast, which may have a clock."""

    @property
    def clock(self) -> Clock | None: ...


def _frame(
    clients: Sequence[str],
    moments: DatetimeIndex | NDArray[np.int64],
    parts: Sequence[Mapping[str, NDArray[np.floating]]],
) -> DataFrame:
    """Return a frame with unique_id, ds and the parts' columns, one client below the other."""
    import numpy as np
    import pandas as pd

    lengths = [len(part["y_hat"]) for part in parts]
    names = {"unique_id": np.repeat(np.array(clients, dtype=object), lengths), "ds": moments}
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return pd.DataFrame(names | columns)


def _table(config: Config) -> dict[str, object]:
    """Return the settings of a file or a mapping, with dotted keys."""
    if config is None:
        return {}
    return flat(config if isinstance(config, Mapping) else read_toml(Path(config)))


def _changes(changes: Mapping[str, object]) -> dict[str, object]:
    """Return keyword arguments as settings: ``fuels__beta`` is ``fuels.beta``."""
    return {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
