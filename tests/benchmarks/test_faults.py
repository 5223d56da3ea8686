"""The faults' summaries of a run, and the harm that they do from inside a process."""

from __future__ import annotations

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
from benchmarks.faults.table import Row, table, write_rows
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


def test_the_table_has_all_kept_rows_in_the_order_of_the_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import benchmarks.faults.__main__  # noqa: F401  the faults are entered

    late = Row("b", "in | out", "it came", good=True, same=None, lost=12.4)
    early = Row("a", "equal", "", good=True, same=True)
    for flower, lost in (("1.100.2", 3.0), ("1.39.0", 2.0)):
        monkeypatch.setattr("benchmarks.faults.table.version", lambda _, flower=flower: flower)
        write_rows(tmp_path, "clientapp-killed", [replace(early, lost=lost)])
    write_rows(tmp_path, "late-joiner", [late])
    differs = replace(early, good=False, same=False, happened="differs")
    monkeypatch.setattr("benchmarks.faults.table.version", lambda _: "1.100.0")
    write_rows(tmp_path, "clientapp-killed", [differs])
    head, _, first, second, _, made = table(tmp_path)
    assert head == (
        "| fault | outcome | same result, 1.39 | same result, 1.100 | seconds lost, 1.39 "
        "| seconds lost, 1.100 |"
    )
    assert first == "| a | **not as expected with 1.100** (equal): differs | yes | **no** | 2 | – |"
    assert second == r"| b | in \| out | – | not run | 12 | – |"
    assert "Flower 1.39: 20" in made
    assert "Flower 1.100: 20" in made


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
    poisoned = wire.write_reply(reply, to=order, vector=None)
    assert order.metadata.group_id == "1"
    assert np.isnan(poisoned.content[wire.ARRAYS]["w"].numpy()).any()
