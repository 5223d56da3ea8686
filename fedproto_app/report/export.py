"""Write finished runs for other tools: long tables as CSV or Parquet, TensorBoard, MLflow.

Names of losses and figures may come from users' methods or from sites, so they can be any text.
`plain` makes them safe for tools that use them as paths.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from fedproto_app.core.errors import FedProtoError, optional
from fedproto_app.core.whole_file import write_whole
from fedproto_app.report.run_files import CsvTable, Record, csv_text, read_table
from fedproto_app.report.runs import Run

RUN_COLUMNS = ("run", "method", "dataset", "seed")
KEYS = {"rounds": ("round",), "clients": ("client", "node"), "steps": ("step",)}  # by table
FOLDER = "tensorboard"  # in a run's folder
DIGEST = "fedproto.digest"  # the tag that identifies a run in MLflow
MOST_LETTERS = 200  # of a plain name
_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")
_ADDRESS, _DEFAULT = "MLFLOW_TRACKING_URI", "mlflow"  # the default is a folder
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # in one request to MLflow
_MOST_LETTERS = 6000  # in a parameter's value
_FILES = ("*.toml", "*.json", "*.jsonl", "*.csv", "*.html", "pictures/*.png")

Rows = list[tuple[object, ...]]
Item = TypeVar("Item")


def numbers(record: Mapping[str, object], prefix: str = "") -> dict[str, float]:
    """Return the finite numbers of a JSON object by their dotted names.

    Numbers in a list are named by their position from 1. Any other list counts as its length.
    """
    flat_numbers: dict[str, float] = {}
    for key, value in record.items():
        name = prefix + key
        if isinstance(value, list):
            if not all(item is None or _is_number(item) for item in value):
                flat_numbers[name] = len(value)
                continue
            value = {str(place): item for place, item in enumerate(value, 1)}
        if isinstance(value, Mapping):
            flat_numbers |= numbers(value, f"{name}.")
        elif isinstance(value, int | float) and _is_number(value) and isfinite(value):
            flat_numbers[name] = value
    return flat_numbers


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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


def by_plain_names(values: Mapping[str, Item]) -> dict[str, Item]:
    """Return the values by their `plain` names. The first wins if two names become equal."""
    plain_values: dict[str, Item] = {}
    for name, value in values.items():
        plain_values.setdefault(plain(name), value)
    return plain_values


# --- long tables --------------------------------------------------------------------------------


def long_tables(runs: Sequence[Run]) -> dict[str, Rows]:
    """Return the rows of each table that has some: the run's columns, `KEYS`, figure and value."""
    makers = {"rounds": _rows_of_rounds, "clients": _rows_of_clients, "steps": _rows_of_steps}
    tables: dict[str, Rows] = {
        name: [
            (run.folder.name, *(run.summary[column] for column in RUN_COLUMNS[1:]), *row)
            for run in runs
            for row in make(run)
        ]
        for name, make in makers.items()
    }
    return {name: rows for name, rows in tables.items() if rows}


def _rows_of_rounds(run: Run) -> Iterator[tuple[object, ...]]:
    for record in run.rounds:
        for figure, value in _of_round(record).items():
            yield record["round"], figure, float(value)


def _of_round(record: Record) -> dict[str, float]:
    return numbers({name: value for name, value in record.items() if name != "round"})


def _rows_of_clients(run: Run) -> Iterator[tuple[object, ...]]:
    return _rows_of_table(run.clients, zip(run.clients.clients, run.clients.nodes, strict=True))


def _rows_of_steps(run: Run) -> Iterator[tuple[object, ...]]:
    file = run.folder / "steps.csv"
    if not file.exists():
        return iter(())
    table = read_table(file)
    return _rows_of_table(table, ((int(step),) for step in table["step"]))


def _rows_of_table(
    table: CsvTable, keys: Iterable[tuple[object, ...]]
) -> Iterator[tuple[object, ...]]:
    figures = {name: table[name].tolist() for name in table.numbers if name != "step"}
    for row, key in enumerate(keys):
        for figure, values in figures.items():
            if isfinite(values[row]):
                yield *key, figure, values[row]


