"""Forecast with the kept models of some clients of a finished simulation.

A simulation leaves its nodes' state in the run folder. Deployed nodes keep their state to
themselves. The clients shown are those with the best, the median and the worst test error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import FedProtoError
from fedproto_app.data.clock import Clock
from fedproto_app.data.scale import Scale
from fedproto_app.data.series import ClientSeries
from fedproto_app.report.runs import read_clients
from fedproto_app.settings import Settings
from fedproto_app.tasks.forecasting.metrics import FORECASTING

if TYPE_CHECKING:
    from torch import Tensor

    from fedproto_app.strategies.response.features import Response

_SAME_ERROR = 0.01  # relative; another device computes slightly different forecasts


@dataclass(frozen=True)
class Example:
    """A client to show, with its test MSE and its kept model.

    title: its rank, its name and, if known, its group: "best client c3 (office)". mse: on the
    standardised scale. parameters: the kept model's, without the client axis. response: the
    response that was subtracted from its series, or None.
    """

    title: str
    client: str
    mse: float
    parameters: dict[str, Tensor]
    response: Response | None = None


@dataclass(frozen=True)
class Forecast:
    """The test part of one client and its forecasts, in the data's units.

    truth: [n], NaN where missing. forecast: [n], made H values at a time, every H steps.
    half_widths: [L, n], half the widths of the forecasts' intervals. positions: [n], on the
    source's clock. mse: over all samples, on the standardised scale. scale: the scale of the
    series. floor: 0 for values that are never negative, else -inf. The forecasts are the model's
    output, before the floor is applied.
    """

    truth: NDArray[np.float64]
    forecast: NDArray[np.float64]
    half_widths: NDArray[np.float64]
    positions: NDArray[np.int64]
    clock: Clock | None
    mse: float
    scale: Scale
    floor: float = -np.inf


def ranked_clients(run_dir: Path, max_clients: int = 3) -> dict[str, str]:
    """Return, by client, titles of the clients with the best, the median and the worst test MSE.

    Up to `max_clients`, further clients follow in the order of their names. They are chosen evenly
    from the best to the worst. A title names the group, if known: "best client c3 (office)".
    With fewer than three clients, there are fewer titles.

    Raises `FedProtoError` if no client was evaluated.
    """
    errors = _evaluated(run_dir)
    if not errors:
        raise FedProtoError(f"{run_dir / 'clients.csv'}: no client has a test error")
    clients = sorted(errors, key=lambda client: (errors[client].mse, client))
    last = len(clients) - 1
    ranks = {last // 2: "median", last: "worst", 0: "best"}  # with few clients, "best" wins
    more = (
        set(np.linspace(0, last, min(max_clients, len(clients))).astype(int))
        if max_clients > len(ranks)
        else ()
    )
    in_between = sorted(set(more) - set(ranks), key=clients.__getitem__)
    titles = {}
    for place in (*sorted(ranks), *in_between[: max(0, max_clients - len(ranks))]):
        client = clients[place]
        rank, group = f"{ranks[place]} " if place in ranks else "", errors[client].group
        titles[client] = f"{rank}client {client}" + (f" ({group})" if group else "")
    return titles


def evaluated_clients(run_dir: Path) -> list[str]:
    """Return the names of the clients with a test error."""
    return list(_evaluated(run_dir))


def find_examples(
    run_dir: Path, settings: Settings, titles: Mapping[str, str] | None = None
) -> list[Example]:
    """Return the clients that have these titles, by default the titles of `ranked_clients`.

    Raises `FedProtoError` if a client was not evaluated or has no kept model.
    """
    evaluated, titles = _evaluated(run_dir), titles or ranked_clients(run_dir)
    if missing := [client for client in titles if client not in evaluated]:
        raise FedProtoError(f"{run_dir / 'clients.csv'}: client {missing[0]!r} has no test error")
    responses = kept_responses(run_dir, titles)
    examples = []
    for client, title in titles.items():
        node, _, mse = evaluated[client]
        parameters = _kept_parameters(run_dir / "state" / node, client, settings)
        examples.append(Example(title, client, mse, parameters, responses.get(client)))
    return examples


def kept_responses(run_dir: Path, clients: Iterable[str]) -> dict[str, Response]:
    """Return the responses in these clients' kept models. Clients without one are left out."""
    from fedproto_app.node.store import ClientStore
    from fedproto_app.strategies.response.features import Response

    evaluated, stores, responses = _evaluated(run_dir), dict[str, ClientStore](), {}
    for client in clients:
        node = evaluated[client].node
        store = stores.setdefault(node, ClientStore(run_dir / "state" / node))
        if numbers := store.record(client).response:
            responses[client] = Response.read(numbers)
    return responses


