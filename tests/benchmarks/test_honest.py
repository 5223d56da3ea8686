"""What honest clients pay for the limits: the table's arithmetic, by hand."""

from __future__ import annotations

from benchmarks.attacks.honest import Case, Cost, table


def test_the_change_is_a_mean_over_seeds_and_unlimited_runs_are_the_same() -> None:
    first, second = Case("digits", "fedavg", {}), Case("digits", "fedrep", {})
    costs = {
        **{(first, seed): Cost(0, 100, 0, 10, 0.5, 0.5) for seed in (0, 1)},
        (second, 0): Cost(5, 100, 1, 10, 0.23, 0.2),
        (second, 1): Cost(0, 100, 0, 10, 0.18, 0.2),
    }
    assert table(costs)[2:] == [
        "| digits | `fedavg` | 0.0% | 0.0% | 0.5 | the same |",
        "|  | `fedrep` | 2.5% | 5.0% | 0.2 | +2.5% ± 17.7 |",
    ]
