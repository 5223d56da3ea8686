"""The Python interface: run a simulation, read its results, use its models.

    import fedproto_app

    run = fedproto_app.run({"rounds": 10}, method="fuels")
    run.clients.sort_values("mse")
    run.forecast(frame, steps=24)

Mistakes and failures raise `FedProtoError` with the message that the command line would print.
docs/python.md shows more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedproto_app.core.endings import removed_if_empty
from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.loading import look_here_for_users_code
from fedproto_app.experiments.run_settings import (
    NODES,
    read_toml,
    resumed_settings,
    simulated_settings,
)
from fedproto_app.experiments.simulation import show_after, simulate_here
from fedproto_app.experiments.trial import try_file as try_file
from fedproto_app.report.runs import read_rounds, read_run
from fedproto_app.settings import Settings, settings_from
from fedproto_app.settings.reading import flat

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

Config = str | Path | Mapping[str, Any] | None


def run(
    config: Config = None,
    *,
    nodes: int = NODES,
    workers: int | None = None,
    progress: bool = True,
    **changes: Any,
) -> Run:
    """Simulate an experiment in this process and worker processes.

    config: a TOML file or a mapping of settings, over the defaults. changes: single settings over
    these, such as ``local_epochs=2``, or ``fuels__beta=30`` for a setting in a table. nodes: the
    number of simulated nodes. workers: the number of worker processes, which does not change
    results; None: one per core, as far as there is work. progress: show rounds as they end.
    """
    look_here_for_users_code()
    table = _table(config) | _changes(changes)
    settings = simulated_settings(table, nodes)
    return _simulated(settings, nodes, workers, progress)


def resume(
    path: str | Path, *, workers: int | None = None, progress: bool = True, **changes: Any
) -> Run:
    """Resume an interrupted run, or any run with more ``rounds`` or ``patience``."""
    look_here_for_users_code()
    assignments = [f"{key}={json.dumps(value)}" for key, value in _changes(changes).items()]
    settings, nodes = resumed_settings(str(path), None, assignments, None)
    return _simulated(settings, nodes, workers, progress)


def load(path: str | Path) -> Run:
    """Return the finished run in this folder."""
    return Run(Path(path).expanduser().resolve())


@dataclass(frozen=True)
class ClientModel:
    """The model that a client ended with.

    parameters: without a client axis, under the method's names. scale: of the client's values
    (forecasting: mean, std). errors: its validation and test metrics. kept_round: the model's
    round.
    """

    client: str
    node: str
    parameters: dict[str, Tensor]
    scale: dict[str, float]
    errors: dict[str, float]
    kept_round: int


class Run:
    """A finished run, read from its folder (docs/artefacts.md).

    path: the folder. summary: of summary.json. settings: all settings of the run.
    """

    def __init__(self, path: Path) -> None:
        stored = read_run(path)
        self.path = path
        self.summary: Mapping[str, Any] = stored.summary
        self.settings: Settings = settings_from(stored.settings)

    def __repr__(self) -> str:
        summary = self.summary
        description = f"{summary['method']} on {summary['dataset']}, {summary['rounds']} rounds"
        return f"<run of {description}: {self.path}>"

    @property
    def rounds(self) -> DataFrame:
        """The rounds of rounds.jsonl, a row each; nested figures have dots: ``loss.total``."""
        import pandas as pd

        return pd.json_normalize(read_rounds(self.path)).set_index("round")

    @property
    def clients(self) -> DataFrame:
        """The clients of clients.csv, a row each."""
        import pandas as pd

        return pd.read_csv(self.path / "clients.csv", dtype={"client": str, "node": str})

    def model(self, client: str) -> ClientModel:
        """Return a client's kept model, for a simulation, whose node state is in the folder.

        Raises `FedProtoError` if there is no such model.
        """
        from fedproto_app.node.store import ClientStore
        from fedproto_app.serving import kept_model
        from fedproto_app.strategies.common.learner import make_learner

        for folder in self._nodes():
            store = ClientStore(folder)
            if client in store.kept_clients():
                record = store.record(client)
                settings = self.settings.of_client(client)
                learner = make_learner(settings, self._task(settings), record.kept_round)
                parameters = kept_model(store, client, learner)
                return ClientModel(
                    client, folder.name, parameters, record.scale, record.metrics, record.kept_round
                )
        raise FedProtoError(f"{self.path}: no kept model of client {client!r}")

    def forecast(
        self, frame: DataFrame | None = None, steps: int = 1, clients: Collection[str] = ()
    ) -> DataFrame:
        """Forecast the next values of the clients' series with intervals, in the series' units.

        frame: the series up to now, a column per client, with times or any positions as its index;
        None: the series that the run's source has now. clients: the clients that must be forecast;
        (): all clients that can be forecast. Returns a row per client and step with the columns
        client, time (or step), forecast, lower_80, upper_80, lower_95 and upper_95; the last four
        are NaN without an interval, as beyond data.horizon steps. Raises `FedProtoError` if one of
        `clients`, or every client, cannot be forecast.
        """
        import pandas as pd

        from fedproto_app.data.series import series_of
        from fedproto_app.data.sources import from_first_value, load_histories
        from fedproto_app.serving import forecast, open_run, time_column

        states = open_run(self.path)
        look_here_for_users_code()
        if frame is None:
            series = load_histories(self.settings.data.model_copy(update={"max_steps": 0}))
        else:
            series = [from_first_value(client) for client in series_of(frame)]
        known_clients = sorted(name for state in states for name in state.store.kept_clients())
        unknown = [name for name in clients if name not in known_clients]
        if unknown or not any(client.name in known_clients for client in series):
            available = ", ".join(known_clients[:20])
            raise FedProtoError(
                f"no kept model of {unknown or 'any column'}; there are: {available}"
            )
        client_forecasts, _ = forecast(states, series, steps, clients)
        when = time_column(client_forecasts)
        tables = [
            pd.DataFrame(
                {
                    "client": client.client,
                    when: [
                        client.when(ahead) if when == "time" else client.first + ahead
                        for ahead in range(steps)
                    ],
                    "forecast": client.values,
                    **client.limits,
                }
            )
            for client in client_forecasts
        ]
        table = pd.concat(tables, ignore_index=True)
        if when == "time":
            table["time"] = pd.to_datetime(table["time"])
        return table

    def _nodes(self) -> list[Path]:
        """Return the folders of the nodes' state."""
        from fedproto_app.node.state_file import holds_kept_models

        folders = [
            folder
            for folder in sorted((self.path / "state").glob("*"))
            if holds_kept_models(folder)
        ]
        if not folders:
            raise FedProtoError(f"{self.path}: has no nodes' state; deployed nodes keep it")
        return folders

    def _task(self, settings: Settings) -> Any:
        """Return the task of these settings, for data with the shape of the run's data."""
        from fedproto_app.tasks.table import load_shard, make_task

        shape = load_shard(self.settings, 0, 1).shape
        return make_task(settings, shape)


def _simulated(settings: Settings, nodes: int, workers: int | None, progress: bool) -> Run:
    console = Console(stderr=True, quiet=not progress, highlight=False)
    folder = Path(settings.output.dir) / settings.output.name
    with removed_if_empty(folder):
        simulate_here(settings, nodes, workers, console, verbose=False)
    if settings.output.pictures:
        show_after(folder, console)
    return Run(folder)


def _table(config: Config) -> dict[str, Any]:
    """Return the settings of a file or a mapping, with dotted keys."""
    if config is None:
        return {}
    return flat(config if isinstance(config, Mapping) else read_toml(Path(config)))


def _changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as settings: ``fuels__beta`` is ``fuels.beta``."""
    return {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
