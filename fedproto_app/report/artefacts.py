"""Write the folder of a run. Other tools read its files, so their names and fields are stable.

``settings.toml``, ``rounds.jsonl``, ``clients.csv``, ``summary.json``, ``checkpoint/``, ``model/``
(methods with a global model), ``divergence.npz`` (FUELS), ``clusters.npz`` (Fed-REACT, IFCA,
closed forms in clusters), ``partition.csv`` (images and sequences with classes), ``classes.csv``
(images), ``steps.csv`` (forecasts of several steps), ``blocks.csv`` (forecasts).
docs/artefacts.md describes each file.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from importlib.metadata import version
from logging import WARNING
from pathlib import Path
from platform import python_version
from typing import Self

import numpy as np
import tomli_w
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from fedproto_app.core.clients import ClientKey, ClientResult
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.events import tell
from fedproto_app.core.messages import Arrays
from fedproto_app.core.methods import method_named
from fedproto_app.core.run_lock import RunLock
from fedproto_app.core.version import __version__
from fedproto_app.core.whole_file import flush, write_whole
from fedproto_app.report.run_files import Record, csv_text
from fedproto_app.report.runs import GIVEN_ENCODER, has_converged, read_rounds
from fedproto_app.report.task_report import Row, report_for
from fedproto_app.server.checkpoint import (
    Checkpoint,
    drop_later_checkpoints,
    longer,
    newest_checkpoint,
    resumable,
    stored_settings,
    write_checkpoint,
)
from fedproto_app.server.federation import Federation
from fedproto_app.server.round_log import RoundLog
from fedproto_app.settings import Settings, default_run_name

SETTINGS, ROUNDS, SUMMARY, ERROR = "settings.toml", "rounds.jsonl", "summary.json", "error.txt"
CHECKPOINT = "checkpoint"
PARTITION_COLUMNS = ("client", "stage", "class", "train_samples")


class RunFolder:
    """The only writer of one run's artefacts. Each file is written completely or not at all.

    It holds the run's lock until `close`, or during a ``with`` block. Raises `SettingsError` if
    another process holds the lock, or if the folder already holds a run. With ``output.resume``,
    the folder must instead hold a run that these settings can resume.

    settings: the run's settings. Those of a resumed run have its new number of rounds.
    """

    def __init__(self, settings: Settings) -> None:
        self.name = settings.output.name or default_run_name(settings)
        self.path = Path(settings.output.dir).expanduser().resolve() / self.name
        self._report = report_for(settings.task)
        self._started, self._earlier = time.monotonic(), 0.0
        self.settings = settings
        if settings.output.resume:
            stored_settings(self.path)  # there must be a run to lock
        else:
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock = RunLock(self.path)
        try:
            if settings.output.resume:
                self.settings = resumable(settings, self.path)
            else:
                self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the run's lock."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        if (self.path / SETTINGS).exists():
            raise SettingsError(
                f"output.name = {self.name!r}: {self.path} already holds a run; choose another "
                "name, or resume it with output.resume = true"
            )
        output = self.settings.output.model_copy(update={"name": self.name})
        self._write_settings(self.settings.model_copy(update={"output": output}))

    def _write_settings(self, settings: Settings) -> None:
        resolved = settings.model_dump(by_alias=True)
        write_whole(self.path / SETTINGS, tomli_w.dumps(resolved).encode())

    def resume(self) -> Checkpoint | None:
        """Go back to the run's newest complete checkpoint, and return it, or None without one."""
        checkpoint, faults = newest_checkpoint(self.path / CHECKPOINT)
        for fault in faults:
            tell("checkpoint-refused", WARNING, reason=fault)
        done = checkpoint.server_round if checkpoint else 0
        drop_later_checkpoints(self.path / CHECKPOINT, done)
        self._drop_later_rounds(done)
        for ending in (ERROR, SUMMARY):  # before anything is written, as the run is not finished
            (self.path / ending).unlink(missing_ok=True)
        self._write_settings(longer(stored_settings(self.path), self.settings))
        self._earlier = checkpoint.seconds if checkpoint else 0.0
        tell("resumed", run=self.name, round=done)
        return checkpoint

    def _drop_later_rounds(self, server_round: int) -> None:
        """Cut rounds.jsonl after this round, and drop a line that a crash left incomplete."""
        path = self.path / ROUNDS
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            kept_lines = [line for line in lines if 0 < _round_of(line) <= server_round]
            if lost := server_round - len(kept_lines):
                tell("rounds-lost", WARNING, lines=lost)
            write_whole(path, b"".join(kept_lines))

    def seconds(self) -> float:
        """Return the seconds that the run has taken, including the time before a resume."""
        return self._earlier + time.monotonic() - self._started

    def append_round(self, server_round: int, line: Record) -> None:
        """Add one line to rounds.jsonl."""
        with (self.path / ROUNDS).open("a") as rounds:
            rounds.write(json.dumps({"round": server_round, **line}, allow_nan=False) + "\n")

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write ``checkpoint/round-…/``, the state of the server after the round."""
        if (self.path / ROUNDS).exists():  # otherwise the checkpoint might be ahead of the file
            flush(self.path / ROUNDS)
        write_checkpoint(self.path / CHECKPOINT, replace(checkpoint, seconds=self.seconds()))

    def write_partition(self, federation: Federation) -> None:
        """Write ``partition.csv``: the known train samples by client, stage (1, 2, …) and class.

        Rows without samples are left out. If no row remains, no file is written.
        """
        classes = federation.shape.classes
        rows = [
            [key.client, stage, classes[label], samples]
            for key, facts in sorted(federation.members.facts.items())
            for stage, counts in enumerate(facts.class_counts, start=1)
            for label, samples in enumerate(counts)
            if samples > 0
        ]
        if rows:
            _write_table(self.path / "partition.csv", [PARTITION_COLUMNS, *rows])

    def write_clients(self, federation: Federation) -> None:
        """Write ``clients.csv`` and the task's other tables."""
        for name, rows in self._report.tables(federation).items():
            _write_table(self.path / name, rows)

    def write_summary(
        self,
        federation: Federation,
        costs: Mapping[str, int],
        rounds: int,
        stopped: str,
    ) -> None:
        """Write ``summary.json``. It is written last and thus marks a finished run.

        costs: sums over the lines of rounds.jsonl. "trainings" is the sum of their "clients".
        """
        trainings = costs["trainings"]
        every_round = costs["parameters_up"] - costs.get("parameters_up_once", 0)
        history = federation.history
        clients = len(history.trained | history.results.keys())
        settings, lines = self.settings, read_rounds(self.path)
        method = method_named(settings.method)
        validation = self._report.metrics.validation.round.name
        trains = method.rounds is None  # else the method sets the number, as a closed form does
        summary = {
            "status": "completed",
            "task": settings.task,
            "method": method.name,
            "title": method.title_for(settings.task),
            "dataset": settings.data.title,
            "clients": len(history.results),
            "rounds": rounds,
            "seed": settings.seed,
            "keep": settings.keep,
            "kernel": settings.kernel,
            "stopped": stopped,
            "converged": has_converged(line.get(validation) for line in lines) if trains else None,
            "privacy": federation.spending.report(),
            **self._report.summary_figures(federation, lines),
            "parameters_up_per_client_round": (round(every_round / trainings) if trainings else 0),
            "parameters_up_per_client": round(costs["parameters_up"] / clients) if clients else 0,
            **{cost: value for cost, value in costs.items() if cost != "trainings"},
            "seconds": round(self.seconds(), 3),
            "settings_digest": settings_digest(settings),
            "versions": {
                "python": python_version(),
                **{name: version(name) for name in ("flwr", "numpy")},
                "torch": torch.__version__,
                "fedproto-app": __version__,
            },
        }
        write_whole(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())

    def write_model(self, model: Arrays) -> None:
        """Write ``model/global.safetensors``, if there is a global model."""
        if model:
            folder = self.path / "model"
            folder.mkdir(exist_ok=True)
            contiguous = {name: np.ascontiguousarray(value) for name, value in model.items()}
            write_whole(folder / "global.safetensors", save(contiguous))

    def write_findings(self, findings: Mapping[str, Mapping[str, NDArray[np.generic]]]) -> None:
        """Write each of the method's findings as ``<name>.npz``, such as ``divergence.npz``."""
        for name, arrays in findings.items():
            content = io.BytesIO()
            np.savez(content, allow_pickle=False, **arrays)
            write_whole(self.path / f"{name}.npz", content.getvalue())

    def write_error(self, reason: str) -> None:
        """Write ``error.txt``, which says in one line why the run stopped."""
        write_whole(self.path / ERROR, (reason + "\n").encode())


