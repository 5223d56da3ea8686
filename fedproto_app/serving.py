"""Forecast the next values of clients' series, and classify new samples, with their kept models.

A node's state folder contains the tensors, the run's settings, and for every kept model the scale
of its training data. New values are standardised with this scale, never with their own. A model
forecasts H values at once. Further values are forecast in blocks of H, whose inputs include the
earlier forecasts.

If models see the calendar, times are read from the source's clock, so a file may begin anywhere. A
source without times counts steps, so its data must begin where the training data began. A client
is not forecast if its values evidently end before those that it was trained on.

A client's forecasts and intervals do not go below 0 if its train part and its new values are never
negative. They are written in the layout of the data, with as many decimals.

There is no forecast for weekdays and times of day at which a client never has a value
(`data.empty_times`). As in training, inputs of later forecasts repeat the value before them.
"""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.errors import DataError, FedProtoError, did_you_mean
from fedproto_app.core.methods import method_named
from fedproto_app.core.tasks import task_record
from fedproto_app.data.clock import Clock, Matrix
from fedproto_app.data.empty_times import empty_times_text, is_empty_time
from fedproto_app.data.files import require_room
from fedproto_app.data.known_columns import KnownTable, calendar_names, with_columns
from fedproto_app.data.scale import Scale, TrainedSeries
from fedproto_app.data.series import ClientSeries, ColumnNames
from fedproto_app.data.shape import DataShape
from fedproto_app.data.windows import carry_forward, reach, sample_inputs
from fedproto_app.node.state_file import MEMORY, PERSONAL, holds_kept_models, node_folders
from fedproto_app.node.store import SETTINGS_FILE, ClientStore, unflatten
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.strategies.common.learner import AnyLearner, Predicts, make_learner
from fedproto_app.strategies.response.features import Response
from fedproto_app.tasks.forecasting.intervals import kept_half_widths
from fedproto_app.tasks.forecasting.metrics import LEVELS
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.labelled import LabelledTask, NewSamples
from fedproto_app.tasks.table import make_task
from fedproto_app.tasks.task import AnyTask

Layout = Literal["as-data", "long"]
_LONG = ColumnNames("ds", "y_hat", "unique_id")
_MOST_DECIMALS = 9


@dataclass(frozen=True)
class ClientForecast:
    """A client's next values, in the units of its series.

    values: [n], NaN at the client's empty times. limits: the ends of the intervals by column, such
    as lo-80 and hi-80, [n] each, NaN if unknown. first: the position of the first forecast on the
    source's clock. last: the newest observed value. gap: how many values are missing between `last`
    and the first forecast. table: the columns of the table that the series comes from. decimals:
    how many decimals the series' values have, None for many. empty_times: in words, the times
    without a forecast, such as "on Sundays", or "" if there are none.
    """

    client: str
    values: NDArray[np.float64]
    limits: Mapping[str, NDArray[np.float64]]
    first: int
    clock: Clock | None
    last: float
    gap: int
    table: ColumnNames | None = None
    decimals: int | None = None
    empty_times: str = ""

    @property
    def levels(self) -> list[int]:
        """The levels of the intervals, in percent."""
        return [int(name.removeprefix("lo-")) for name in self.limits if name.startswith("lo-")]

    def when(self, ahead: int) -> str:
        """Return the time of a forecast, or its step if the source has no times.

        ahead: the number of the forecast, from 0."""
        position = self.first + ahead
        return str(position) if self.clock is None else self.clock.time(position)

    def text(self, number: float, decimal: str = ".") -> str:
        """Return a number with the decimals of the series, "" for NaN. decimal: decimal sign."""
        if np.isnan(number):
            return ""
        if self.decimals is None:
            return f"{number:.10g}".replace(".", decimal)
        text = f"{round(number, self.decimals) + 0.0:.{self.decimals}f}"  # + 0.0: no -0
        return text.replace(".", decimal)


