"""A client's kept model forecasts the next values of its series.

Besides the tensors, a node leaves the run's settings in its state folder, and for every kept model
the scale of the values that it was trained on. New values are put on that scale, never on one of
their own. H values are forecast at once; more come from blocks of H, each taking the forecasts
before it for values.

Where models see the calendar, times are those of the source's clock, so a file may begin anywhere.
A source without times continues where its count stands: its data must begin where the training's
began, and data that end before the training's did are refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.errors import DataError, FedProtoError
from fedproto_app.core.methods import method_named
from fedproto_app.core.tasks import task_record
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import (
    carry_forward,
    lookback,
    lookback_text,
    time_numbers,
    window_positions,
)
from fedproto_app.node.blocks import DAMAGES, MEMORY, PERSONAL
from fedproto_app.node.records import ClientRecord, holds_kept_models
from fedproto_app.node.store import SETTINGS_FILE, ClientStore, unflatten
from fedproto_app.serving.forecasts import ClientForecast
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.strategies.common.halves import make_learner
from fedproto_app.strategies.common.learner import AnyLearner
from fedproto_app.tasks.forecasting.intervals import kept_half_widths
from fedproto_app.tasks.forecasting.task import ForecastingTask

_DEEPEST = 3  # folders from a run's parent to a node's state: <run>/state/<node>
_NAMED = 20  # choices in a message


@dataclass(frozen=True)
class NodeState:
    """What one node keeps of one run."""

    folder: Path
    settings: Settings
    store: ClientStore


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

    The parameters that it predicts with have the task's names; what the method remembers is there
    too, as ``memory/…``.
    What the client never trained is as it was at the start. Raises `FedProtoError` if there is
    no kept model, or not all of it.
    """
    try:
        kept = store.read_kept(client)
    except DAMAGES as error:
        raise FedProtoError(f"client {client!r}: its kept model is damaged: {error}") from None
    if kept is None:
        raise FedProtoError(f"client {client!r}: no kept model")
    stored = unflatten(kept, "parameters") | unflatten(kept, PERSONAL)
    parameters = learner.initial_parameters() | stored
    for name in parameters:
        if learner.is_shared(name) and name not in stored:
            raise FedProtoError(f"client {client!r}: its kept model lacks {name!r}")
    model = learner.predictor({name: value.unsqueeze(0) for name, value in parameters.items()})
    memory = {f"{MEMORY}/{name}": value for name, value in unflatten(kept, MEMORY).items()}
    return parameters | {name: value.squeeze(0) for name, value in model.items()} | memory


def open_run(folder: Path) -> list[NodeState]:
    """The states of all nodes of a simulation, which lie in the run's folder.

    Raises `FedProtoError` if there is none, or if the run is of another task.
    """
    found = [one for one in sorted((folder / "state").glob("*")) if holds_kept_models(one)]
    if not found:
        raise FedProtoError(
            f"{folder}: no nodes' state in it; expected the folder of a simulation (sites keep "
            "their own)"
        )
    return [open_state(one) for one in found]


def require_forecasts(settings: Settings) -> None:
    """`FedProtoError` for a method whose kept models do not forecast by themselves."""
    if why := method_named(settings.method).cannot_forecast:
        raise FedProtoError(f"method = {settings.method!r}: a kept model forecasts nothing: {why}")


def forecast(
    states: NodeState | Sequence[NodeState],
    series: Sequence[ClientSeries],
    steps: int,
    clients: Collection[str] = (),
) -> tuple[list[ClientForecast], dict[str, str]]:
    """The next values of the clients in the order of the series, and why others have none.

    states: of one node, or of all nodes of a run. series: see `load_histories`. clients: those that
    must be forecast; if empty, all that can be. Raises `DataError` if one of these cannot be, if
    none can, or if a series has another step than in training, or another count.
    """
    nodes = [states] if isinstance(states, NodeState) else list(states)
    for node in nodes:
        require_forecasts(node.settings)
    owners = {name: node for node in nodes for name in node.store.kept_clients()}
    reasons = _reasons_against(nodes, owners, series)
    for name in clients or ([] if None in reasons.values() else sorted(reasons)):
        if (reason := reasons.get(name, "neither in the data nor in the state")) is not None:
            raise DataError(f"client {name!r} cannot be forecast: {reason}")
    chosen = [one for one in series if reasons[one.name] is None]
    chosen = [one for one in chosen if not clients or one.name in clients]
    for one in chosen:
        node = owners[one.name]
        _require_same_clock(one, node.store.record(one.name).scale, node.settings.data)
    made: dict[str, ClientForecast] = {}
    for node in nodes:
        its = [one for one in chosen if owners[one.name] is node]
        made |= {one.client: one for one in _forecasts(node, its, steps)}
    left_out = {} if clients else {n: why for n, why in reasons.items() if why is not None}
    return [made[one.name] for one in chosen], left_out


