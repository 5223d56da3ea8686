"""Write finished runs for other tools: long tables as CSV or Parquet, TensorBoard, MLflow.

Names of losses and figures may come from users' methods or from sites, so they can be any text;
`plain` makes them safe."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from fedproto_app.core.errors import FedProtoError, optional
from fedproto_app.core.whole_file import write_whole
from fedproto_app.report.runs import Run, read_clients, read_rounds, read_table

RUN_COLUMNS = ("run", "method", "dataset", "seed")
# Names of the tables, and the key columns of their rows in addition to the run's columns.
ROUNDS, CLIENTS, STEPS = "rounds", "clients", "steps"
KEYS = {ROUNDS: ("round",), CLIENTS: ("client", "node"), STEPS: ("step",)}
_INTEGER_COLUMNS = ("seed", "round", "step")  # columns of integers
_NOT_FIGURES = ("round", "client", "node", "group", "step")


@dataclass(frozen=True)
class LongTable:
    """A long table. name: a key of `KEYS`. columns: the run's, the table's keys, figure, value."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def types(self) -> dict[str, type]:
        """Return the type of each column."""
        types = {**dict.fromkeys(_INTEGER_COLUMNS, int), "value": float}
        return {column: types.get(column, str) for column in self.columns}


def long_tables(runs: Sequence[Run]) -> list[LongTable]:
    """Return the tables that have rows."""
    makers = {ROUNDS: _rows_of_rounds, CLIENTS: _rows_of_clients, STEPS: _rows_of_steps}
    tables = [
        LongTable(
            name,
            (*RUN_COLUMNS, *KEYS[name], "figure", "value"),
            [(*_about(run), *row) for run in runs for row in make(run)],
        )
        for name, make in makers.items()
    ]
    return [table for table in tables if table.rows]


def numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the finite numbers of a JSON object by their dotted names.

    Numbers in a list are named by their position from 1; a list of anything else by its length.
    """
    flat_numbers: dict[str, float] = {}
    for key, value in record.items():
        name = prefix + key
        if isinstance(value, Mapping):
            flat_numbers |= numbers(value, f"{name}.")
        elif isinstance(value, list):
            if all(item is None or _is_number(item) for item in value):
                listed = {str(place): item for place, item in enumerate(value, 1)}
                flat_numbers |= numbers(listed, f"{name}.")
            else:
                flat_numbers[name] = len(value)
        elif _is_number(value) and isfinite(value):
            flat_numbers[name] = value
    return flat_numbers


def cell_number(cell: str) -> float | None:
    """Return the number in a cell of a CSV table, None if it is not a finite number."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _about(run: Run) -> tuple[Any, ...]:
    return run.folder.name, *(run.summary[name] for name in RUN_COLUMNS[1:])


def _rows_of_rounds(run: Run) -> Iterator[tuple[Any, ...]]:
    for record in read_rounds(run.folder):
        for figure, value in numbers(record).items():
            if figure not in _NOT_FIGURES:
                yield record["round"], figure, float(value)


def _rows_of_clients(run: Run) -> Iterator[tuple[Any, ...]]:
    for row in read_clients(run.folder):
        for figure, value in _figures(row):
            yield row["client"], row["node"], figure, value


def _rows_of_steps(run: Run) -> Iterator[tuple[Any, ...]]:
    file = run.folder / "steps.csv"
    if file.exists():
        for row in read_table(file):
            for figure, value in _figures(row):
                yield int(row["step"]), figure, value


