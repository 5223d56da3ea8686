"""The sentence below a comparison, of figures worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.tasks import TASKS
from fedproto_app.report.comparison import pairs
from fedproto_app.report.taking_part import judged, taking_part
from fedproto_app.report.task_report import report_for
from fedproto_app.server.round_log import RoundLog
from tests.report.made_runs import (
    add_blocks,
    alone,
    grouped,
    make_classification_run,
    shared,
)


def sentences(*folders: Path) -> list[str]:
    return taking_part(grouped(*folders))


def test_it_pays(tmp_path: Path) -> None:
    """c0 takes solo (0.4), c1 naive (0.8), c2 solo (0.5), though naive tests better there. Four
    more clients halve their error. Ratios 0.5, 0.75, 1.2 and four times 0.5."""
    more = (0.5,) * 4
    folders = [
        shared(tmp_path / "a", (0.2, 0.6, 0.6, *more), validation=(0.05, 0.3, 0.05, *more)),
        alone(tmp_path / "b", (0.4, 0.7, 0.5, *(1.0,) * 4), validation=(0.1, 0.3, 0.1, *more)),
        alone(
            tmp_path / "c",
            (0.6, 0.8, 0.1, *(2.0,) * 4),
            validation=(0.2, 0.2, 0.2, *(0.6,) * 4),
            method="naive",
        ),
    ]
    (sentence,) = sentences(*folders)
    assert sentence == (
        "Federated learning pays for toy: with fuels the median client's test MAE is 50.0% lower "
        "than that of its best local model (95% CI 25.0–50.0%, 7 clients). 6 of 7 clients have a "
        "lower error, 1 a higher one. "
        # MASE is 3 times the MSE, the MAE in units 9 times.
        "Medians over the clients: MAE in the data's units 4.5 instead of 9, MASE 1.5 instead of "
        "3, MSE 0.5 instead of 1. Baseline: each client's best local model, the best of naive and "
        "solo by validation error. Not compared: seasonal-naive, mean, analytic."
    )


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ((0.9,) * 7, "Federated learning pays for toy: with fuels the median client's test MAE is "
         "10.0% lower than that of its best local model (95% CI 10.0–10.0%, 7 clients)."),
        ((0.99,) * 7, "Federated learning pays"),  # 1% is the least that matters
        ((0.995,) * 7, "Federated learning makes no difference for toy: with fuels the median "
         "client's test MAE is 0.5% lower than that of its best local model (95% CI 0.5–0.5%, "),
        ((1.0,) * 7, "Federated learning makes no difference for toy: with fuels the median "
         "client's test MAE is the same as that of its best local model (95% CI within 0.05%, "),
        ((1.0001,) * 7, "Federated learning makes no difference for toy: with fuels the median "
         "client's test MAE is the same as that of its best local model (95% CI within 0.05%, "),
        ((1.2,) * 7, "Federated learning harms the clients of toy: with fuels the median client's "
         "test MAE is 20.0% higher than that of its best local model (95% CI 20.0–20.0%, "),
        ((2.5,) * 7, "Federated learning harms the clients of toy: with fuels the median client's "
         "test MAE is 2.5 times that of its best local model (95% CI 2.5 to 2.5 times, "),
        ((0.5, 0.5, 0.5, 0.9, 1.5, 1.5, 1.5), "Whether federated learning pays is open for toy, "
         "because the difference may be chance: with fuels the median client's test MAE is 10.0% "
         "lower than that of its best local model (95% CI 50.0% lower to 50.0% higher, "),
        # Without an error a client is worse off by any measure.
        ((0.5, *(None,) * 6), "Federated learning harms the clients of toy: with fuels the median "
         "client's test MAE is far higher than that of its best local model (95% CI at least "),
    ],
)  # fmt: skip
def test_one_rule(errors: Sequence[float | None], expected: str, tmp_path: Path) -> None:
    (sentence,) = sentences(shared(tmp_path / "a", errors), alone(tmp_path / "b", (1.0,) * 7))
    assert sentence.startswith(expected)


def test_right_answers_are_stated_with_who_gains(tmp_path: Path) -> None:
    """Clients alone are right in 80%, and together two in 90%, three in 80% and one in 75%."""
    traffic = {"method": "analytic", "parameters_up": 6, "parameters_down": 6}
    together = make_classification_run(tmp_path / "a", (0.9, 0.9, 0.8, 0.8, 0.8, 0.75), **traffic)
    no_traffic = {"method": "solo", "parameters_up": 0, "parameters_down": 0}
    rival = make_classification_run(tmp_path / "b", (0.8,) * 6, **no_traffic)
    (sentence,) = sentences(together, rival)
    assert (
        "with analytic (federated), 82.5% of the answers are right instead of 80.0%, the mean over "
        "6 clients, of which 2 gain, 1 loses and 3 stay level" in sentence
    )


def test_fewer_than_six_clients_leave_it_open(tmp_path: Path) -> None:
    """However large their gain."""
    folders = shared(tmp_path / "a", (0.1,) * 5), alone(tmp_path / "b", (1.0,) * 5)
    (sentence,) = sentences(*folders)
    assert sentence.startswith(
        "Whether federated learning pays is open for toy, because a 95% interval needs 6 clients: "
        "with fuels the median client's test MAE is 90.0% lower than that of its best local model "
        "(5 clients). 5 of 5 clients have a lower error."
    )


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (7, "Federated learning pays for toy: with fuels the median client's test MAE is 50.0% "
         "lower than that of its best local model (95% CI 50.0–50.0%, 6 clients, 7 test days)."),
        (6, "Whether federated learning pays is open for toy, because a 95% interval needs 7 test "
         "days: with fuels the median client's test MAE is 50.0% lower than that of its best local "
         "model (6 clients, 6 test days)."),
    ],
)  # fmt: skip
def test_few_days_leave_it_open(days: int, expected: str, tmp_path: Path) -> None:
    together, rival = shared(tmp_path / "a", (0.5,) * 6), alone(tmp_path / "b", (1.0,) * 6)
    add_blocks(together, [[0.5 / days] * days] * 6)
    add_blocks(rival, [[1 / days] * days] * 6)
    (sentence,) = sentences(together, rival)
    assert sentence.startswith(expected)


def test_differences_that_print_as_nothing_count_for_neither_side(tmp_path: Path) -> None:
    errors = (0.5, 0.9999, 1.0, 1.0001, 2.0, 2.0)
    (sentence,) = sentences(shared(tmp_path / "a", errors), alone(tmp_path / "b", (1.0,) * 6))
    assert "1 of 6 clients have a lower error, 2 a higher one, 3 an equal one." in sentence


def test_figures_that_contradict_are_named(tmp_path: Path) -> None:
    """Six of seven gain, but the mean of six times 0.5 and 18 is 3, above 1."""
    folders = shared(tmp_path / "a", (*(0.5,) * 6, 18.0)), alone(tmp_path / "b", (1.0,) * 7)
    (sentence,) = sentences(*folders)
    assert sentence.startswith("Federated learning pays")
    assert " By the mean MAE (3, local 1) the best local model is better." in sentence


def test_whether_it_is_the_model_is_open_until_it_ran_alone(tmp_path: Path) -> None:
    sharing = {"kindred": {"sharing": "kin"}, "method": "kindred"}
    together = shared(tmp_path / "a", (0.5,) * 6, method="kindred", settings=sharing)
    solo = alone(tmp_path / "b", (1.0,) * 6, settings_digest="b")
    (open_,) = sentences(together, solo)
    assert open_.startswith(
        "Whether federated learning pays is open for toy, because the model of kindred (federated) "
        "did not run without sharing: with kindred (federated) the median client's test MAE is "
    )
    sharing = {"kindred": {"sharing": "none"}, "method": "kindred"}
    same_model = alone(
        tmp_path / "c", (0.8,) * 6, method="kindred", settings=sharing, settings_digest="c"
    )
    (sentence,) = sentences(together, solo, same_model)
    assert sentence.startswith("Federated learning pays")


def test_a_client_whose_values_repeat_is_left_out(tmp_path: Path) -> None:
    """Without a seasonal difference it has no MASE."""
    together, rival = shared(tmp_path / "a", (0.5, 7.0)), alone(tmp_path / "b", (1.0, 1.0))
    for folder in (together, rival):
        file = folder / "clients.csv"
        *rows, last = file.read_text().splitlines()
        cells = last.split(",")
        cells[rows[0].split(",").index("mase")] = ""
        file.write_text("\n".join([*rows, ",".join(cells)]) + "\n")
    (sentence,) = sentences(together, rival)
    assert " 1 of 1 clients have a lower error." in sentence
    assert " 1 client with values that hardly ever change left out." in sentence


def test_a_label_has_only_what_its_kind_needs(tmp_path: Path) -> None:
    """Two ways of sharing differ in a setting, but there is one local Kindred. Between equally good
    ways, the default is chosen."""
    kinds = [(how, {"kindred": {"sharing": how}, "method": "kindred"}) for how in ("kin", "common")]
    folders = [
        shared(tmp_path / how, (0.5, 0.5), method="kindred", settings=table, settings_digest=how)
        for how, table in kinds
    ]
    table = {"kindred": {"sharing": "none"}, "method": "kindred"}
    folders.append(alone(tmp_path / "a", (1.0, 1.0), method="kindred", settings=table))
    (sentence,) = sentences(*folders)
    assert "with kindred (federated) sharing=kin the median" in sentence
    assert "Baseline: each client's best local model, kindred (local)." in sentence


def test_without_errors_of_single_clients_totals_are_compared(tmp_path: Path) -> None:
    folders = [
        shared(tmp_path / "a", (None, None), mse=0.75, by_round=(0.5, 0.3)),
        alone(tmp_path / "b", (1.0, 1.0), mse=1.0),
        alone(tmp_path / "c", (0.5, 0.5), mse=0.5, method="naive", by_round=(0.9,)),
    ]
    (sentence,) = sentences(*folders)
    assert sentence == (
        "With fuels the mean test MSE over all clients of toy is 0.75, 25.0% lower than that of "
        "solo (1). The errors of single clients were withheld, so whether federated learning "
        "pays is open: these totals show neither how many clients gain nor whether the difference "
        "is chance."
    )


def test_nothing_is_lower_than_an_error_of_0(tmp_path: Path) -> None:
    folders = shared(tmp_path / "a", (0.0, 0.1, 0.1)), alone(tmp_path / "b", (0.0, 0.0, 0.2))
    (sentence,) = sentences(*folders)
    assert "the median client's test MAE is the same as that of" in sentence
    assert "1 of 3 clients have a lower error, 1 a higher one, 1 an equal one." in sentence


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        # By validation fuels, which is worse on the test part and stands second in the table.
        (
            {"errors": (0.9, 0.9), "validation": (0.2, 0.2), "mse_median": 0.9},
            {"errors": (0.5, 0.5), "mse_median": 0.5},
            "fuels the median client's test MAE is 10.0% lower",
        ),
        # The choice of a round by each client flatters nobody: they keep 0.2 each, of rounds whose
        # means were 0.6, 0.5 and 0.4, and fedavg has one round of 0.3.
        (
            {"errors": (0.9, 0.9), "validation": (0.2, 0.2), "by_round": (0.6, 0.5, 0.4)},
            {"errors": (0.5, 0.5), "validation": (0.3, 0.3), "by_round": (0.3,)},
            "fedavg the median client's",
        ),
        # A method that loses clients is the last choice.
        ({"errors": (0.1, None), "validation": (0.1, 0.1)}, {"errors": (0.5, 0.5)}, "fedavg"),
    ],
)
def test_validation_says_of_which_method_it_speaks(
    first: dict[str, Any], second: dict[str, Any], chosen: str, tmp_path: Path
) -> None:
    (sentence,) = sentences(
        shared(tmp_path / "a", **first),
        shared(tmp_path / "b", method="fedavg", settings_digest="b", **second),
        alone(tmp_path / "c", (1.0, 1.0), settings_digest="c"),
    )
    assert f"with {chosen}" in sentence


def test_errors_are_means_over_seeds(tmp_path: Path) -> None:
    """Means of c0 and c1: 0.5 and 0.8 against 1 and 1, though each seed helps one client only."""
    folders = [
        shared(tmp_path / "f0", (0.2, 1.2), seed=0),
        shared(tmp_path / "f1", (0.8, 0.4), seed=1),
        alone(tmp_path / "s0", (0.4, 1.0), seed=0),
        alone(tmp_path / "s1", (1.6, 1.0), seed=1),
    ]
    (sentence,) = sentences(*folders)
    assert "2 of 2 clients have a lower error." in sentence
    assert "35.0% lower" in sentence  # the median of 0.5 and 0.8 is 0.65


def test_each_question_has_its_sentence(tmp_path: Path) -> None:
    day = {"data": {"horizon": 24}}
    folders = [
        shared(tmp_path / "a", (0.5, 0.5)),
        shared(tmp_path / "b", (2.0, 2.0), settings=day, settings_digest="b"),
        alone(tmp_path / "c", (1.0, 1.0), settings_digest="c"),
        alone(tmp_path / "d", (1.0, 1.0), settings=day, settings_digest="d"),
    ]
    first, second = sorted(sentences(*folders))
    assert "toy, horizon 1, because" in first
    assert "the median client's test MAE is 50.0% lower" in first
    assert "toy, horizon 24, because" in second
    assert "0 of 2 clients have a lower error, 2 a higher one." in second


def test_nothing_is_said_of_one_kind_of_runs(tmp_path: Path) -> None:
    only_shared, only_alone = shared(tmp_path / "a", (0.5,)), alone(tmp_path / "b", (0.5,))
    assert sentences(only_shared) == sentences(only_alone) == []
    assert sentences(make_classification_run(tmp_path / "c")) == []


@pytest.mark.parametrize(
    ("kept_errors", "rounds", "expected"),
    [
        # Two clients who are best in different rounds: 0.1 and 0.2 are kept, but the rounds' means
        # were (0.1 + 0.5) / 2 and (0.4 + 0.2) / 2.
        ([0.1, 0.2], [0.3, 0.3], 0.3),
        ([0.1, 0.2], [0.5, 0.25, 0.4], 0.25),
        # One round: nothing was chosen, so nothing is flattered.
        ([0.1, 0.2], [0.15], 0.15),
        # The last models are kept: no other round counts, however good it was.
        ([0.4, 0.6], [0.3, 0.2, 0.5], 0.5),
        # Rounds that were not evaluated, and one that broke.
        ([0.1, 0.2], [None, 0.3, None, float("nan"), float("inf")], 0.3),
        ([0.1, 0.2], [], 0.15),
        ([0.1, float("inf")], [0.3], float("inf")),
    ],
)
def test_the_best_round_counts(
    kept_errors: list[float], rounds: list[float | None], expected: float
) -> None:
    assert judged(kept_errors, rounds) == pytest.approx(expected)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_writes_the_field_that_is_read(task: str) -> None:
    report = report_for(task)
    field = report.metrics.validation.round.name
    assert field in report.round_figures(RoundLog(), {}, True)


def columns_known(columns: str, sharing: str = "none") -> dict[str, Any]:
    """The settings of a run with Kindred that knows these columns in advance."""
    settings = {
        "method": "kindred",
        "kindred": {"sharing": sharing},
        "data": {"known": columns},
        "response": {"sharing": "none" if columns and sharing == "none" else "all"},
    }
    return {"method": "kindred", "settings": settings, "settings_digest": f"{columns} {sharing}"}


def test_the_rival_of_shared_columns_has_the_same_columns(tmp_path: Path) -> None:
    """Alone, columns halve the error, and sharing takes off another tenth. Without columns sharing
    takes off a fifth, but its validation error is higher."""
    worse = {"validation": (0.6,) * 7, "by_round": (0.6,) * 3}
    folders = [
        alone(tmp_path / "a", (1.0,) * 7, **columns_known(""), **worse),
        shared(tmp_path / "b", (0.8,) * 7, **columns_known("", "kin"), **worse),
        alone(tmp_path / "c", (0.5,) * 7, **columns_known("rain,heat")),
        shared(tmp_path / "d", (0.45,) * 7, **columns_known("rain,heat", "kin")),
    ]
    (sentence,) = sentences(*folders)
    assert sentence.startswith(
        "Local models gain from the columns rain and heat: the test MAE of the median client's "
        "best local model is 50.0% lower than that without (95% CI 50.0–50.0%, 7 clients). "
        "Federated learning pays for toy: with kindred (federated) and the columns "
        "rain and heat the median client's test MAE is 10.0% lower than that of its best local "
        "model with the same columns (95% CI 10.0–10.0%, 7 clients). 7 of 7 clients"
    )
    assert sentence.endswith("Baseline: each client's best local model, kindred (local).")
    (without_columns,) = sentences(*folders[:2], folders[3])
    assert "with kindred (federated) the median client's test MAE is 20.0% lower" in without_columns
    assert sentences(folders[0], folders[3]) == []
    (alone_only,) = sentences(folders[0], folders[2])
    assert alone_only.startswith("Local models gain from the columns")
    with_columns = "kindred (federated) known=rain,heat"
    assert {pair.method: pair.gain.ratio for pair in pairs(grouped(*folders))} == pytest.approx(
        {"kindred (federated)": 0.8, with_columns: 0.9}
    )


def test_withheld_errors_meet_totals_with_the_same_columns(tmp_path: Path) -> None:
    none = (None,) * 7
    folders = [
        alone(tmp_path / "a", (1.0,) * 7, **columns_known(""), mse=1.0),
        alone(tmp_path / "c", (0.5,) * 7, **columns_known("rain"), mse=0.5),
        shared(tmp_path / "d", none, **columns_known("rain", "kin"), mse=0.4),
    ]
    (sentence,) = sentences(*folders)
    assert "is 0.4, 20.0% lower than that of" in sentence
    assert sentences(folders[0], folders[2]) == []


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ((1.2,) * 7, "Local models are worse with the column rain: "),
        ((1.0,) * 7, "Local models gain nothing from the column rain: "),
        ((0.5,) * 5, "Whether local models gain from the column rain is open, because a 95% "),
    ],
)
def test_columns_may_bring_nothing(errors: Sequence[float], expected: str, tmp_path: Path) -> None:
    folders = [
        alone(tmp_path / "a", (1.0,) * len(errors), **columns_known("")),
        alone(tmp_path / "b", errors, **columns_known("rain")),
    ]
    (sentence,) = sentences(*folders)
    assert sentence.startswith(expected)
