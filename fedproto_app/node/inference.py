"""A client's kept model forecasts the next values of its series.

Besides the tensors, a node leaves the run's settings in its state folder, and for every kept model
the scale of the values that it was trained on. New values are put on that scale, never on one of
their own. The model sees c close and q periodic values and no times, so a file may begin anywhere.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from fedproto_app.data.clock import Clock
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import carry_forward, lookback, window_positions
from fedproto_app.errors import DataError, FedProtoError
from fedproto_app.halves import make_learner
from fedproto_app.learners.learner import AnyLearner
from fedproto_app.node.store import SETTINGS_FILE, ClientStore, holds_kept_models, unflatten
from fedproto_app.node.trainer import PERSONAL
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.table import task_record

_DEEPEST = 3  # folders from a run's parent to a node's state: <run>/state/<node>
_NAMED = 20  # choices in a message


@dataclass(frozen=True)
class NodeState:
    """What one node keeps of one run."""

    folder: Path
    settings: Settings
    store: ClientStore


@dataclass(frozen=True)
class ClientForecast:
    """A client's next values, in the series' own units.

    values: [n]. first: position of the first one on the source's clock. last: the newest value that
    is present. gap: missing values between that and the first forecast.
    """

    client: str
    values: NDArray[np.float64]
    first: int
    clock: Clock | None
    last: float
    gap: int

    def when(self, ahead: int) -> str:
        """The time of a forecast, or its step from 0 on where the source has no times."""
        position = self.first + ahead
        return str(position) if self.clock is None else self.clock.time(position)


def open_state(folder: Path) -> NodeState:
    """The state in a node's folder, or in the only one below.

    Raises `FedProtoError` if there is none or a choice, or if it is of another task.
    """
    found = _state_folder(folder)
    try:
        text = (found / SETTINGS_FILE).read_text(encoding="utf-8")
        settings = settings_from(tomllib.loads(text))
    except FileNotFoundError:
        raise FedProtoError(
            f"{found}: no {SETTINGS_FILE} in it; the run was made before nodes kept one, so its "
            "models cannot be built again"
        ) from None
    except (OSError, ValueError) as error:
        raise FedProtoError(f"{found / SETTINGS_FILE}: {error}") from None
    if not task_record(settings.task).forecasts:
        raise FedProtoError(
            f"{found}: its models are of task = {settings.task!r}; only those of task = "
            "'forecasting' forecast"
        )
    return NodeState(found, settings, ClientStore(found))


def _state_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise FedProtoError(f"{folder}: no such folder")
    if holds_kept_models(folder):
        return folder
    found = sorted(
        path
        for depth in range(1, _DEEPEST + 1)
        for path in folder.glob("/".join("*" * depth))
        if path.is_dir() and holds_kept_models(path)
    )
    if not found:
        raise FedProtoError(
            f"{folder}: no node's state with a kept model in it; expected RUN/state/NODE of a "
            "simulation, or STATE-DIR/RUN-TOKEN/NODE of a deployed node"
        )
    if len(found) > 1:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        choices = ", ".join(map(str, found[:_NAMED]))
        raise FedProtoError(
            f"{folder}: the state of several nodes is in it, name one: {choices}{more}"
        )
    return found[0]


def kept_model(store: ClientStore, client: str, learner: AnyLearner) -> dict[str, Tensor]:
    """The client's kept model, without the client axis.

    The parameters that it predicts with have the task's names; the method's others are there too.
    What the client never trained is as it was at the start. Raises `FedProtoError` if there is
    no kept model, or not all of it.
    """
    try:
        kept = store.read_kept(client)
    except (SafetensorError, OSError) as error:
        raise FedProtoError(f"client {client!r}: its kept model is damaged: {error}") from None
    if kept is None:
        raise FedProtoError(f"client {client!r}: no kept model")
    stored = unflatten(kept, "parameters") | unflatten(kept, PERSONAL)
    parameters = learner.initial_parameters() | stored
    for name in parameters:
        if learner.is_shared(name) and name not in stored:
            raise FedProtoError(f"client {client!r}: its kept model lacks {name!r}")
    model = learner.predictor({name: value.unsqueeze(0) for name, value in parameters.items()})
    return parameters | {name: value.squeeze(0) for name, value in model.items()}


def forecast(
    state: NodeState, series: Sequence[ClientSeries], steps: int, clients: Collection[str] = ()
) -> tuple[list[ClientForecast], dict[str, str]]:
    """The next values of the clients in the order of the series, and why others have none.

    Each forecast counts as the newest value for the one after it. series: see `load_histories`.
    clients: those that must be forecast; if empty, all that can be. Raises `DataError` if one of
    these cannot be, if none can, or if a series has another step than in training.
    """
    data, store = state.settings.data, state.store
    reasons = _reasons_against(state, series)
    for name in clients or ([] if None in reasons.values() else sorted(reasons)):
        if (reason := reasons.get(name, "neither in the data nor in the state")) is not None:
            raise DataError(f"client {name!r} cannot be forecast: {reason}")
    chosen = [one for one in series if reasons[one.name] is None]
    chosen = [one for one in chosen if not clients or one.name in clients]
    for one in chosen:
        _require_same_step(one, store.record(one.name).scale, data)
    made = list(_forecasts(state, chosen, steps))
    if clients:
        return made, {}
    return made, {name: reason for name, reason in reasons.items() if reason is not None}


def _reasons_against(state: NodeState, series: Sequence[ClientSeries]) -> dict[str, str | None]:
    """Why each client of the data or the state cannot be forecast, None if it can."""
    kept, data = state.store.kept_clients(), state.settings.data
    reasons: dict[str, str | None] = {
        one.name: _why_too_short(one, data)
        if one.name in kept
        else f"no kept model in {state.folder}"
        for one in series
    }
    return {**dict.fromkeys(kept, "not in the data"), **reasons}


def _why_too_short(series: ClientSeries, data: DataSettings) -> str | None:
    length, needed = len(series.values), lookback(data)
    if length == 0:
        return "no value is present"
    if length < needed:
        return (
            f"{length} steps from its first value on, but {data.close_window} close and "
            f"{data.periodic_window} periodic values at period {data.period} need {needed}"
        )
    return None


def _require_same_step(
    series: ClientSeries, scale: Mapping[str, float], data: DataSettings
) -> None:
    """Refuse data of another sampling step, in which a period would be another time."""
    if "step" not in scale:
        return
    trained = timedelta(seconds=scale["step"])
    given = None if series.clock is None else series.clock.step.item()
    if given != trained:
        found = "has no times to tell its step" if given is None else f"has the step {given}"
        raise DataError(
            f"client {series.name!r} {found}, but its model was trained on the step {trained} "
            f"(hours:minutes:seconds), {data.period} of them a period"
        )


def _forecasts(
    state: NodeState, series: Sequence[ClientSeries], steps: int
) -> Iterator[ClientForecast]:
    """Cohort by cohort, as in training."""
    size = state.settings.cohort_size
    task = ForecastingTask(state.settings)
    learner = make_learner(state.settings, task)
    for first in range(0, len(series), size):
        cohort = series[first : first + size]
        models = [kept_model(state.store, one.name, learner) for one in cohort]
        stacked = {name: torch.stack([model[name] for model in models]) for name in models[0]}
        scales = [state.store.record(one.name).scale for one in cohort]
        values = _next_values(task, stacked, _histories(cohort, scales, state.settings.data), steps)
        for one, scale, scaled in zip(cohort, scales, values, strict=True):
            yield _in_units(one, scaled * scale["std"] + scale["mean"])


def _histories(
    cohort: Sequence[ClientSeries], scales: Sequence[Mapping[str, float]], data: DataSettings
) -> NDArray[np.float64]:
    """[K, L] the newest values that windows reach back to, gaps filled as in training."""
    return np.stack(
        [
            carry_forward((one.values - scale["mean"]) / scale["std"])[-lookback(data) :]
            for one, scale in zip(cohort, scales, strict=True)
        ]
    )


@torch.no_grad()
def _next_values(
    task: ForecastingTask, models: Mapping[str, Tensor], history: NDArray[np.float64], steps: int
) -> NDArray[np.float64]:
    """[K, L] → [K, steps], on the models' scale."""
    known = history.shape[1]
    values = np.concatenate([history, np.empty((len(history), steps))], axis=1)
    for place in range(known, known + steps):
        positions = window_positions(np.array([place]), task.settings.data)
        inputs = torch.from_numpy(values[:, positions].astype(np.float32))  # (K, 1, c + q)
        values[:, place] = task.forecast(models, inputs)[:, 0, 0].numpy()
    return values[:, known:]


def _in_units(series: ClientSeries, values: NDArray[np.float64]) -> ClientForecast:
    if not np.isfinite(values).all():
        raise DataError(f"client {series.name!r}: its kept model gives no finite forecast")
    present = np.flatnonzero(np.isfinite(series.values))
    length = len(series.values)
    return ClientForecast(
        client=series.name,
        values=values,
        first=series.start + length,
        clock=series.clock,
        last=float(series.values[present[-1]]),
        gap=length - 1 - int(present[-1]),
    )


def write_csv(forecasts: Sequence[ClientForecast], file: TextIO) -> None:
    """``client, time, forecast``, a row a client and step; ``step`` where there are no times."""
    timed = any(one.clock is not None for one in forecasts)
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["client", "time" if timed else "step", "forecast"])
    for one in forecasts:
        for ahead, value in enumerate(one.values.tolist()):
            table.writerow([one.client, one.when(ahead), f"{value:.10g}"])