class _Evaluated(NamedTuple):
    """A client's node, its true group or "", and its test MSE."""

    node: str
    group: str
    mse: float


def _evaluated(run_dir: Path) -> dict[str, _Evaluated]:
    """Return the clients that have a test error."""
    table = read_clients(run_dir)
    errors = table[FORECASTING.headline.column.name].tolist()
    return {
        client: _Evaluated(*row)
        for client, *row in zip(table.clients, table.nodes, table.groups, errors, strict=True)
        if isfinite(row[-1])
    }


def _kept_parameters(node_dir: Path, client: str, settings: Settings) -> dict[str, Tensor]:
    from fedproto_app.node.store import ClientStore
    from fedproto_app.serving import kept_model
    from fedproto_app.strategies.common.learner import make_learner
    from fedproto_app.tasks.forecasting.task import ForecastingTask

    store = ClientStore(node_dir)
    if client not in store.kept_clients():
        raise FedProtoError(f"{node_dir}: no kept model of client {client!r}")
    client_settings = settings.of_client(client)
    task, method_round = ForecastingTask(client_settings), settings.pretraining_rounds + 1
    return kept_model(store, client, make_learner(client_settings, task, method_round))


def series_of(settings: Settings, clients: Iterable[str]) -> dict[str, ClientSeries]:
    """Return the clients' series, or raise `FedProtoError` if the data lack one of them.

    All charts of a report share one reading of the data. After a run in the same process, that
    run's reading is used.
    """
    from fedproto_app.data.shared_read import read_once
    from fedproto_app.data.sources import load_series

    series = {client.name: client for client in read_once(load_series, settings.data)}
    if missing := sorted(set(clients) - set(series)):
        raise FedProtoError(f"client {missing[0]!r} is not in the data, which have changed")
    return series


def kept_forecasts(examples: Sequence[Example], settings: Settings) -> list[Forecast]:
    """Return the kept models' forecasts for the clients' test parts, in the examples' order.

    Raises `DataError` if the data cannot be read. Raises `FedProtoError` if the data lack a client,
    or if a client's error differs from its error in the run, because data or model have changed.
    """
    from fedproto_app.serving import require_predicts

    require_predicts(settings)
    series = series_of(settings, (example.client for example in examples))
    forecasts = []
    for example in examples:
        forecast = _kept_forecast(example, series[example.client], settings)
        if not np.isclose(forecast.mse, example.mse, rtol=_SAME_ERROR, atol=0):
            raise FedProtoError(
                f"client {example.client!r}: its test MSE is {forecast.mse:g}, "
                f"but was {example.mse:g} in the run"
            )
        forecasts.append(forecast)
    return forecasts


def _kept_forecast(example: Example, series: ClientSeries, settings: Settings) -> Forecast:
    import torch

    from fedproto_app.data.windows import make_windows
    from fedproto_app.tasks.forecasting.intervals import follow
    from fedproto_app.tasks.forecasting.task import ForecastingTask

    task = ForecastingTask(settings.of_client(example.client))
    windows = make_windows(series, settings.data, example.response)
    parameters = {name: value.unsqueeze(0) for name, value in example.parameters.items()}
    samples, begin = task.gather([windows], 1), windows.train_end
    with torch.no_grad():
        forecasts = task.forecast(parameters, samples.inputs[:, begin:])  # (1, n, H)
    error = (forecasts - samples.targets[:, begin:]).double()
    parts = samples.is_validation[:, begin:], samples.is_test[:, begin:]
    in_test = slice(windows.validation_end - begin, None)
    half_widths = follow(error, *parts).at[:, 0, in_test].astype(np.float64)  # (L, n, H)
    scaled = forecasts[0, in_test].double().numpy()
    test, scale = windows.test, windows.scale
    truth = np.where(windows.present[test], windows.targets[test].astype(np.float64), np.nan)
    first = windows.first_test
    shown = slice(None, None, settings.data.horizon)  # each value once
    positions = first + np.arange(truth[shown].size)
    response = np.zeros(scaled.shape) if windows.explained is None else windows.explained[test]
    return Forecast(
        truth=series.values[positions - series.start],
        forecast=scale.original((scaled + response)[shown].ravel()),
        half_widths=scale.original_size(half_widths[:, shown].reshape(len(half_widths), -1)),
        positions=positions,
        clock=series.clock,
        mse=float(np.nanmean((scaled - truth) ** 2)),
        scale=scale,
        floor=scale.floor(series.values),
    )
