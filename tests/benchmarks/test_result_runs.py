"""Runs behind the results' pages: finished ones stay, one that was cut off goes on."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.result_runs import Job, run

ROUNDS = 6
JOB = Job("page/small", "demo.toml", {"rounds": ROUNDS, "data.synthetic.clients": 3})


def cut_off(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of a run that is killed at its first checkpoint."""
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

    def begun(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        (tmp_path / "page" / "small" / "checkpoint").mkdir(parents=True)
        commands.append(command[1:])
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(subprocess, "run", begun)
    for job in (JOB, replace(JOB, changes={"rounds": 7})):
        with pytest.raises(SystemExit):
            run(job, tmp_path)
    assert not any("--resume" in command for command in commands)
