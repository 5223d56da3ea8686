"""The display of a running experiment, and the file that it reads while it grows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedproto_app.report.progress import GrowingFile, Progress, keep_log
from fedproto_app.report.task_report import report_for
from tests.report.made_runs import classification_record, round_record


def test_a_line_is_returned_once_and_only_when_its_end_is_written(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    growing = GrowingFile(path)
    assert growing.new_lines() == []  # no file yet
    path.write_text("one\ntw")
    assert growing.new_lines() == ["one"]
    assert growing.new_lines() == []
    with path.open("a") as file:
        file.write("o\nthree\n")
    assert growing.new_lines() == ["two", "three"]


@given(
    text=st.text(alphabet="aé\n\r{", max_size=30),
    cuts=st.lists(st.integers(0, 40), max_size=5),
)
def test_however_a_file_grows_its_lines_come_out_whole(
    tmp_path_factory: pytest.TempPathFactory, text: str, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("growing") / "log"
    data = text.encode()
    growing, lines = GrowingFile(path), []
    for cut in [*sorted(cuts), len(data)]:
        path.write_bytes(data[:cut])
        lines += growing.new_lines()
    assert lines == data.decode().split("\n")[:-1]


def shown(records: list[dict[str, Any]], terminal: bool = False, task: str = "forecasting") -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=80, color_system=None)
    with Progress(console, 40, report_for(task).metrics.progress) as progress:
        progress.stage("starting the nodes")
        for record in records:
            progress.show(record)
        progress.say("[INFO] a line of the log")
    return text.getvalue()


def test_without_a_terminal_every_round_is_a_line() -> None:
    lines = shown([round_record(1), round_record(2)]).splitlines()
    assert lines[0] == "starting the nodes …"
    assert lines[1].startswith(
        "round 1/40  loss 4.0000  val MSE 1.0000  test MSE 1.5000  0:39 left  0:0"
    )
    assert lines[2].startswith(
        "round 2/40  loss 2.0000  val MSE 0.5000  test MSE 0.7500  0:38 left  0:0"
    )
    assert lines[3] == "[INFO] a line of the log"


def test_a_round_without_evaluation_shows_the_last_known_error() -> None:
    unknown = round_record(2, validation_mse=None, test_mse=None)
    lines = shown([round_record(1), unknown]).splitlines()
    assert "loss 2.0000  val MSE 1.0000  test MSE 1.5000" in lines[2]
    assert "MSE" not in shown([unknown]).splitlines()[1]
    assert "loss" not in shown([unknown | {"loss": {}}]).splitlines()[1]  # nobody trained


def test_the_time_left_follows_the_last_rounds_not_the_slow_first() -> None:
    seconds = [100.0, *[1.0] * 10]
    records = [round_record(i + 1, seconds={"total": s}) for i, s in enumerate(seconds)]
    lines = shown(records).splitlines()
    assert "1:05:00 left" in lines[1]
    assert "0:29 left" in lines[11]


def test_missing_and_refused_replies_are_told() -> None:
    refused = [
        {"node": "n1", "client": "a[0]", "reason": "prototype has NaN"},
        {"node": "n2", "client": "", "reason": "no reply"},
    ]
    text = shown([round_record(3, answered=1, refused=refused)])
    assert "round 3: 1 of 2 nodes answered\n" in text
    assert "round 3: refused node n1, client a[0]: prototype has NaN\n" in text
    assert "round 3: refused node n2: no reply\n" in text


def test_on_a_terminal_the_bar_moves_and_is_gone_at_the_end() -> None:
    text = shown([round_record(1), round_record(2)], terminal=True)
    assert "2/40" in text
    assert "test MSE 0.7500" in text
    assert "round 2/40" not in text
    assert text.endswith("\x1b[2K")  # the bar's line is erased


def test_a_classifier_shows_its_accuracies_in_percent() -> None:
    records = [classification_record(1, accuracy_global=None), classification_record(2)]
    lines = shown(records, task="classification").splitlines()
    assert "loss 4.0000  val error % 50.0  A_loc % 25.0  0:39 left" in lines[1]
    assert "loss 2.0000  val error % 25.0  A_loc % 50.0  A_glo % 40.0  0:38 left" in lines[2]


def test_a_log_for_which_there_is_no_room_raises_nothing(tmp_path: Path) -> None:
    """It would hide the error with which the run ended."""
    (tmp_path / "run.log").write_text("event=stopped")
    (tmp_path / "flower.log").symlink_to("/dev/full")
    keep_log(tmp_path / "run.log", tmp_path)