def _figures(row: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for figure, cell in row.items():
        if figure not in _NOT_FIGURES and (value := cell_number(cell or "")) is not None:
            yield figure, value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_FORMULA = re.compile(r"[=@]|[+-].*[(|!]")


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return the rows as CSV; a cell that a spreadsheet would run as a formula starts with '."""
    text = io.StringIO()
    csv.writer(text).writerows([[_as_text(cell) for cell in row] for row in rows])
    return text.getvalue()


def _as_text(cell: Any) -> Any:
    runs = isinstance(cell, str) and _FORMULA.match(cell)
    return "'" + cell if runs else cell


MOST_LETTERS = 200

Value = TypeVar("Value")

_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")


def plain(name: str) -> str:
    """Return the name with slashes for dots, and other characters escaped by their numbers.

    The result never starts with a slash and has no empty part or part of dots, so that a tool that
    uses it as a path stays inside its folder.
    """
    parts = [
        _OTHER_CHARACTERS.sub(lambda match: f"_{ord(match[0]):x}_", part)
        for part in name.split(".")
    ]
    return "/".join(part or "_" for part in parts)[:MOST_LETTERS].rstrip("/")


def by_plain_names(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values by their `plain` names; the first wins if two names become equal."""
    plain_values: dict[str, Value] = {}
    for name, value in values.items():
        plain_values.setdefault(plain(name), value)
    return plain_values


def write_csv(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write ``rounds.csv``, ``clients.csv`` and ``steps.csv``, and return the files."""
    return _write(
        runs, folder, ".csv", lambda table: csv_text([table.columns, *table.rows]).encode()
    )


def write_parquet(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write ``rounds.parquet``, ``clients.parquet`` and ``steps.parquet``, and return the files."""
    arrow = optional("pyarrow", "parquet", "parquet")
    parquet = optional("pyarrow.parquet", "parquet", "parquet")
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}

    def content(table: LongTable) -> bytes:
        columns = list(zip(*table.rows, strict=True))
        schema = arrow.schema([(name, types[kind]) for name, kind in table.types().items()])
        arrays = [
            arrow.array(column, type=field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        buffer = io.BytesIO()
        parquet.write_table(arrow.Table.from_arrays(arrays, schema=schema), buffer)
        return buffer.getvalue()

    return _write(runs, folder, ".parquet", content)


def _write(
    runs: Sequence[Run], folder: Path, ending: str, content: Callable[[LongTable], bytes]
) -> list[Path]:
    tables = {folder / (table.name + ending): table for table in long_tables(runs)}
    for file in tables:
        if file.exists():
            raise FedProtoError(f"{file}: exists already; choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    for file, table in tables.items():
        write_whole(file, content(table))
    return list(tables)


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


DIGEST = "fedproto.digest"  # the tag that identifies an exported run
_ADDRESS = "MLFLOW_TRACKING_URI"
_DEFAULT = "mlflow"  # a folder
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # in one request
_MOST_LETTERS = 6000  # in a parameter's value
_FILES = ("*.toml", "*.json", "*.jsonl", "*.csv", "*.html", "pictures/*.png")


def write_mlflow(runs: Sequence[Run], output: str) -> str:
    """Write each run into the MLflow experiment named after its dataset; return the address.

    output: the address of a tracking server or database, or a folder for a database and files. ""
    stands for the value of MLFLOW_TRACKING_URI, or the folder ``mlflow`` without it.
    """
    mlflow = optional("mlflow", "mlflow", "--to mlflow")
    entities = optional("mlflow.entities", "mlflow", "--to mlflow")
    address, files = _place(output or os.environ.get(_ADDRESS, _DEFAULT))
    try:
        client = mlflow.MlflowClient(address)
        for run in runs:
            experiment = _experiment(client, plain(str(run.summary["dataset"])), files)
            _refuse_exported(client, experiment, run)
            _write_run(client, entities, experiment, run)
    except mlflow.exceptions.MlflowException as error:
        lines = str(error).splitlines()
        raise FedProtoError(f"{address}: {lines[0] if lines else error!r}") from None
    return address


def _place(output: str) -> tuple[str, str | None]:
    """Return the store's address, and the address for files, None if the store decides."""
    if "://" in output:
        return output, None
    folder = Path(output).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedProtoError(f"--output {folder}: {error.strerror}") from None
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "files").as_uri()


def _experiment(client: Any, name: str, files: str | None) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return str(experiment.experiment_id)
    return str(client.create_experiment(name, artifact_location=files))


def _refuse_exported(client: Any, experiment: str, run: Run) -> None:
    exported = client.search_runs(
        [experiment], f"tags.`{DIGEST}` = '{_digest(run)}'", max_results=1
    )
    if exported:
        raise FedProtoError(
            f"{run.folder}: was already exported, as MLflow's run {exported[0].info.run_id}"
        )


def _digest(run: Run) -> str:
    """Return a digest of the run's summary; it is unique because the summary has the run's time."""
    return hashlib.sha256((run.folder / "summary.json").read_bytes()).hexdigest()


def _write_run(client: Any, entities: Any, experiment: str, run: Run) -> None:
    when = int((run.folder / "summary.json").stat().st_mtime * 1000)
    tags = {name: str(run.summary[name]) for name in ("method", "dataset", "seed")}
    tags |= {DIGEST: _digest(run)}
    started = client.create_run(
        experiment, start_time=when, tags=tags, run_name=plain(run.folder.name)
    )
    number = started.info.run_id
    parameters = iter(
        entities.Param(key, str(value)[:_MOST_LETTERS])
        for key, value in by_plain_names(run.settings).items()
    )
    while batch := list(islice(parameters, _MOST_PARAMETERS)):
        client.log_batch(number, params=batch)
    metrics = _metrics(entities, run, when)
    while batch := list(islice(metrics, _MOST_METRICS)):
        client.log_batch(number, metrics=batch)
    for pattern in _FILES:
        for file in sorted(run.folder.glob(pattern)):
            if file.is_file() and not file.is_symlink():  # a link may point outside of the run
                client.log_artifact(number, str(file), "pictures" if "/" in pattern else None)
    client.set_terminated(number, end_time=when)


def _metrics(entities: Any, run: Run, when: int) -> Iterator[Any]:
    for record in read_rounds(run.folder):
        figures = {key: value for key, value in record.items() if key != "round"}
        for name, value in by_plain_names(numbers(figures)).items():
            yield entities.Metric(name, float(value), when, record["round"])
    figures = {key: value for key, value in run.summary.items() if key not in ("versions", "seed")}
    for name, value in by_plain_names(numbers(figures, "summary.")).items():
        yield entities.Metric(name, float(value), when, int(run.summary["rounds"]))
