"""Situations that people report: what can go wrong around a run.

Proxies are in tests/ops/test_superlink.py. docs/reliability.md has what was tried by hand.
"""

from __future__ import annotations

import json
import math
import shlex
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Message
from torch import Tensor, nn

from fedproto_app.core.errors import FederationError
from fedproto_app.core.wire import numpy_arrays
from fedproto_app.report.learning import learning_faults
from fedproto_app.report.runs import read_clients, read_rounds, read_run
from fedproto_app.server.checkpoint import newest_checkpoint
from tests.cli.conftest import Fedproto
from tests.cli.conftest import fedproto as fedproto
from tests.cli.conftest import signals_of_a_terminal as signals_of_a_terminal
from tests.helpers.local_grid import LocalGrid, run_small


def write_sites(folder: Path, **steps: int) -> Path:
    """Write hourly loads of so many steps, a CSV file per site."""
    folder.mkdir(parents=True)
    for number, (site, length) in enumerate(steps.items()):
        times = pd.date_range("2024-01-01", periods=length, freq="h", name="time")
        noise = np.random.default_rng(number).normal(size=length)
        values = 10 + 3 * np.sin(np.arange(length) * math.pi / 12) + 0.3 * noise
        pd.DataFrame({"load": values.round(3)}, index=times).to_csv(folder / f"{site}.csv")
    return folder


# --- too few rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "analytic", "kindred"])
def test_a_site_with_few_rows_takes_part_with_what_it_has(tmp_path: Path, method: str) -> None:
    sites = write_sites(tmp_path / "sites", a=600, b=600, short=60)
    data = {"data.source": "csv-folder", "data.path": str(sites), "data.clients": ""}
    folder, _ = run_small(tmp_path, nodes=1, method=method, rounds=2, **data)
    clients = read_clients(folder.path)
    assert clients.clients == ["a", "b", "short"]
    assert np.isfinite(clients["mse"]).all()
    assert not any(line["refused"] for line in read_rounds(folder.path))


# --- names of folders -----------------------------------------------------------------------