def write_csv(
    forecasts: Sequence[ClientForecast], file: TextIO, layout: Layout = "as-data"
) -> None:
    """Write values and limits in the form of the data's table. Unknown values are empty.

    A long table has a row per client and step. A wide one has a row per step and a column per
    client, then columns such as ``north-lo-80``. Names, delimiter and decimal sign are as in the
    data. layout: "long" writes ``unique_id, ds, y_hat`` and limits, with commas and decimal points,
    whatever the layout of the data. The same form is used if the data are not a table.
    """
    columns, names_of_limits = forecasts[0].table, list(forecasts[0].limits)
    if layout == "long" or columns is None:
        columns = _LONG
    table = csv.writer(file, delimiter=columns.delimiter, lineterminator="\n")
    if columns.clients:
        table.writerow([columns.clients, columns.times, columns.values, *names_of_limits])
        table.writerows(row for f in forecasts for row in _long_rows(f, columns.decimal))
    else:
        names = [forecast.client for forecast in forecasts]
        limits = [f"{name}-{limit}" for name in names for limit in names_of_limits]
        table.writerow([columns.times or "step", *names, *limits])
        table.writerows(_wide_rows(forecasts, columns.decimal))


def _long_rows(forecast: ClientForecast, decimal: str) -> Iterator[list[str]]:
    numbers = zip(forecast.values, *forecast.limits.values(), strict=True)
    for ahead, row in enumerate(numbers):
        texts = [forecast.text(number, decimal) for number in row]
        yield [forecast.client, forecast.when(ahead), *texts]


def _wide_rows(forecasts: Sequence[ClientForecast], decimal: str) -> Iterator[list[str]]:
    """Yield the rows of a wide table. All forecasts start and end at the same steps."""
    for ahead in range(len(forecasts[0].values)):
        values = [forecast.text(forecast.values[ahead], decimal) for forecast in forecasts]
        limits = [
            forecast.text(limit[ahead], decimal)
            for forecast in forecasts
            for limit in forecast.limits.values()
        ]
        yield [forecasts[0].when(ahead), *values, *limits]


def decimals_of(values: NDArray[np.float64]) -> int | None:
    """Return how many decimals forecasts of values [T] get, None if the values have more than nine.

    They get at least as many as the values have. One unit of the last decimal must also not exceed
    the values' standard deviation, or all forecasts of small counts would become 0.
    """
    present = values[np.isfinite(values)]
    rounding = 1e-14 * np.abs(present)
    std = float(present.std()) if present.size else 0.0
    fewest = max(0, math.ceil(-math.log10(std))) if std > 0 else 0
    for decimals in range(_MOST_DECIMALS + 1):
        if (np.abs(np.round(present, decimals) - present) <= rounding).all():
            return max(decimals, min(fewest, _MOST_DECIMALS))
    return None


def reasons_for_gaps(forecasts: Sequence[ClientForecast]) -> dict[str, str]:
    """Return why clients have no forecast for some times. Clients that have all are left out."""
    return {
        forecast.client: f"no forecast {forecast.empty_times}, because no value was ever there"
        for forecast in forecasts
        if forecast.empty_times
    }


_DEEPEST = 3  # how deep a node's state lies below a run's parent folder: <run>/state/<node>
_MOST_CHOICES = 20  # how many choices a message lists


@dataclass(frozen=True)
class NodeState:
    """The state of one node in one run. shape: of the data in training."""

    folder: Path
    settings: Settings
    store: ClientStore
    shape: DataShape


def states_of(run: Path | None, state: Path | None) -> list[NodeState]:
    """Return the states of all nodes of a simulation, or the state of one node.

    run: the simulation's folder. Raises `FedProtoError` unless exactly one of the folders is given,
    and if it has no state.
    """
    if run is not None and state is None:
        return [read_state(path) for path in node_folders(run)]
    if state is not None and run is None:
        return [read_state(state)]
    raise FedProtoError("name either the folder of a run, or the folder of a node with --state")


def open_state(folder: Path) -> NodeState:
    """Return the state of `read_state`. Raises `FedProtoError` if its task does not forecast."""
    return require_forecasts(read_state(folder))


