"""The faults' summaries of a run, and the harm that they do from inside a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import hook
from benchmarks.faults.table import Row, table
from benchmarks.faults.trial import summary


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


def test_the_table_has_all_kept_rows_in_the_order_of_the_faults(tmp_path: Path) -> None:
    import benchmarks.faults.__main__  # noqa: F401  the faults are entered

    late = Row("b", "in | out", "it came", good=True, same=None, lost=12.4)
    early = Row("a", "equal", "differs", good=False, same=False)
    for name, row in {"late-joiner": late, "clientapp-killed": early}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps([asdict(row)]))
    _, _, first, second, *_ = table(tmp_path)
    assert first == "| a | **not as expected** (equal): differs | **no** | – |"
    assert second == r"| b | in \| out | – | 12 |"


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