def test_printed_commands_can_be_pasted(
    fedproto: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands that one command prints are carried out as a shell would read them."""
    folder = tmp_path / "Müller & Söhne (2)" / 'ä\' $HOME; `ls` "b"' / ("n" * 200)
    write_sites(folder, site=800)
    monkeypatch.chdir(folder)
    (folder / "site.csv").rename(folder / "my 'site'.csv")
    outcomes = [fedproto("init", folder / "my 'site'.csv", "--out", folder / "my settings.toml")]
    [run] = commands(outcomes[0].err)
    outcomes.append(fedproto(*run, "--set=method=analytic", "--set=output.name=mine"))
    assert outcomes[1].code == 0, outcomes[1].err
    outcomes += [fedproto(*command) for command in commands(outcomes[1].err)]
    outcomes.append(fedproto("report", folder / "runs" / "mine"))
    assert len(outcomes) == 5  # also forecast and compare
    assert [outcome.code for outcome in outcomes] == [0] * 5, outcomes


def commands(printed: str) -> list[list[str]]:
    """Return the arguments of the commands that are suggested at the end."""
    lines = [line.removeprefix("next:").strip() for line in printed.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("fedproto ")]


# --- folders that cannot be written ---------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--set=output.dir=/proc/runs"], "error: output.dir: /proc/runs"),
        (["try", "{}/sites", "--quick", "--folder=/proc/t"], "error: /proc/t: "),
        (["demo", "/proc/demo"], "error: /proc/demo: "),
    ],
)
def test_a_folder_that_cannot_be_written_is_named_in_one_line(
    fedproto: Fedproto, tmp_path: Path, arguments: list[str], message: str
) -> None:
    write_sites(tmp_path / "sites", a=800, b=800)
    outcome = fedproto(*(argument.format(tmp_path) for argument in arguments))
    assert outcome.code == 2
    error = outcome.err.splitlines()[-1]
    assert error.startswith(message)
    assert "names another folder" in error or "output.dir" in error


def test_without_room_for_temporary_files_one_line_names_the_variable(
    fedproto: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    outcome = fedproto("run", "--set=method=analytic", f"--set=output.dir={tmp_path}")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == (
        "error: No usable temporary directory found in ['/proc']; TMPDIR names another"
    )


# --- GPUs -----------------------------------------------------------------------------------


def test_a_gpu_that_cannot_be_seen_is_one_line(
    fedproto: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # CUDA_VISIBLE_DEVICES=7
    outcome = fedproto("run", "--set=device=cuda", f"--set=output.dir={tmp_path}")
    assert outcome.code == 2
    assert outcome.err.endswith("error: device = 'cuda': this machine has 0 CUDA GPUs\n")


# --- training that learns nothing -----------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "rate", "signs"),
    [
        ("forecasting", 10.0, ["training diverged: the validation MSE is"]),
        ("forecasting", 1e-9, ["no progress: the validation error of round 1"]),
        ("forecasting", 0.01, []),
        ("classification", 1e-9, ["no progress", "no better than the most frequent class"]),
    ],
)
def test_a_run_that_learned_nothing_says_so(
    tmp_path: Path, task: str, rate: float, signs: list[str]
) -> None:
    changes = {"rounds": 4, "optimizer.learning-rate": rate}
    folder, _ = run_small(tmp_path, task, method="fedavg", **changes)
    faults = learning_faults(read_run(folder.path))
    assert len(faults) == len(signs)
    assert all(fault.startswith(sign) for fault, sign in zip(faults, signs, strict=True))


def test_without_an_error_from_the_start_there_is_nothing_to_learn(tmp_path: Path) -> None:
    folder, _ = run_small(tmp_path, "classification", method="solo", rounds=4)
    file = folder.path / "rounds.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    errors = [0.0, 0.01, 0.02, 0.01]
    changed = [
        json.dumps({**line, "validation_error": error})
        for line, error in zip(lines, errors, strict=True)
    ]
    file.write_text("".join(f"{line}\n" for line in changed))
    assert not any("no progress" in fault for fault in learning_faults(read_run(folder.path)))


# --- a user's code that raises --------------------------------------------------------------

BROKEN = False  # the model raises


class BreaksLater(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 4)

    def forward(self, values: Tensor) -> Tensor:
        if BROKEN:
            raise RuntimeError("shapes do not fit:\n(3, 4) and (5, 6)")
        return torch.tanh(self.linear(values))


def breaks_later(*, inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(OrderedDict(encoder=BreaksLater(inputs), head=nn.Linear(4, outputs)))


class BreaksInRoundTwo(LocalGrid):
    def answer(self, message: Message) -> Message | None:
        global BROKEN
        BROKEN = message.metadata.group_id == "2"
        try:
            return super().answer(message)
        finally:
            BROKEN = False


def test_a_model_that_raises_ends_the_run_with_round_node_and_error(tmp_path: Path) -> None:
    model = {"model.module": f"{__name__}:breaks_later", "method": "fedavg"}
    with pytest.raises(FederationError) as ended:
        run_small(tmp_path, grid=BreaksInRoundTwo, **model)
    message = str(ended.value)
    assert message.startswith("round 2: 2 of 2 nodes gave no usable reply")
    assert "0: no reply: RuntimeError('shapes do not fit:" in message
    assert "\n" not in message


def no_database(settings: object) -> Any:
    raise ConnectionError("client 'b': the database said no")


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_source_that_raises_is_one_line_with_its_place(
    fedproto: Fedproto, tmp_path: Path, command: str
) -> None:
    source = f"{__name__}:no_database"
    check = ["data", "check", "--source", source]
    run = ["run", f"--set=data.source={source}", f"--set=output.dir={tmp_path}"]
    outcome = fedproto(*(check if command == "check" else run))
    assert outcome.code == 2
    error = outcome.err.splitlines()[-1]
    assert error.startswith(
        f"error: data.source = '{source}' raised ConnectionError: client 'b': the database said no"
    )
    assert "(test_situations.py, line " in error


# --- declared sample weights ----------------------------------------------------------------


def test_the_mean_weighs_samples_up_to_five_median_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By hand, from the models that the clients sent, a client each node."""
    sites = write_sites(tmp_path / "sites", a=8_000, b=500, c=600, d=550, e=700)
    models: list[dict[str, Any]] = []

    def keep(_: int, reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            models.append(numpy_arrays(reply.content.array_records["arrays"]))
        return reply

    data = {"data.source": "csv-folder", "data.path": str(sites), "data.history": 0}
    changes = {"method": "fedavg", "rounds": 1, "optimizer.learning-rate": 1e-4}
    changes["aggregation.step-limit"] = 0  # the long client's update is not shortened
    folder, _ = run_small(tmp_path, nodes=5, tamper=keep, **changes, **data)
    samples = read_clients(folder.path)["samples"]
    weights = np.minimum(samples, 5 * np.median(samples))
    assert weights[0] < samples[0]
    weights = weights / weights.sum()
    checkpoint, _ = newest_checkpoint(folder.path / "checkpoint")
    for name, mean in checkpoint.model.items():
        expected = sum(w * model[name] for w, model in zip(weights, models, strict=True))
        np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-8)
    limit = int(5 * np.median(samples))
    lines = [record.getMessage() for record in caplog.records]
    assert f"event=limited-weight clients=1 first=a samples={limit}" in lines
