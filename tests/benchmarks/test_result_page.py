"""Runs behind a result page: finished runs stay, interrupted runs resume, others are refused."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import classification_results, fuels_results, sequence_results
from benchmarks.result_page import Experiment, Job, Page, finished, run
from tests.benchmarks.made_rows import make_row

SEQUENCES = sequence_results.PAGE.experiments["pendigits-clusters"]
IMAGES = classification_results.PAGE.experiments["digits"]


PAGES = [sequence_results.PAGE, classification_results.PAGE, fuels_results.PAGE]


@pytest.mark.parametrize("page", PAGES)
def test_every_row_is_accepted_as_it_would_be_made_now(tmp_path: Path, page: Page) -> None:
    for name, experiment in page.experiments.items():
        for row in experiment.rows:
            if not (tmp_path / experiment.rows[row].run_name(0)).exists():  # some share a run
                make_row(tmp_path, experiment, row)
        assert list(finished(experiment, tmp_path)) == list(experiment.rows), name


@pytest.mark.parametrize(
    ("experiment", "row", "changes", "message"),
    [
        (SEQUENCES, "a1", {"fed-react.affect-iterations": 9}, "affect-iterations = 9, which is 5"),
        (SEQUENCES, "a1", {"encoder.batch-size": 11}, "encoder.batch-size = 11, which is 10"),
        (SEQUENCES, "a1", {"method": "ifca"}, "method = 'ifca', which is 'fed-react'"),
        (SEQUENCES, "a1", {"encoder.path": ""}, "encoder.path = "),
        (SEQUENCES, "a1", {"fed-react.smoothing": None}, "smoothing = 'kalman', which is 'mean'"),
        (IMAGES, "gldp", {"gldp.memory": 0.25}, "gldp.memory = 0.25, which is 0.5"),
        (IMAGES, "fedavg", {"encoder.path": "a run"}, "encoder.path = "),
    ],
)
def test_a_run_of_other_settings_is_refused_even_where_the_row_leaves_the_default(
    tmp_path: Path, experiment: Experiment, row: str, changes: dict[str, Any], message: str
) -> None:
    make_row(tmp_path, experiment, row, **changes)
    with pytest.raises(SystemExit, match=message):
        finished(experiment, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 3, "device": "cuda", "threads": 2, "cohort-size": 1, "data.path": "/elsewhere"},
        {"output.dir": "/elsewhere", "nodes.minimum": 7},
        {"encoder.negatives": None, "flsc.overlap": None},  # younger than the run
        {"gone.since": 1},
        {"encoder.path": "/elsewhere/pendigits-clusters/encoder-svm-s0"},
    ],
)
def test_settings_without_effect_on_figures_may_differ(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    make_row(tmp_path, SEQUENCES, "a1", **changes)
    assert list(finished(SEQUENCES, tmp_path)) == ["a1"]


ROUNDS = 6
JOB = Job("page/small", "demo.toml", {"rounds": ROUNDS, "data.synthetic.clients": 3})


def cut_off(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Replace `subprocess.run`: the run is killed at its first checkpoint."""
    checkpoint = Path(next(part for part in command if part.startswith("output.dir="))[11:])
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not (checkpoint / "small" / "checkpoint").exists() and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()
    return subprocess.CompletedProcess(command, process.wait(), "", "killed")


@pytest.mark.exhaustive
def test_a_run_that_was_cut_off_goes_on_and_a_finished_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, commands = subprocess.run, list[list[str]]()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", cut_off)
        with pytest.raises(SystemExit, match="page/small failed"):
            run(JOB, tmp_path)

    def watched(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command[1:])
        return really(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    run(JOB, tmp_path)
    assert commands[0][:2] == ["run", "--resume"]
    lines = (tmp_path / "page" / "small" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, ROUNDS + 1))
    run(JOB, tmp_path)
    assert len(commands) == 1
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["small"]


def test_a_run_of_other_settings_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def fail_after_checkpoint(
        command: list[str], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "page" / "small" / "checkpoint").mkdir(parents=True)
        commands.append(command[1:])
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(subprocess, "run", fail_after_checkpoint)
    for job in (JOB, replace(JOB, changes={"rounds": 7})):
        with pytest.raises(SystemExit):
            run(job, tmp_path)
    assert not any("--resume" in command for command in commands)
