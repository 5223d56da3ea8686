"""Refusals, privacy, and the command that repeats a run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from fedproto_app.experiments.run_settings import changed_settings
from fedproto_app.report.page.tables import privacy, refusals_table, repeat_of
from fedproto_app.report.runs import Group, read_run
from fedproto_app.settings import Settings, settings_from
from fedproto_app.settings.reading import flat
from tests.report.made_runs import make_run, round_record


def group(folder: Path) -> Group:
    return Group((read_run(folder),))


def dumped(**settings: Any) -> dict[str, Any]:
    return settings_from(settings).model_dump(by_alias=True)


def test_the_line_repeats_the_run(tmp_path: Path) -> None:
    """The command line reads the command back as the settings of the run."""
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
    line = repeat_of(group(run), "fedavg")
    words = shlex.split(line.command)
    assert words[:2] == ["fedproto", "run"]
    assert words[-2:] == ["--nodes", "3"]
    table = changed_settings(None, words[3:-2:2])
    repeated = flat(settings_from(table).model_dump(by_alias=True))
    original = flat(settings_from(changes).model_dump(by_alias=True))
    differing = {key for key in original if original[key] != repeated[key]}
    assert differing == {"output.name", "nodes.minimum"}


def test_settings_at_their_default_are_not_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", settings=Settings().model_dump(by_alias=True))
    line = repeat_of(group(run), "fuels")
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
        ["fuels", "n0", "(whole node)", "not a number", "1", "2–2"],
    ]
    assert sentence.startswith("Of 6 orders to nodes, 1 were not answered in time; 3 replies were")
    none, fine = refusals_table([group(make_run(tmp_path / "b"))], ["fuels"])
    assert none is None
    assert fine == "All replies to 6 orders arrived in time and were used."


def test_privacy_is_told_where_it_was_counted(tmp_path: Path) -> None:
    """Runs without noise say so, and older runs say nothing."""
    spent = {"mechanism": "gaussian", "epsilon": 3.14159, "delta": 1e-5, "unit": "client"}
    records = [spent, {"mechanism": "none"}, None]
    groups = [
        group(make_run(tmp_path / f"{n}", privacy=record)) for n, record in enumerate(records)
    ]
    assert privacy(groups[1:], ["without", "old"]) == []
    entries = privacy(groups, ["with", "without", "old"])
    assert [(label, value) for label, value, _ in entries] == [
        ("with", "mechanism = gaussian"),
        ("with", "epsilon = 3.142"),
        ("with", "delta = 1e-05"),
        ("with", "unit = client"),
    ]
