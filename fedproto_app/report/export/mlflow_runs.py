"""Finished runs in MLflow's tracking store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fedproto_app.core.errors import FedProtoError, optional
from fedproto_app.report.export.names import by_plain_names, plain
from fedproto_app.report.export.tables import numbers
from fedproto_app.report.runs import Run, read_rounds

DIGEST = "fedproto.digest"  # the tag by which an exported run is found again
_ADDRESS = "MLFLOW_TRACKING_URI"
_DEFAULT = "mlflow"  # a folder
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # of one request
_MOST_LETTERS = 6000  # of a parameter's value
_FILES = ("*.toml", "*.json", "*.jsonl", "*.csv", "*.html", "pictures/*.png")


def write_mlflow(runs: Sequence[Run], output: str) -> str:
    """A run of MLflow for each, in an experiment of the dataset's name. Returns the address.

    output: the address of a tracking server or database, or a folder for a database and files;
    "": what MLFLOW_TRACKING_URI says, else the folder ``mlflow``.
    """
    mlflow = optional("mlflow", "mlflow", "--to mlflow")
    entities = optional("mlflow.entities", "mlflow", "--to mlflow")
    address, files = _place(output or os.environ.get(_ADDRESS, _DEFAULT))
    try:
        client = mlflow.MlflowClient(address)
        for run in runs:
            experiment = _experiment(client, plain(str(run.summary["dataset"])), files)
            _refuse_known(client, experiment, run)
            _write_run(client, entities, experiment, run)
    except mlflow.exceptions.MlflowException as error:
        said = str(error).splitlines()
        raise FedProtoError(f"{address}: {said[0] if said else error!r}") from None
    return address


def _place(output: str) -> tuple[str, str | None]:
    """The store's address, and where its files go if that is not the store's affair."""
    if "://" in output:
        return output, None
    folder = Path(output).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedProtoError(f"--output {folder}: {error.strerror}") from None
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "files").as_uri()


def _experiment(client: Any, name: str, files: str | None) -> str:
    known = client.get_experiment_by_name(name)
    if known is not None:
        return str(known.experiment_id)
    return str(client.create_experiment(name, artifact_location=files))


def _refuse_known(client: Any, experiment: str, run: Run) -> None:
    found = client.search_runs([experiment], f"tags.`{DIGEST}` = '{_digest(run)}'", max_results=1)
    if found:
        raise FedProtoError(
            f"{run.folder}: is there already, as MLflow's run {found[0].info.run_id}"
        )


def _digest(run: Run) -> str:
    """Of the run's summary, in which its seconds are told: no two runs have the same."""
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
            if file.is_file() and not file.is_symlink():  # a link may lead out of the run
                client.log_artifact(number, str(file), "pictures" if "/" in pattern else None)
    client.set_terminated(number, end_time=when)


def _metrics(entities: Any, run: Run, when: int) -> Iterator[Any]:
    for record in read_rounds(run.folder):
        told = {key: value for key, value in record.items() if key != "round"}
        for name, value in by_plain_names(numbers(told)).items():
            yield entities.Metric(name, float(value), when, record["round"])
    told = {key: value for key, value in run.summary.items() if key not in ("versions", "seed")}
    for name, value in by_plain_names(numbers(told, "summary.")).items():
        yield entities.Metric(name, float(value), when, int(run.summary["rounds"]))
