"""Write TensorBoard events, during a run (``output.tensorboard``) or from a finished run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedproto_app.core.errors import FedProtoError, optional
from fedproto_app.report.export.names import by_plain_names
from fedproto_app.report.export.tables import cell_number, numbers
from fedproto_app.report.runs import Run, read_clients, read_rounds

FOLDER = "tensorboard"  # in a run's folder
_OF_CLIENTS = (
    "client",
    "node",
    "group",
    "kept_round",
)  # columns of clients.csv without a distribution


def require_tensorboard(option: str) -> None:
    """Raise `SettingsError` if the library is missing. option: the option that needs it."""
    optional("tensorboardX", "tensorboard", option)


class EventLog:
    """Writes one file of events into a folder; the file is complete after each call.

    first_round: TensorBoard ignores what earlier files of the folder say about this and later
    rounds; 0 if there are no earlier files.
    """

    def __init__(self, folder: Path, first_round: int = 0) -> None:
        # SummaryWriter would start a process-wide queue and a thread for each run.
        self._proto = optional("tensorboardX.proto.event_pb2", "tensorboard", FOLDER)
        self._summary = optional("tensorboardX.summary", "tensorboard", FOLDER)
        writer = optional("tensorboardX.event_file_writer", "tensorboard", FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        # Two files of the same second need different names.
        self._file = writer.EventsWriter(str(folder / "events"), f".{time.time_ns()}")
        if first_round:
            log = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._write([], first_round, session_log=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def round(self, record: Mapping[str, Any]) -> None:
        """Write the figures of one line of rounds.jsonl."""
        figures = numbers({key: value for key, value in record.items() if key != "round"})
        self._scalars(figures, record["round"])

    def end(self, run: Run) -> None:
        """Write the results of the finished run: summary, clients' distributions, settings."""
        last = int(run.summary["rounds"])
        figures = {k: v for k, v in run.summary.items() if k not in ("rounds", "seed", "versions")}
        self._scalars({f"summary.{name}": value for name, value in numbers(figures).items()}, last)
        columns: dict[str, list[float]] = {}
        for row in read_clients(run.folder):
            for name, cell in row.items():
                if name not in _OF_CLIENTS and (value := cell_number(cell or "")) is not None:
                    columns.setdefault(f"clients.{name}", []).append(value)
        values_by_name = by_plain_names(columns)
        histograms = [self._histogram(name, values) for name, values in values_by_name.items()]
        lines = "\n".join(f"    {key} = {value!r}" for key, value in sorted(run.settings.items()))
        self._write([*histograms, self._summary.text("settings", lines)], last)

    def _histogram(self, name: str, values: Sequence[float]) -> Any:
        return self._summary.histogram(name, np.array(values), "auto")

    def _scalars(self, figures: Mapping[str, float], step: int) -> None:
        values_by_name = by_plain_names(figures)
        self._write(
            [self._summary.scalar(name, value) for name, value in values_by_name.items()], step
        )

    def _write(self, summaries: Sequence[Any], step: int, **fields: Any) -> None:
        values = [value for summary in summaries for value in summary.value]
        if values:
            fields["summary"] = type(summaries[0])(value=values)
        event = self._proto.Event(wall_time=time.time(), step=step, **fields)
        self._file.write_event(event)
        self._file.flush()


def write_events(runs: Sequence[Run], output: Path | None) -> list[Path]:
    """Write a folder of events for each run, and return the folders.

    A folder lies inside the run's folder, or has the run's name under `output`.
    """
    require_tensorboard("--to tensorboard")
    folders = [(output / run.folder.name if output else run.folder / FOLDER) for run in runs]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise FedProtoError(f"{folder}: two runs have this name; export one at a time")
        if any(folder.glob("*tfevents*")):
            raise FedProtoError(f"{folder}: holds events already; choose another --output")
    for run, folder in zip(runs, folders, strict=True):
        with EventLog(folder) as log:
            for record in read_rounds(run.folder):
                log.round(record)
            log.end(run)
    return folders