def require_forecasts(state: NodeState) -> NodeState:
    """Return the state. Raises `FedProtoError` if its task does not forecast."""
    if not task_record(state.settings.task).forecasts:
        raise FedProtoError(
            f"{state.folder}: its models are of task = {state.settings.task!r}; only models of "
            "task = 'forecasting' can forecast"
        )
    return state


def read_state(folder: Path) -> NodeState:
    """Return the state in a node's folder, or in the only such folder below this one.

    Raises `FedProtoError` if there is no state or more than one.
    """
    state_folder = _state_folder(folder)
    try:
        text = (state_folder / SETTINGS_FILE).read_text(encoding="utf-8")
        settings = settings_from(tomllib.loads(text))
        store = ClientStore(state_folder)
        return NodeState(state_folder, settings, store, store.read_shape())
    except FileNotFoundError as error:
        raise FedProtoError(
            f"{error.filename}: no such file, so the node's models cannot be built again"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedProtoError(f"{state_folder}: its settings or shape are damaged: {error}") from None


def _state_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise FedProtoError(f"{folder}: no such folder")
    if holds_kept_models(folder):
        return folder
    folders = sorted(
        path
        for depth in range(1, _DEEPEST + 1)
        for path in folder.glob("/".join("*" * depth))
        if path.is_dir() and holds_kept_models(path)
    )
    if not folders:
        raise FedProtoError(
            f"{folder}: no node's state with a kept model in it; expected RUN/state/NODE of a "
            "simulation, or STATE-DIR/RUN-TOKEN/NODE of a deployed node"
        )
    if len(folders) > 1:
        more = f" and {len(folders) - _MOST_CHOICES} more" if len(folders) > _MOST_CHOICES else ""
        choices = ", ".join(map(str, folders[:_MOST_CHOICES]))
        raise FedProtoError(
            f"{folder}: contains the state of several nodes; name one: {choices}{more}"
        )
    return folders[0]


def kept_model(store: ClientStore, client: str, learner: AnyLearner) -> dict[str, Tensor]:
    """Return the client's kept model, without the client axis.

    The parameters that it predicts with have the task's names. An encoder from a first phase is
    included, and the method's memory as ``memory/…``. Parameters that the client never trained have
    their initial values. Raises `FedProtoError` if there is no kept model, or if parts of it are
    missing.
    """
    if (tensors := store.read_kept(client)) is None:
        raise FedProtoError(f"client {client!r}: no kept model")
    stored = unflatten(tensors, "parameters") | unflatten(tensors, PERSONAL)
    parameters = learner.initial_parameters() | stored
    missing = [name for name in parameters if learner.is_shared(name) and name not in stored]
    prefix = learner.task.encoder
    if not any(name.startswith(prefix) for name in parameters):  # it is from a first phase, if any
        first_phase = store.read_first_phase().items()
        parameters |= {name: value for name, value in first_phase if name.startswith(prefix)}
        encoder = (name for name in learner.task.initial_parameters() if name.startswith(prefix))
        missing += [name for name in encoder if name not in parameters]
    if missing:
        raise FedProtoError(f"client {client!r}: its kept model lacks {missing[0]!r}")
    parameters |= {f"{MEMORY}/{name}": value for name, value in unflatten(tensors, MEMORY).items()}
    if isinstance(learner, Predicts):
        model = learner.predictor({n: value.unsqueeze(0) for n, value in parameters.items()})
        parameters |= {name: value.squeeze(0) for name, value in model.items()}
    return parameters


def open_run(folder: Path) -> list[NodeState]:
    """Return the states of all nodes of a simulation. They lie in the run's folder.

    Raises `FedProtoError` if there is none, or if the run's task does not forecast.
    """
    return [require_forecasts(state) for state in states_of(folder, None)]


def owner_of(states: Sequence[NodeState], client: str) -> NodeState:
    """Return the state with the client's kept model. Raises `FedProtoError` if none has it."""
    if not isinstance(client, str):  # in Python, arguments may be swapped
        raise FedProtoError(f"the client is of type {type(client).__name__}, expected its name")
    owners = _owners(states)
    if client in owners:
        return owners[client]
    near = did_you_mean(client, owners)
    raise FedProtoError(
        f"{states[0].folder}: no kept model of client {client!r}; {near}there are models of "
        f"{_listed(owners)}"
    )


def _owners(states: Sequence[NodeState]) -> dict[str, NodeState]:
    return {name: state for state in states for name in state.store.kept_clients()}


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:_MOST_CHOICES]) + " …" * (len(names) > _MOST_CHOICES)