def _reasons_against(
    nodes: Sequence[NodeState], owners: Mapping[str, NodeState], series: Sequence[ClientSeries]
) -> dict[str, str | None]:
    """Why each client of the data or the states cannot be forecast, None if it can."""
    place = nodes[0].folder if len(nodes) == 1 else nodes[0].folder.parent
    reasons: dict[str, str | None] = {
        one.name: _why_too_short(one, owners[one.name].settings.data)
        if one.name in owners
        else f"no kept model in {place}"
        for one in series
    }
    return {**dict.fromkeys(sorted(owners), "not in the data"), **reasons}


def _why_too_short(series: ClientSeries, data: DataSettings) -> str | None:
    length = len(series.values)
    if length == 0:
        return "no value is present"
    if length < lookback(data):
        return f"{length} steps from its first value on, too few for {lookback_text(data)}"
    return None


def _require_same_clock(
    series: ClientSeries, scale: Mapping[str, float], data: DataSettings
) -> None:
    """Refuse data of another sampling step, in which a period would be another time.

    Also those without times that cannot have been counted from where the training's were.
    """
    if data.times and series.clock is None and "end" in scale:
        end = series.start + len(series.values)
        if end < scale["end"]:
            raise DataError(
                f"client {series.name!r} has no times and ends at step {end}, but its training "
                f"data ended at step {scale['end']:.0f}; with data.calendar = {data.calendar!r} "
                "give the data from where the training's began, so that steps are counted alike"
            )
    if "step" not in scale:
        if data.times and series.clock is not None:
            raise DataError(
                f"client {series.name!r} has times, but its model was trained without any; with "
                f"data.calendar = {data.calendar!r} it needs steps counted as in its training"
            )
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
    size, by_name = state.settings.cohort_on_cpu, {one.name: one for one in series}
    for settings, names in state.settings.by_width(list(by_name)):
        task = ForecastingTask(settings)
        learner = make_learner(settings, task)
        for first in range(0, len(names), size):
            cohort = [by_name[name] for name in names[first : first + size]]
            models = [kept_model(state.store, one.name, learner) for one in cohort]
            stacked = {name: torch.stack([model[name] for model in models]) for name in models[0]}
            records = [state.store.record(one.name) for one in cohort]
            history = _histories(cohort, records, state.settings.data)
            begin = np.array([one.start + len(one.values) for one in cohort])
            values = _next_values(task, stacked, history, begin, steps)
            for one, record, scaled in zip(cohort, records, values, strict=True):
                yield _in_units(one, record, scaled)


def _histories(
    cohort: Sequence[ClientSeries], records: Sequence[ClientRecord], data: DataSettings
) -> NDArray[np.float64]:
    """[K, L] the newest values that windows reach back to, gaps filled as in training."""
    scales = [record.scale for record in records]
    return np.stack(
        [
            carry_forward((one.values - scale["mean"]) / scale["std"])[-lookback(data) :]
            for one, scale in zip(cohort, scales, strict=True)
        ]
    )


@torch.no_grad()
def _next_values(
    task: ForecastingTask,
    models: Mapping[str, Tensor],
    history: NDArray[np.float64],
    begin: NDArray[np.int64],
    steps: int,
) -> NDArray[np.float64]:
    """[K, L] → [K, steps], on the models' scale, H at once.

    begin: [K] position of each client's first forecast on the source's clock.
    """
    data, known = task.settings.data, history.shape[1]
    blocks = range(0, steps, data.horizon)
    values = np.concatenate([history, np.empty((len(history), len(blocks) * data.horizon))], axis=1)
    for ahead in blocks:
        place = known + ahead
        seen = values[:, window_positions(np.array([place]), data)].astype(np.float32)
        times = time_numbers(begin + ahead, data)[:, None]
        inputs = torch.from_numpy(np.concatenate([seen, times], axis=2))  # (K, 1, c + Q·H + j)
        values[:, place : place + data.horizon] = task.forecast(models, inputs)[:, 0].numpy()
    return values[:, known : known + steps]


def _in_units(
    series: ClientSeries, record: ClientRecord, scaled: NDArray[np.float64]
) -> ClientForecast:
    """Intervals are known for the H values that are forecast at once, and not beyond them."""
    mean, std = record.scale["mean"], record.scale["std"]
    values = scaled * std + mean
    if not np.isfinite(values).all():
        raise DataError(f"client {series.name!r}: its kept model gives no finite forecast")
    half_widths = kept_half_widths(record.private, len(values))
    present = np.flatnonzero(np.isfinite(series.values))
    length = len(series.values)
    return ClientForecast(
        client=series.name,
        values=values,
        half_widths=half_widths * std,
        first=series.start + length,
        clock=series.clock,
        last=float(series.values[present[-1]]),
        gap=length - 1 - int(present[-1]),
    )
