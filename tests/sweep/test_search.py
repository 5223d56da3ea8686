"""Optuna's trials: seeded, in batches, and the same ones after a kill."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.experiments.sweep.axes import Range, Values
from fedproto_app.experiments.sweep.plan import Plan, Trial
from fedproto_app.experiments.sweep.search import OptunaSearch

PLAN = Plan(
    base={},
    axes=(
        Range("optimizer.learning-rate", 1e-4, 1e-1, log=True),
        Range("fuels.beta", 1, 100),
        Values("data.columns", (["a"], ["a", "b"])),
    ),
    search="optuna",
    trials=7,
    seeds=(0,),
    nodes=2,
    search_seed=0,
    batch=3,
)


def error(changes: Mapping[str, Any]) -> float:
    return abs(changes["fuels.beta"] - 40) + changes["optimizer.learning-rate"]


def finish(search: OptunaSearch) -> list[Trial]:
    made: list[Trial] = []
    while trials := search.next():
        made += trials
        search.tell({one.number: error(one.changes) for one in trials})
    return made


def test_a_search_that_is_killed_goes_on_to_the_same_trials(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "whole").mkdir()
    whole = finish(OptunaSearch(tmp_path / "whole", PLAN))
    assert [trial.number for trial in whole] == [1, 2, 3, 4, 5, 6, 7]
    for trial in whole:
        assert 1e-4 <= trial.changes["optimizer.learning-rate"] <= 1e-1
        assert isinstance(trial.changes["fuels.beta"], int)
        assert trial.changes["data.columns"] in (["a"], ["a", "b"])

    first = OptunaSearch(tmp_path, PLAN)
    assert first.next() == whole[:3]
    second = OptunaSearch(tmp_path, PLAN)  # the first was killed before it told anything
    assert second.next() == whole[:3]
    second.tell({one.number: error(one.changes) for one in whole[:2]})  # killed while it told
    third = OptunaSearch(tmp_path, PLAN)
    assert third.next() == whole[2:3]
    third.tell({3: error(whole[2].changes)})
    assert finish(OptunaSearch(tmp_path, PLAN)) == whole[3:]
    assert OptunaSearch(tmp_path, PLAN).next() == []
    more = finish(OptunaSearch(tmp_path, replace(PLAN, trials=9)))
    assert [trial.number for trial in more] == [8, 9]


def test_a_failed_trial_is_told_and_not_repeated(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    search = OptunaSearch(tmp_path, replace(PLAN, trials=2))
    assert len(search.next()) == 2
    search.tell({1: None, 2: 0.5})
    assert search.next() == []


def test_without_optuna_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingsError) as told:
        OptunaSearch(tmp_path, PLAN)
    assert str(told.value).startswith("--search optuna: needs optuna")
    assert 'pip install "fedproto-app[sweep]"' in str(told.value)