def model_and_task(state: NodeState, client: str) -> tuple[dict[str, Tensor], AnyTask]:
    """Return the client's `kept_model`, and the task that it was trained for."""
    settings = state.settings.of_client(client)
    task = make_task(settings, state.shape)
    learner = make_learner(settings, task, state.store.record(client).kept_round)
    return kept_model(state.store, client, learner), task


class Predictor:
    """A client's kept model, for new images or sequences.

    has_classes: whether it predicts a class, otherwise a number. columns: the classes, or y_hat.
    """

    def __init__(self, states: Sequence[NodeState], client: str | None) -> None:
        """client: None for the only one. Raises `FedProtoError` if no state has the client's model,
        if it forecasts series, or if the method cannot predict by itself."""
        folder = states[0].folder
        if task_record(states[0].settings.task).forecasts:
            raise FedProtoError(
                f"{folder}: its models forecast series; see fedproto forecast or Run.forecast"
            )
        if client is None:
            names = list(_owners(states))
            if len(names) > 1:
                listed = _listed(names)
                raise FedProtoError(f"name the client with --client; there are models of {listed}")
            client = names[0]
        state = owner_of(states, client)
        require_predicts(state.settings)
        self.has_classes = bool(state.shape.classes)
        self.columns = state.shape.classes or ("y_hat",)
        self._scale = state.store.record(client).scale
        self._parameters, task = model_and_task(state, client)
        assert isinstance(task, LabelledTask)  # as it does not forecast
        self._task = task

    def read(self, path: Path) -> tuple[Sequence[str], NewSamples]:
        """Return the names and values of samples in files, see `LabelledTask.read`."""
        return self._task.read(path)

    def __call__(self, samples: NewSamples) -> NDArray[np.float64]:
        """Return the classes' probabilities [n, C], or numbers in the data's units [n, 1].

        samples: see `Run.predict`. Raises `DataError` for samples that do not fit.
        """
        outputs = self._task.predictions(self._parameters, self._scale, samples).double()
        if not (finite := outputs.isfinite().all(dim=1)).all():
            place = int(finite.int().argmin())
            raise DataError(f"sample {place}: the model predicts no finite number for it")
        return (outputs.softmax(dim=1) if self.has_classes else outputs).cpu().numpy()


def require_predicts(settings: Settings) -> None:
    """Raise `FedProtoError` for a method whose kept models cannot predict by themselves."""
    if why := method_named(settings.method).cannot_predict(settings):
        raise FedProtoError(f"method = {settings.method!r}: a kept model predicts nothing: {why}")


