"""The rules of docs/results/choice.md, on rows worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.choice_results import RULES, Answers, Row, choices, flattery, rivals, rules


def row(
    name: str, validation: list[float], test: list[float], best_round: float, megabytes: float
) -> Row:
    return Row(name, np.array(validation), np.array(test), best_round, 0.5, 9, megabytes, 0.25)


# Two clients. By kept models: means 0.2, 0.3, 0.25; medians are the means; ranks of the first
# client 1, 2, 3, of the second 2, 3, 1: 1.5, 2.5, 2. Above `lucky` by 0.1 ± 0 and 0.05 ± 0.15.
ROWS = [
    row("lucky", [0.1, 0.3], [0.8, 0.8], 0.5, 300),
    row("steady", [0.2, 0.4], [0.4, 0.4], 0.3, 200),
    row("cheap", [0.3, 0.2], [0.6, 0.4], 0.4, 100),
]
ANSWERS = {"toy": Answers(ROWS, [])}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [*zip(RULES, ["lucky", "lucky", "lucky", "cheap", "steady"], strict=True)],
)
def test_choice_of_each_rule(rule: str, expected: str) -> None:
    assert ROWS[int(RULES[rule](ROWS).argmin())].name == expected


def test_the_tables_lines() -> None:
    assert choices(ANSWERS)[1] == (
        "toy", "3", "steady, 25%", "lucky, 25%, +100.0%", "steady, 25%, +0.0%",
    )  # fmt: skip
    # Kept below the best round: 0.2 / 0.5, 0.3 / 0.3, 0.25 / 0.4; test beside 0.5: 0.8, 0.4, 0.5.
    assert flattery(ANSWERS)[1] == (
        "toy", "3", "-37.5% (-60.0% … +0.0%)", "+0.0% (-20.0% … +60.0%)",
    )  # fmt: skip
    # Test means 0.8, 0.4, 0.5: the best rounds 0.5, 0.3, 0.4 have their order.
    assert rules(ANSWERS)[-1][1:] == ("1 of 1", "0.0%", "0.0%", "1.00")


def test_rivals() -> None:
    """By their own errors the clients choose a and b; all together choose a. `steady`'s 0.4 beats
    the first client's 0.5 and not 0.3, and both of the second's."""
    alone = [
        row("a", [0.1, 0.3], [0.5, 0.6], 0.2, 0),
        row("b", [0.2, 0.1], [0.2, 0.3], 0.4, 0),
    ]
    line = rivals({"toy": Answers(ROWS, alone)})[1]
    assert line == ("toy", "0.4000", "0.5500", "50% and 100%", "0.2500")
