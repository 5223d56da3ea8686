"""Plans of sweeps: which trials, what is refused, how a sweep grows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.experiments.sweep.axes import Range, Values
from fedproto_app.experiments.sweep.plan import (
    Plan,
    Trial,
    continued,
    read_plan,
    require_plan,
    write_plan,
)

GRID = Plan(
    base={"rounds": 3},
    axes=(Values("fuels.beta", (10, 30)), Values("method", ("fuels", "fedavg"))),
    search="grid",
    trials=0,
    seeds=(0, 1),
    nodes=2,
    search_seed=0,
    batch=4,
)
DRAWN = replace(
    GRID,
    axes=(Values("method", ("fuels", "fedavg")), Range("fuels.beta", 1, 1000)),
    search="random",
    trials=5,
)


def changes(plan: Plan) -> list[Any]:
    return [dict(trial.changes) for trial in plan.listed()]


def test_a_grid_is_every_combination() -> None:
    assert changes(GRID) == [
        {"fuels.beta": 10, "method": "fuels"},
        {"fuels.beta": 10, "method": "fedavg"},
        {"fuels.beta": 30, "method": "fuels"},
        {"fuels.beta": 30, "method": "fedavg"},
    ]
    assert [trial.number for trial in GRID.listed()] == [1, 2, 3, 4]
    assert GRID.listed()[0].run_name(7) == "001-s7"


def test_drawn_trials_are_seeded_and_more_of_them_leave_the_first_as_they_are() -> None:
    assert changes(DRAWN) == changes(DRAWN)
    assert changes(replace(DRAWN, trials=9))[:5] == changes(DRAWN)
    assert changes(replace(DRAWN, search_seed=1)) != changes(DRAWN)
    # Of what else is swept an axis's draws do not depend.
    alone = replace(DRAWN, axes=DRAWN.axes[1:])
    assert [one["fuels.beta"] for one in changes(alone)] == [
        one["fuels.beta"] for one in changes(DRAWN)
    ]


def test_equal_draws_are_one_trial() -> None:
    few = replace(DRAWN, axes=(Values("method", ("fuels", "fedavg")),), trials=50)
    assert sorted(one["method"] for one in changes(few)) == ["fedavg", "fuels"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"axes": ()}, "nothing to sweep"),
        ({"axes": (*GRID.axes, GRID.axes[0])}, "fuels.beta: is swept twice"),
        ({"axes": (Values("seed", (0, 1)),)}, "--seeds"),
        ({"axes": (Values("output.dir", ("a",)),)}, "output.dir: a sweep has one --output"),
        ({"seeds": (0, 0)}, "seeds = "),
        ({"seeds": ()}, "seeds = "),
        ({"seeds": (-1,)}, "seeds = "),
        ({"axes": DRAWN.axes}, "--range fuels.beta: a grid has no ranges"),
        ({"trials": 3}, "--trials: a grid tries all"),
        ({"search": "random"}, "--search random: say how many"),
        (
            {"axes": tuple(Values(key, tuple(range(30))) for key in "abc")},
            "30 × 30 × 30 = 27,000 trials with 2 seeds are more than 10,000 runs",
        ),
        ({"search": "random", "trials": 5001}, "5,001 trials with 2 seeds are more than"),
    ],
)
def test_what_makes_no_sense_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError) as error:
        require_plan(replace(GRID, **changed))
    assert told in str(error.value)


def test_a_plan_is_read_back(tmp_path: Path) -> None:
    for plan in (GRID, DRAWN):
        write_plan(tmp_path, plan, plan.listed())
        assert read_plan(tmp_path) == (
            replace(plan, axes=read_plan(tmp_path)[0].axes),
            plan.listed(),
        )
        assert {axis.key: axis for axis in read_plan(tmp_path)[0].axes} == {
            axis.key: axis for axis in plan.axes
        }


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "grid": 3}'])
def test_a_damaged_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(SettingsError, match=r"plan\.json: cannot be read"):
        read_plan(tmp_path)


def test_no_plan(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"plan\.json: holds no sweep: No such file"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"base": {"rounds": 4}}, "holds another sweep: rounds = 4, was 3"),
        ({"base": {}}, "rounds = 'not set', was 3"),
        ({"nodes": 1}, "nodes = 1, was 2"),
        ({"axes": GRID.axes[:1]}, "method: not swept, was a list"),
        ({"axes": (Values("fuels.beta", (10,)), GRID.axes[1])}, "a sweep can only grow"),
        ({"seeds": (0,)}, "a sweep can only grow"),
        ({"seeds": (0, 1, 2)}, "say --extend"),
        ({"axes": (Values("fuels.beta", (5, 10, 30)), GRID.axes[1])}, "say --extend"),
    ],
)
def test_another_plan_is_refused(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    write_plan(tmp_path, GRID, GRID.listed())
    now = replace(GRID, **changed)
    with pytest.raises(SettingsError) as error:
        continued(tmp_path, now, now.listed(), extend=False)
    assert told.replace("'not set'", "not set") in str(error.value)


def test_a_grid_grows_behind_what_it_has(tmp_path: Path) -> None:
    write_plan(tmp_path, GRID, GRID.listed())
    assert continued(tmp_path, GRID, GRID.listed(), extend=False) == GRID.listed()
    now = replace(GRID, axes=(Values("fuels.beta", (5, 10, 30)), GRID.axes[1]))
    grown = continued(tmp_path, now, now.listed(), extend=True)
    assert grown == [
        *GRID.listed(),
        Trial(5, {"fuels.beta": 5, "method": "fuels"}),
        Trial(6, {"fuels.beta": 5, "method": "fedavg"}),
    ]


def test_a_random_search_grows(tmp_path: Path) -> None:
    write_plan(tmp_path, DRAWN, DRAWN.listed())
    now = replace(DRAWN, trials=7)
    assert continued(tmp_path, now, now.listed(), extend=True) == now.listed()
    other = replace(DRAWN, axes=(Values("method", ("fuels", "solo")), DRAWN.axes[1]))
    with pytest.raises(SettingsError, match="method: fuels, solo, was fuels, fedavg"):
        continued(tmp_path, other, other.listed(), extend=True)