def write_csv(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write ``rounds.csv``, ``clients.csv`` and ``steps.csv``, and return the files."""
    return _write(runs, folder, ".csv", lambda titles, rows: csv_text([titles, *rows]).encode())


def write_parquet(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write ``rounds.parquet``, ``clients.parquet`` and ``steps.parquet``, and return the files."""
    arrow = optional("pyarrow", "parquet", "parquet")
    parquet = optional("pyarrow.parquet", "parquet", "parquet")
    types = dict.fromkeys(("seed", "round", "step"), arrow.int64()) | {"value": arrow.float64()}

    def content(titles: Sequence[str], rows: Rows) -> bytes:
        schema = arrow.schema([(name, types.get(name, arrow.string())) for name in titles])
        columns = dict(zip(titles, map(list, zip(*rows, strict=True)), strict=True))
        buffer = io.BytesIO()
        parquet.write_table(arrow.Table.from_pydict(columns, schema=schema), buffer)
        return buffer.getvalue()

    return _write(runs, folder, ".parquet", content)


def _write(
    runs: Sequence[Run],
    folder: Path,
    ending: str,
    content: Callable[[Sequence[str], Rows], bytes],
) -> list[Path]:
    tables = long_tables(runs)
    files = {folder / (name + ending): name for name in tables}
    for file in files:
        if file.exists():
            raise FedProtoError(f"{file}: exists already; choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    for file, name in files.items():
        titles = (*RUN_COLUMNS, *KEYS[name], "figure", "value")
        write_whole(file, content(titles, tables[name]))
    return list(files)


# --- TensorBoard --------------------------------------------------------------------------------


def require_tensorboard(option: str) -> None:
    """Raise `SettingsError` if the library is missing. option: the option that needs it."""
    optional("tensorboardX", "tensorboard", option)


class EventLog:
    """Writes one file of events into a folder. The file is complete after each call.

    first_round: TensorBoard ignores what earlier files of the folder say about this and later
    rounds, or 0 if there are no earlier files.
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

    def round(self, record: Record) -> None:
        """Write the figures of one line of rounds.jsonl."""
        self._scalars(_of_round(record), record["round"])

    def end(self, run: Run) -> None:
        """Write the results of the finished run: summary, clients' distributions, settings."""
        last = int(run.summary["rounds"])
        figures = {k: v for k, v in run.summary.items() if k not in ("rounds", "seed")}
        self._scalars(numbers(figures, "summary."), last)
        columns = {
            f"clients.{name}": run.clients.finite(name)
            for name in run.clients.numbers
            if name != "kept_round"
        }
        histograms = [
            self._summary.histogram(name, np.array(values), "auto")
            for name, values in by_plain_names(columns).items()
            if values
        ]
        lines = "\n".join(f"    {key} = {value!r}" for key, value in sorted(run.settings.items()))
        self._write([*histograms, self._summary.text("settings", lines)], last)

    def _scalars(self, figures: Mapping[str, float], step: int) -> None:
        values_by_name = by_plain_names(figures)
        self._write(
            [self._summary.scalar(name, value) for name, value in values_by_name.items()], step
        )

    def _write(self, summaries: Sequence[Any], step: int, **fields: object) -> None:
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
            for record in run.rounds:
                log.round(record)
            log.end(run)
    return folders


# --- MLflow -------------------------------------------------------------------------------------


def write_mlflow(runs: Sequence[Run], output: str) -> str:
    """Write each run into the MLflow experiment named after its dataset and return the address.

    output: the address of a tracking server or database, or a folder for a database and files. ""
    stands for the value of MLFLOW_TRACKING_URI, or the folder ``mlflow`` without it.
    """
    store = _MlflowStore(output or os.environ.get(_ADDRESS, _DEFAULT))
    store.write(runs)
    return store.address


class _MlflowStore:
    """MLflow's store at an address, or in a folder, whose files it then names itself."""

    def __init__(self, output: str) -> None:
        self._mlflow = optional("mlflow", "mlflow", "--to mlflow")
        self._entities = optional("mlflow.entities", "mlflow", "--to mlflow")
        self.address, self._files = output, None
        if "://" not in output:
            folder = Path(output).expanduser().absolute()
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FedProtoError(f"--output {folder}: {error.strerror}") from None
            self.address = f"sqlite:///{folder / 'mlflow.db'}"
            self._files = (folder / "files").as_uri()

    def write(self, runs: Sequence[Run]) -> None:
        """Add the runs, or raise `FedProtoError` if one was added before, or the store fails."""
        try:
            self._client = self._mlflow.MlflowClient(self.address)
            for run in runs:
                self._write(run, self._experiment(plain(str(run.summary["dataset"]))))
        except self._mlflow.exceptions.MlflowException as error:
            lines = str(error).splitlines()
            raise FedProtoError(f"{self.address}: {lines[0] if lines else error!r}") from None

    def _experiment(self, name: str) -> str:
        """Return the identifier of the experiment with this name."""
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=self._files))

    def _write(self, run: Run, experiment: str) -> None:
        summary, client = run.folder / "summary.json", self._client
        # The summary has the time that the run took, so no two runs have the same digest.
        digest = hashlib.sha256(summary.read_bytes()).hexdigest()
        same_digest = f"tags.`{DIGEST}` = '{digest}'"
        if exported := client.search_runs([experiment], same_digest, max_results=1):
            raise FedProtoError(
                f"{run.folder}: was already exported, as MLflow's run {exported[0].info.run_id}"
            )
        when = int(summary.stat().st_mtime * 1000)
        tags = {name: str(run.summary[name]) for name in ("method", "dataset", "seed")}
        started = client.create_run(
            experiment,
            start_time=when,
            tags=tags | {DIGEST: digest},
            run_name=plain(run.folder.name),
        )
        number = started.info.run_id
        parameters = (
            self._entities.Param(key, str(value)[:_MOST_LETTERS])
            for key, value in by_plain_names(run.settings).items()
        )
        for batch in _batches(parameters, _MOST_PARAMETERS):
            client.log_batch(number, params=batch)
        metrics = (
            self._entities.Metric(name, float(value), when, step)
            for figures, step in _figures_by_step(run)
            for name, value in by_plain_names(figures).items()
        )
        for batch in _batches(metrics, _MOST_METRICS):
            client.log_batch(number, metrics=batch)
        for pattern in _FILES:
            for file in sorted(run.folder.glob(pattern)):
                if file.is_file() and not file.is_symlink():  # a link may point outside of the run
                    client.log_artifact(number, str(file), "pictures" if "/" in pattern else None)
        client.set_terminated(number, end_time=when)


def _figures_by_step(run: Run) -> Iterator[tuple[dict[str, float], int]]:
    for record in run.rounds:
        yield _of_round(record), record["round"]
    summary = {name: value for name, value in run.summary.items() if name != "seed"}
    yield numbers(summary, "summary."), int(run.summary["rounds"])


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
