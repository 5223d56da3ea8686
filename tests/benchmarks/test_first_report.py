"""The benchmark measures the page's own commands, with all processes that they start."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from benchmarks.first_report import PAGE, Took, block_of, lines_of, measured, program_of


def test_the_page_has_the_measured_commands() -> None:
    page = PAGE.read_text(encoding="utf-8")
    settings, commands = block_of(page)
    assert tomllib.loads(settings)["data"]["path"] == "loads.csv"
    assert 'to_csv("loads.csv"' in program_of(page)
    assert [command.split()[1] for command in commands] == [
        "data", "run", "run", "compare", "report", "forecast",
    ]  # fmt: skip


def test_a_command_that_is_none_is_refused() -> None:
    page = "```\ncat > loads.toml <<END\n[data]\nEND\nrm -r runs\n```\n"
    with pytest.raises(SystemExit, match="not a command of fedproto: rm -r runs"):
        block_of(page)


def test_seconds_include_a_commands_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of the command counts, and nobody sees the checkout's code."""
    monkeypatch.setenv("PYTHONPATH", "checkout")
    program = tmp_path / "fedproto"
    program.write_text(
        '#!/bin/sh\nif [ -n "$PYTHONPATH" ] || [ "$1" = fail ]; then echo broken; exit 3; fi\n'
        "[ $1 = rest ] || sh -c 'i=0; while [ $i -lt 500000 ]; do i=$((i + 1)); done'\n"
    )
    program.chmod(0o755)
    work, idle = measured(["fedproto work", "fedproto rest"], program, tmp_path)
    assert work.processor > 0.1 > idle.processor
    assert work.clock > 0.1
    with pytest.raises(SystemExit, match="fedproto fail failed:\nbroken"):
        measured(["fedproto fail"], program, tmp_path)


def test_the_table() -> None:
    lines = lines_of([Took("fedproto run", 10.04, 6.0), Took("fedproto compare", 2.0, 2.5)], 0.25)
    assert lines[3:6] == [
        "| `fedproto run` | 10.0 | 6.0 |",
        "| `fedproto compare` | 2.0 | 2.5 |",
        "| together | 12.0 | 8.5 |",
    ]
