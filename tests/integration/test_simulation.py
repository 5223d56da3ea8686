"""The real app through real Flower: `fedproto run` submits with `flwr run` to a SuperLink. Its
simulation must equal the same run in one process."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedproto_app.settings import Settings, flat_settings
from tests.helpers.local_grid import run_small, small_settings

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("fedproto")

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def clients(folder: Path) -> list[dict[str, str]]:
    with (folder / "clients.csv").open() as file:
        return list(csv.DictReader(file))


def command_of(settings: Settings) -> list[str]:
    """Return the `fedproto run` command of these settings."""
    # Real nodes have not replied at the first query.
    patience = {"nodes.start-deadline": 120.0, "nodes.round-deadline": 120.0}
    table = flat_settings(settings) | patience
    changes = [f"--set={key}={value}" for key, value in table.items()]
    changes = [change.replace("=True", "=true").replace("=False", "=false") for change in changes]
    return [str(PROGRAM), "run", "--engine=flower", "--app", str(ROOT), "--nodes", "2", *changes]


def run_in_flower(tmp_path: Path, settings: Settings) -> tuple[Path, str]:
    """Run in Flower and return the run's folder and its output."""
    command = command_of(settings)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return Path(settings.output.dir) / settings.output.name, done.stdout


def assert_same_clients(flower: Path, local: Path) -> None:
    """Check that printed results are equal to the last bit: one machine, one thread count."""
    numbers = [k for k in clients(flower)[0] if k not in ("client", "node", "group")]
    for ours, local_client in zip(clients(flower), clients(local), strict=True):
        assert ours["client"] == local_client["client"]
        for name in numbers:
            assert ours[name] == local_client[name], (ours["client"], name)


@pytest.mark.parametrize(
    ("task", "printed", "pictures"),
    [
        ("forecasting", "test MSE", {"rounds.png"}),
        (
            "classification",
            "test accuracy, own model (A_loc)",
            {"partition.png", "stages.png", "classes.png", "rounds.png"},
        ),
        ("sequence-classification", "accuracy", {"rounds.png"}),
    ],
)
def test_a_run_in_flowers_simulation_equals_the_run_in_one_process(
    tmp_path: Path, task: str, printed: str, pictures: set[str]
) -> None:
    changes = {"output.name": "flower", "output.pictures": True}
    flower, output = run_in_flower(tmp_path, small_settings(tmp_path, task, **changes))
    assert printed in output
    assert pictures <= {picture.name for picture in (flower / "pictures").glob("*.png")}
    local, _ = run_small(tmp_path, task, **{"output.name": "local"})
    assert_same_clients(flower, local.path)
    assert_same_rounds(flower, local.path)
    encoder = "model/global.safetensors"
    assert (flower / encoder).exists() == (local.path / encoder).exists()
    for file in [*local.path.glob("*.npz"), *local.path.glob(encoder)]:  # findings, and the model
        assert (flower / file.relative_to(local.path)).read_bytes() == file.read_bytes(), file


def assert_same_rounds(flower: Path, local: Path) -> None:
    """Check the rounds' reports except times, and bytes, which count the run's name."""
    differ = ("seconds", "node_seconds", "bytes_down", "bytes_up")
    ours, local_rounds = (
        [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        for run in (flower, local)
    )
    assert len(ours) == len(local_rounds)
    for first, second in zip(ours, local_rounds, strict=True):
        assert {k: v for k, v in first.items() if k not in differ} == {
            k: v for k, v in second.items() if k not in differ
        }


def test_a_simulation_that_is_ended_and_resumed_equals_one_in_one_process(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, rounds=8, **{"output.name": "flower"})
    flower = Path(settings.output.dir) / "flower"
    with subprocess.Popen(command_of(settings), cwd=tmp_path, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 120
            while len(finished_rounds(flower)) < 2:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert not (flower / "summary.json").exists()

    command = [str(PROGRAM), "run", "--engine=flower", "--app", str(ROOT), "--resume", str(flower)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "round 8/8" in done.stderr
    local, _ = run_small(tmp_path, rounds=8, **{"output.name": "local"})
    assert_same_clients(flower, local.path)
    assert len(finished_rounds(flower)) == 8


def finished_rounds(folder: Path) -> list[str]:
    rounds = folder / "rounds.jsonl"
    return rounds.read_text().splitlines() if rounds.exists() else []
