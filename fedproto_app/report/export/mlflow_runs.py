"""Write finished runs into MLflow's tracking store."""

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