def forecast(
    states: NodeState | Sequence[NodeState],
    series: Sequence[ClientSeries],
    steps: int,
    *,
    clients: Collection[str] = (),
    levels: Sequence[int] = LEVELS,
) -> tuple[list[ClientForecast], dict[str, str]]:
    """Return the clients' forecasts in the order of the series, and why others have none.

    states: the state of one node, or of all nodes of a run. series: see `load_histories`. Of their
    known columns, only those from the training are used. clients: the clients that must be
    forecast. If none are named, all that can be are forecast. levels: the levels of the intervals,
    in percent, from 1 to 99.

    Raises `DataError` if a required client cannot be forecast, if none can, if a known column of
    the training is missing or lacks a value, if the steps do not fit into memory, or if a series
    has another sampling step or another kind of times than in training.
    """
    for level in levels:
        if level not in range(1, 100):
            raise FedProtoError(f"level = {level!r}: expected a whole number from 1 to 99, percent")
    levels = [int(level) for level in levels]
    nodes = [states] if isinstance(states, NodeState) else list(states)
    for node in nodes:
        require_predicts(node.settings)
    owners = _owners(nodes)
    reasons = _reasons_against(nodes, owners, series)
    # If no client can be forecast, the error gives the reason for the first one in the data, or
    # else in the state.
    all_clients = [*(history.name for history in series), *reasons]
    for name in clients or ([] if None in reasons.values() else all_clients):
        if (reason := reasons.get(name, "neither in the data nor in the state")) is not None:
            models = "" if name in owners else f"; there are models of {_listed(owners)}"
            raise DataError(f"client {name!r} cannot be forecast: {reason}{models}")
    chosen = [history for history in series if reasons[history.name] is None]
    chosen = [history for history in chosen if not clients or history.name in clients]
    for place, history in enumerate(chosen):
        node = owners[history.name]
        _require_same_clock(history, _trained_on(node, history.name), node.settings.data)
        columns = node.store.record(history.name).response.get("columns", [])
        chosen[place] = _with_columns(history, columns, steps)
    require_room(8 * (2 + 2 * len(levels)) * steps * len(chosen), f"{steps} steps ahead")
    forecasts: dict[str, ClientForecast] = {}
    for node in nodes:
        node_series = [history for history in chosen if owners[history.name] is node]
        results = _forecasts(node, node_series, steps, levels)
        forecasts |= {result.client: result for result in results}
    left_out = {} if clients else {n: why for n, why in reasons.items() if why is not None}
    return [forecasts[history.name] for history in chosen], left_out


def trained_columns(
    states: Sequence[NodeState], future: KnownTable | None = None
) -> tuple[str, ...]:
    """Return the columns known in advance that a run's models were trained with, () for none.

    Raises `FedProtoError` if a table of the future is given, but the models cannot use it.
    """
    columns: list[str] = []
    for node in states:
        for client in node.store.kept_clients()[:1]:  # all clients of a run have the same
            columns = columns or node.store.record(client).response.get("columns", [])
    if future and set(columns) <= set(calendar_names(states[0].settings.data)):
        except_time = " other than those of the time" if columns else ""
        raise FedProtoError(
            f"{future.key}: the models were trained without columns known in advance{except_time}; "
            "leave it out"
        )
    return tuple(columns)


def _with_columns(series: ClientSeries, columns: Sequence[str], steps: int) -> ClientSeries:
    """Return the series with only those known columns that were used in its training.

    Raises `DataError` if one of them is missing or lacks a value that forecasts need.
    """
    if not columns:
        return replace(series, columns=(), known=np.empty((0, 0)))
    series = with_columns(series, columns, f"the data of client {series.name!r}")
    end = len(series.values)
    columns_ahead = np.full((end + steps, len(columns)), np.nan)
    rows = series.known[: end + steps]
    columns_ahead[: len(rows)] = rows
    is_missing = np.isnan(columns_ahead)
    has_begun = np.maximum.accumulate(~is_missing, axis=0)  # a column may begin late
    has_begun[end:] = True
    if (lacks := is_missing & has_begun).any():
        row = int(lacks.any(axis=1).argmax())
        raise DataError(
            f"client {series.name!r}: column {columns[int(lacks[row].argmax())]!r} has no value at "
            f"{series.when(row)}, and the forecast needs it until {series.when(end + steps - 1)}; "
            "give a table that has it with --covariates (in Python: future or X_df)"
        )
    return series


def _trained_on(node: NodeState, client: str) -> TrainedSeries:
    """Return what the client's kept model was trained on."""
    return TrainedSeries.read(node.store.record(client).scale, client)


def _reasons_against(
    nodes: Sequence[NodeState], owners: Mapping[str, NodeState], series: Sequence[ClientSeries]
) -> dict[str, str | None]:
    """Return why each client in the data or the states cannot be forecast, or None if it can."""
    place = nodes[0].folder if len(nodes) == 1 else nodes[0].folder.parent
    reasons: dict[str, str | None] = {
        history.name: _why_not(history, owners[history.name])
        if history.name in owners
        else f"it did not train: no kept model in {place}"
        for history in series
    }
    return {**dict.fromkeys(sorted(owners), "not in the data"), **reasons}


