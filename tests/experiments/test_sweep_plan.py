"""What a sweep tries, as people write it: the table [sweep] and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.experiments.sweep_plan import Plan, trials_of

GRID = {"nodes": 2, "base": {}, "grid": {"fuels": {"beta": [10, 30]}, "method": ["fuels", "solo"]}}
DRAWN = {**GRID, "search": "random", "trials": 5, "range": {"rate": "1e-4..1e-2:log"}}


def changes(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(trial.changes) for trial in trials_of(Plan.read(table).listed())]


def test_a_grid_is_every_combination() -> None:
    assert changes(GRID) == [
        {"fuels.beta": 10, "method": "fuels"},
        {"fuels.beta": 10, "method": "solo"},
        {"fuels.beta": 30, "method": "fuels"},
        {"fuels.beta": 30, "method": "solo"},
    ]


@pytest.mark.parametrize(
    "values", [[1, 1.0, True, "1", "true"], [["a"], ["b", "c"]], ["a b", " x", "it's", '"', ""]]
)
def test_values_keep_their_types(values: list[Any]) -> None:
    tried = [change["a"] for change in changes({**GRID, "grid": {"a": values}})]
    assert [repr(value) for value in tried] == [repr(value) for value in values]


def test_drawn_trials_are_seeded_and_more_of_them_leave_the_first_as_they_are() -> None:
    drawn = changes(DRAWN)
    assert changes(DRAWN) == drawn
    assert changes({**DRAWN, "trials": 9})[:5] == drawn
    assert changes({**DRAWN, "search-seed": 1}) != drawn
    rates = [change["rate"] for change in changes({**DRAWN, "trials": 200})]
    assert all(1e-4 <= rate <= 1e-2 and rate == float(f"{rate:.4g}") for rate in rates)
    assert 0.3 < sum(rate < 1e-3 for rate in rates) / 200 < 0.7  # even in logarithms


@pytest.mark.parametrize(
    ("text", "tried"),
    [("1..3", {1, 2, 3}), ("1..3:log", {1, 2, 3}), ("0.100001..0.100002", {0.100001, 0.100002})],
)
def test_ends_of_ranges(text: str, tried: set[float]) -> None:
    """Equal draws are one trial. Rounding to few digits stays in the range."""
    table = {"nodes": 2, "base": {}, "search": "random", "trials": 60, "range": {"k": text}}
    drawn = [change["k"] for change in changes(table)]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) <= tried
    assert all(type(value) is type(next(iter(tried))) for value in drawn)


def test_before_drawing_all_values_and_ends_are_checked_with_each_method() -> None:
    table = {**DRAWN, "search": "optuna"}
    tried = [trial.changes for trial in Plan.read(table).corners()]
    assert {"fuels.beta": 30, "method": "solo", "rate": 1e-4} in tried
    assert {"fuels.beta": 10, "method": "fuels", "rate": 1e-2} in tried


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"grid": {}}, "nothing to sweep"),
        ({"grid": {"a": []}}, "grid of a = []: expected values"),
        ({"grid": {"a": [1, 2, 1]}}, "grid of a = [1, 2, 1]: a value is listed twice"),
        ({"grid": {"a": 3}}, "sweep.grid.a = 3: input should be a valid list"),
        ({"grid": 3}, "sweep.grid = 3: input should be a valid dictionary"),
        ({"grid": {"seed": [0, 1]}}, "--seeds"),
        ({"grid": {"output.dir": ["a"]}}, "output.dir: cannot be swept"),
        ({"seeds": [0, 0]}, "seeds = [0, 0]"),
        ({"seeds": []}, "seeds = []"),
        ({"seeds": [-1]}, "sweep.seeds.0 = -1: input should be greater than or equal to 0"),
        ({"seeds": 3}, "sweep.seeds = 3: input should be a valid list"),
        ({"seed": [0]}, "sweep.seed: unknown setting; did you mean sweep.seeds"),
        ({"search": "gird"}, "did you mean 'grid'"),
        ({"range": {"a": "1..2"}}, "--range a: a grid tries all"),
        ({"trials": 3}, "--trials: a grid tries all"),
        ({"trials": 0}, "sweep.trials = 0: input should be greater than or equal to 1"),
        ({"search": "random"}, "--search random: say how many"),
        ({"search": "random", "trials": 3, "range": {"method": "1..2"}}, "method: is swept twice"),
        ({"search": "random", "trials": 5001, "seeds": [0, 1]}, "are more than 10,000 runs"),
        ({"grid": {key: list(range(30)) for key in "abc"}}, "30 × 30 × 30 trials with 1 seeds"),
        *(
            ({"search": "random", "trials": 3, "range": {"a": text}}, f"range of a = {text!r}: ")
            for text in ("1", "2..1", "0..1:log", "x..1", "1..inf", "nan..1", "..", "1..2:lag")
        ),
    ],
)
def test_what_makes_no_sense_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        Plan.read({**GRID, **changed})