def settings_digest(settings: Settings) -> str:
    """Return a digest of the settings that distinguish groups of runs.

    These are all settings except the seed, the backtest window, the output, the nodes and the path
    of a given encoder. The path is left out because each seed may have its own encoder.
    """
    table = settings.model_dump(exclude={"seed", "output", "nodes"}, by_alias=True)
    del table["data"]["backtest"]
    if settings.encoder.path:
        table["encoder"]["path"] = GIVEN_ENCODER
    return sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


def round_line(
    log: RoundLog,
    results: Mapping[ClientKey, ClientResult],
    seconds: Mapping[str, float],
    evaluated: bool,
    task: str,
) -> Record:
    """Return a round's line of rounds.jsonl. Losses are plain means over the trained clients."""
    terms = sorted({name for losses in log.losses.values() for name in losses})
    losses = {
        name: float(np.mean([log.losses[key].get(name, 0.0) for key in sorted(log.losses)]))
        for name in terms
    }
    return {
        "loss": losses,
        **report_for(task).round_figures(log, results, evaluated),
        "clients": len(log.losses),
        "asked": log.asked,
        "answered": log.answered,
        "late": log.late,
        "shortened": log.shortened,
        "refused": [asdict(refusal) for refusal in log.refused],
        "parameters_up": log.parameters_up,
        "parameters_up_once": log.parameters_up_once,
        "parameters_down": log.parameters_down,
        "bytes_up": log.bytes_up,
        "bytes_down": log.bytes_down,
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "node_seconds": round(log.node_seconds, 4),
        "figures": log.figures,
    }


def _round_of(line: bytes) -> int:
    """Return the round of a line of rounds.jsonl, or 0 if a crash left the line incomplete."""
    try:
        return int(json.loads(line)["round"]) if line.endswith(b"\n") else 0
    except (ValueError, KeyError, TypeError):
        return 0


def _write_table(path: Path, rows: Iterable[Row]) -> None:
    write_whole(path, csv_text(rows).encode())