def _why_not(series: ClientSeries, node: NodeState) -> str | None:
    """Return why the client's values are too few or too old, or None if they are neither."""
    data = node.settings.data
    if not len(series.values):
        return "no value is present"
    trained = _trained_on(node, series.name)
    end = series.end
    if end >= trained.end:
        return None
    if (clock := series.clock) is not None:
        before = trained.clock
        if before is None or (before.rhythm, before.utc) != (clock.rhythm, clock.utc):
            return None  # another clock. `_require_same_clock` refuses it if that matters
        return (
            f"its values end at {clock.time(end - 1)}, before those that it was trained on, which "
            f"end at {clock.time(trained.end - 1)}; give its values up to now"
        )
    if data.times:
        return (
            f"it has no times and ends at step {end}, but its training data ended at step "
            f"{trained.end}; with data.calendar = {data.calendar!r} give the data from where the "
            "training's began, so that steps are counted alike"
        )
    return None  # without times and calendar, a file of the newest values may begin anywhere


def _require_same_clock(series: ClientSeries, trained: TrainedSeries, data: DataSettings) -> None:
    """Refuse data with another sampling step, because periods would have another length.

    Also refuse local times for a model of times in UTC, or the reverse, because hours would
    differ."""
    if trained.clock is None:
        if data.times and series.clock is not None:
            raise DataError(
                f"client {series.name!r} has times, but its model was trained without any; with "
                f"data.calendar = {data.calendar!r} it needs steps counted as in its training"
            )
        return
    clock = series.clock
    if clock is not None and data.times and trained.clock.utc != clock.utc:
        have, had = ("with", "without") if clock.utc else ("without", "with")
        raise DataError(
            f"client {series.name!r} has times {have} an offset from UTC, but its model was "
            f"trained on times {had} one; with data.calendar = {data.calendar!r} hours would differ"
        )
    if clock is None or clock.rhythm != trained.clock.rhythm:
        problem = f"has the step {clock.rhythm}" if clock else "has no times to tell its step"
        raise DataError(
            f"client {series.name!r} {problem}, but its model was trained on the step "
            f"{trained.clock.rhythm}, {data.period} of them a period"
        )


def _forecasts(
    state: NodeState, series: Sequence[ClientSeries], steps: int, levels: Sequence[int]
) -> Iterator[ClientForecast]:
    """Yield the clients' forecasts, computed cohort by cohort, as in training."""
    size, by_name = state.settings.cohort_on_cpu, {client.name: client for client in series}
    for settings, names in state.settings.by_width(list(by_name)):
        task = ForecastingTask(settings)
        learner = make_learner(settings, task, settings.pretraining_rounds + 1)
        for first in range(0, len(names), size):
            cohort = [by_name[name] for name in names[first : first + size]]
            models = [kept_model(state.store, client.name, learner) for client in cohort]
            stacked = {name: torch.stack([model[name] for model in models]) for name in models[0]}
            scales = [_trained_on(state, client.name).scale for client in cohort]
            responses = [_response_of(state, client, settings.data.period) for client in cohort]
            history = _histories(cohort, scales, responses, state.settings.data)
            begin = np.array([client.end for client in cohort])
            missing = reach(settings.data) - np.array([len(client.values) for client in cohort])
            horizon, period = settings.data.horizon, settings.data.period
            times = begin[:, None] + np.arange(math.ceil(steps / horizon) * horizon)
            empty = np.stack(
                [is_empty_time(*row, period) for row in zip(cohort, times, strict=True)]
            )
            values = _next_values(task, stacked, history, missing.clip(min=0), begin, empty)
            rows = zip(cohort, scales, responses, values[:, :steps], empty[:, :steps], strict=True)
            for client, scale, response, scaled, of_client in rows:
                if len(response):
                    scaled = scaled + response[len(client.values) :][:steps]
                stored = state.store.record(client.name).private
                widths = scale.original_size(kept_half_widths(stored, steps, levels))
                forecasts = scale.original(scaled)
                yield _client_forecast(client, scale, forecasts, widths, of_client, period, levels)


