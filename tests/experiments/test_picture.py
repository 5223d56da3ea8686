"""What the picture of a sweep joins by lines, and where it takes logarithms."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedproto_app.experiments.sweep import Plan, Trial
from fedproto_app.experiments.sweep_results import (
    Result,
    is_geometric,
    ranked,
    result_of,
    sweep_charts,
    through_choice,
)
from tests.report.made_runs import make_run

BETA, NOISE = "fuels.beta", "fuels.noise"
PLAN = Plan(nodes=2, base={}, grid={BETA: [10, 30, 90], NOISE: ["none", "laplace"]}, seeds=[0, 1])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1e-4, 1e-3, 1e-2), True),
        ((0.1, 1, 5, 10, 50), True),
        ((10, 30, 50, 70, 90), False),
        ((0.2, 0.5, 0.8, 1), False),
        ((4, 8, 16, 32), True),
        ((0, 1, 10), False),  # 0 has no logarithm
        ((-10, -1, -0.1), False),
        ((1, 1000), False),  # two points are even in any scale
        ((5, 5, 5), False),
    ],
)
def test_geometric(values: tuple[float, ...], expected: bool) -> None:
    assert is_geometric(values) == expected


def trials(folder: Path) -> list[Result]:
    """β and noise; β = 30 with laplace has the lowest mean, β = 10 the lowest median."""
    clients = {
        (10, "none"): (0.5, 0.5, 0.5),
        (30, "none"): (0.4, 0.4, 0.7),
        (90, "none"): (0.6, 0.6, 0.6),
        (10, "laplace"): (0.1, 0.1, 0.9),
        (30, "laplace"): (0.3, 0.3, 0.3),
        (90, "laplace"): (0.5, 0.6, 0.7),
    }
    return [
        result_of(
            Trial(number, dict(zip((BETA, NOISE), changes, strict=True))),
            "forecasting",
            {
                seed: make_run(
                    folder / f"{number}-{seed}",
                    validation=[error + seed / 10 for error in errors],
                    errors=(0.5,) * 3,
                    by_round=(sum(errors) / 3 + seed / 10,),
                )
                for seed in (0, 1)
            },
            {},
        )
        for number, (changes, errors) in enumerate(clients.items(), 1)
    ]


def test_the_line_goes_through_the_choice(tmp_path: Path) -> None:
    """Every other setting as in the choice, in the order of the values."""
    results = ranked(trials(tmp_path))
    joined = through_choice(BETA, results)
    assert [result.trial.changes[BETA] for result in joined] == [10, 30, 90]
    assert {result.trial.changes[NOISE] for result in joined} == {"laplace"}
    means = [(result.mean, result.median) for result in joined]
    assert [round(mean.mean, 3) for mean, _ in means if mean] == [0.417, 0.35, 0.65]
    assert [round(median.mean, 3) for _, median in means if median] == [0.15, 0.35, 0.65]
    assert through_choice(BETA, []) == []


def test_lines_join_the_trials_like_the_choice_and_the_others_are_dots(tmp_path: Path) -> None:
    results = trials(tmp_path)
    chart, by_name = sweep_charts(PLAN, results, {5})
    other_trials, mean, median, choice = chart.lines
    assert [line.label for line in chart.lines] == [
        "other trials",
        "mean over clients, which chooses",
        "median client, kept models",
        "choice",
    ]
    assert mean.x.tolist() == median.x.tolist() == [10, 30, 90]
    assert mean.y.tolist() == pytest.approx([0.417, 0.35, 0.65], abs=1e-3)
    assert mean.joined
    assert not other_trials.joined
    assert choice.error is not None
    assert (chart.x.log, list(chart.x.ticks)) == (True, [10, 30, 90])
    assert "laplace" in by_name.x.names
    assert chart.y == by_name.y
    assert sweep_charts(PLAN, [], {5}) == []
