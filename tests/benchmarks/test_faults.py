"""The faults' summaries of a run, and the harm that they do from inside a process."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.faults import hook
from benchmarks.faults.table import Row, enter_rows
from benchmarks.faults.trial import summary
from fedproto_app.core import wire
from fedproto_app.core.messages import Reply
from tests.helpers.messages import order_message


def line(number: int, answered: int, *refused: dict[str, str]) -> dict[str, Any]:
    return {"round": number, "asked": 3, "answered": answered, "refused": list(refused)}


def test_rounds_that_went_alike_are_fault_settinggether() -> None:
    lost = {"node": "harbour", "client": "", "reason": "no reply within 30 s"}
    rounds = [line(1, 3), line(2, 2, lost), line(3, 3), line(4, 3)]
    assert summary(rounds) == (
        "round 1: 3 of 3 answered; "
        "round 2: 2 of 3 answered, harbour: no reply within 30 s; "
        "rounds 3–4: 3 of 3 answered"
    )


def test_the_table_keeps_its_rows_and_the_columns_of_other_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "faults.csv"
    early = Row("a", "equal", "", good=True, equal=True, lost=2.0)
    late = Row("b", "in, out", "it came", good=True, lost=12.4)
    for flower, rows in (
        ("1.100.2", [replace(early, lost=3.0)]),
        ("1.39.0", [early, late]),
        ("1.100.0", [replace(early, good=False, happened="it stays away")]),
    ):
        monkeypatch.setattr("benchmarks.faults.table.version", lambda _, flower=flower: flower)
        enter_rows(table, rows)
    with table.open(encoding="utf-8", newline="") as opened:
        first, second = csv.DictReader(opened)
    assert list(first) == [
        *("fault", "outcome", "result, 1.39", "seconds lost, 1.39", "made, 1.39"),
        *("result, 1.100", "seconds lost, 1.100", "made, 1.100"),
    ]
    assert list(first.values())[:4] == ["a", "equal", "same", "2"]
    assert list(first.values())[5:7] == ["not as expected: it stays away", "–"]
    assert list(second.values())[:4] == ["b", "in, out", "as expected", "12"]
    assert list(second.values())[5:] == ["not run"] * 3
    assert second["made, 1.39"].startswith("20")


@pytest.mark.parametrize("fault", ["poison", "crash-in-checkpoint"])
def test_the_hook_changes_a_module_of_a_process_that_is_fault_setting(
    tmp_path: Path, fault: str
) -> None:
    shutil.copyfile(hook.__file__, tmp_path / "sitecustomize.py")
    module, _ = hook.CHANGES[fault]
    name = {"poison": "write_reply", "crash-in-checkpoint": "flush"}[fault]
    code = f"import {module} as m; print(m.{name}.__module__)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    origins = {"poison": module, "crash-in-checkpoint": "fedproto_app.core.whole_file"}
    for fault_setting, expected in (({}, origins[fault]), ({"FAULT": fault}, "sitecustomize")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment | fault_setting,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.strip() == expected, done.stderr


def test_a_poisoned_node_sends_nan_in_round_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the client app calls it."""
    monkeypatch.setattr(wire, "write_reply", wire.write_reply)  # undone at the end
    hook.poison(wire)
    order = order_message()
    reply = Reply(["a", "b"], [10, 10], arrays={"w": np.ones((2, 2), np.float32)})
    poisoned = wire.write_reply(reply, reply_to=order, vector=None)
    assert order.metadata.group_id == "1"
    assert np.isnan(poisoned.content[wire.ARRAYS]["w"].numpy()).any()