def _response_of(state: NodeState, client: ClientSeries, period: int) -> NDArray[np.float64]:
    """Return a client's response to the known columns on the series' standard scale [T'].

    It reaches from the first value to the end of the columns, and is empty if the model was trained
    without known columns."""
    numbers = state.store.record(client.name).response
    if not numbers:
        return np.zeros(0)
    return Response.read(numbers).values(client.known, client.start, period)


def _histories(
    cohort: Sequence[ClientSeries],
    scales: Sequence[Scale],
    responses: Sequence[NDArray[np.float64]],
    data: DataSettings,
) -> Matrix:
    """Return the newest values that the windows need, without the response [K, L].

    Gaps are filled as in training. Places before the first value of a short series are 0."""
    histories = np.zeros((len(cohort), reach(data)))
    for row, (client, scale) in enumerate(zip(cohort, scales, strict=True)):
        values = scale.standardised(client.values)
        if len(responses[row]):
            values = values - responses[row][: len(values)]
        newest = carry_forward(values)[-reach(data) :]
        histories[row, histories.shape[1] - len(newest) :] = newest
    return histories


@torch.no_grad()
def _next_values(
    task: ForecastingTask,
    models: Mapping[str, Tensor],
    history: NDArray[np.float64],
    missing: NDArray[np.int64],
    begin: NDArray[np.int64],
    empty: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return the next values [K, n] after the histories [K, L], on the models' scale.

    missing: [K], how many places of each history lie before its first value. begin: [K], the
    position of each client's first forecast on the source's clock. empty: [K, n], which times are
    empty. These take the value before them. n is a multiple of H.
    """
    data, length = task.settings.data, history.shape[1]
    values = np.concatenate([history, np.empty(empty.shape)], axis=1)
    for ahead in range(0, empty.shape[1], data.horizon):
        place, end = length + ahead, length + ahead + data.horizon
        times = (begin + ahead)[:, None]
        inputs = sample_inputs(values, np.array([place]), times, data, missing)
        values[:, place:end] = task.forecast(models, torch.from_numpy(inputs))[:, 0].numpy()
        source = np.where(empty[:, ahead : ahead + data.horizon], 0, np.arange(place, end))
        source = np.maximum(np.maximum.accumulate(source, axis=1), place - 1)
        values[:, place:end] = np.take_along_axis(values, source, axis=1)
    return values[:, length:]


def _client_forecast(
    series: ClientSeries,
    scale: Scale,
    values: NDArray[np.float64],
    half_widths: Matrix,
    empty: NDArray[np.bool_],
    period: int,
    levels: Sequence[int],
) -> ClientForecast:
    """Return a client's forecast, which has no values at its empty times.

    values, half_widths: [n] and [L, n], in the units of the series. Only the first H values have
    intervals.
    """
    if not np.isfinite(values).all():
        raise DataError(f"client {series.name!r}: its kept model gives no finite forecast")
    values[empty] = np.nan
    floor = scale.floor(series.values)
    present = np.flatnonzero(np.isfinite(series.values))
    return ClientForecast(
        client=series.name,
        values=np.maximum(values, floor),
        limits=limits_of(values, half_widths, floor, levels),
        first=series.end,
        clock=series.clock,
        last=float(series.values[present[-1]]),
        gap=len(series.values) - 1 - int(present[-1]),
        table=series.table,
        decimals=decimals_of(series.values),
        empty_times=empty_times_text(series, period) if empty.any() else "",
    )


def limits_of(
    values: NDArray[np.float64],
    half_widths: NDArray[np.float64],
    floor: float,
    levels: Sequence[int] = LEVELS,
) -> dict[str, NDArray[np.float64]]:
    """Return lo and hi [n] for each level: values [n] ± half_widths [L, n], but at least floor."""
    names = [f"{side}-{level}" for level in levels for side in ("lo", "hi")]
    ends = [values + sign * half for half in half_widths for sign in (-1, 1)]
    return dict(zip(names, (np.maximum(end, floor) for end in ends), strict=True))
