"""Refusals, privacy, and the line that repeats a run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from fedproto_app.experiments.run_settings import told
from fedproto_app.report.page.records import privacy, refusals_table, repeats
from fedproto_app.report.runs import Group, flat, read_run
from fedproto_app.settings import Settings, settings_from
from tests.report.made_runs import make_run, round_record


def group(folder: Path) -> Group:
    return Group((read_run(folder),))


def dumped(**settings: Any) -> dict[str, Any]:
    return settings_from(settings).model_dump(by_alias=True)


def test_the_line_repeats_the_run(tmp_path: Path) -> None:
    """What it says is read back by the command line as the settings that the run had."""
    changes = {
        "method": "fedavg",
        "seed": 3,
        "fuels.beta": 30.5,
        "data.path": "/tmp/my data/$(rm x) 'a'.csv",
        "data.name": "12",  # a text that looks like a number
        "optimizer.learning-rate": 0.01,
        "output.name": "elsewhere",
        "nodes.minimum": 3,
    }
    run = make_run(tmp_path / "a", settings=dumped(**changes))
    (run / "state").mkdir()
    [line] = repeats([group(run)], ["fedavg"])
    words = shlex.split(line.command)
    assert words[:2] == ["fedproto", "run"]
    assert words[-2:] == ["--nodes", "3"]
    given = told(None, words[3:-2:2])
    again = flat(settings_from(given).model_dump(by_alias=True))
    had = flat(settings_from(changes).model_dump(by_alias=True))
    differing = {key for key in had if had[key] != again[key]}
    assert differing == {"output.name", "nodes.minimum"}


def test_settings_at_their_default_are_not_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", settings=Settings().model_dump(by_alias=True))
    [line] = repeats([group(run)], ["fuels"])
    assert line.command == "fedproto run"
    assert not line.changed


def test_refusals_are_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    bad = {"node": "n0", "client": "c1", "reason": "not a number"}
    rounds = [
        round_record(1, refused=[bad], late=1),
        round_record(2, refused=[bad, {**bad, "client": ""}]),
        round_record(3),
    ]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
    table, sentence = refusals_table([group(run)], ["fuels"])
    assert table is not None
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["fuels", "n0", "c1", "not a number", "2", "1–2"],
        ["fuels", "n0", "(all of the node)", "not a number", "1", "2–2"],
    ]
    assert sentence.startswith("Of 6 orders to nodes 1 were not answered in time; 3 answers were")
    none, fine = refusals_table([group(make_run(tmp_path / "b"))], ["fuels"])
    assert none is None
    assert fine == "Of 6 orders to nodes every answer came in time and was used."


def test_privacy_is_told_where_it_was_counted(tmp_path: Path) -> None:
    """Runs without noise say so themselves; old ones say nothing."""
    spent = {"mechanism": "gaussian", "epsilon": 3.14159, "delta": 1e-5, "unit": "client"}
    told = [spent, {"mechanism": "none"}, None]
    groups = [group(make_run(tmp_path / f"{n}", privacy=one)) for n, one in enumerate(told)]
    assert privacy(groups[1:], ["without", "old"]) == []
    found = privacy(groups, ["with", "without", "old"])
    assert [(label, counted) for label, counted, _ in found] == [
        ("with", "mechanism = gaussian"),
        ("with", "epsilon = 3.142"),
        ("with", "delta = 1e-05"),
        ("with", "unit = client"),
    ]
