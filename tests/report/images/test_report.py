"""The figures of classification runs, by hand and against a plain rewriting of their rules."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.report.images.report import (
    CLASS_COLUMNS,
    ClassificationReport,
    balanced_accuracy,
    forgetting,
    thirds,
)
from fedproto_app.server.round_log import RoundLog
from tests.report.made_federation import FOUR, LONG_TAIL, MadeFederation, key, local, scores
from tests.report.made_runs import CLASSIFICATION_COLUMNS

REPORT = ClassificationReport()


def round_figures(federation: MadeFederation, *trained: str, evaluated: bool = True) -> Any:
    log = RoundLog(losses={key(name): {"total": 1.0} for name in trained})
    return REPORT.round_figures(log, federation.history.results, evaluated)


def summary(federation: Any, rounds: list[dict[str, Any]] | None = None) -> Any:
    return REPORT.summary_figures(federation, rounds or [])


def tables(federation: Any) -> Any:
    return REPORT.tables(federation)


def line(
    selected: float | None = None, *stages: float | None, shared: Any = None
) -> dict[str, Any]:
    return {
        "accuracy_selected": selected,
        "stages_local": list(stages) or None,
        "stages_global": shared,
    }


AVERAGED = {
    "a": {
        Metric("accuracy"): 0.5,
        Metric("accuracy", Model.LOCAL): 0.75,
        Metric("validation-error"): 0.25,
    },
    "b": {
        Metric("accuracy"): 0.25,
        Metric("accuracy", Model.LOCAL): 0.25,
        Metric("accuracy", Model.KEPT): 0.5,
    },
    "c": {Metric("accuracy"): 0.0, Metric("accuracy", Model.KEPT): 0.25},  # has never trained
}


def test_a_method_that_averages_has_both_accuracies() -> None:
    figures = round_figures(MadeFederation(AVERAGED), "b", "c")
    assert figures["accuracy_global"] == 0.25
    assert figures["accuracy_local"] == 0.5  # of a and b
    assert figures["accuracy_selected"] == 0.25  # of b alone: c's training was refused
    assert figures["accuracy_kept"] == 0.375
    assert figures["validation_error"] == 0.25


def test_without_averaging_only_local_models_are_reported() -> None:
    federation = MadeFederation(
        {"a": {Metric("accuracy"): 0.5} | scores({1: (1, 2)}), "b": {Metric("accuracy"): 1.0}}
    )
    figures = round_figures(federation, "a")
    assert (figures["accuracy_global"], figures["stages_global"]) == (None, None)
    assert (figures["accuracy_local"], figures["accuracy_selected"]) == (0.75, 0.5)
    assert figures["stages_local"] == [0.5]


def test_a_round_without_evaluation_has_no_figures_but_all_fields() -> None:
    evaluated = round_figures(MadeFederation(AVERAGED), "a")
    unknown = round_figures(MadeFederation(AVERAGED), "a", evaluated=False)
    assert list(unknown) == list(evaluated)
    assert not any(unknown.values())
    assert round_figures(MadeFederation({}))["accuracy_local"] is None


def test_a_stage_is_the_mean_over_the_clients_that_have_it() -> None:
    federation = MadeFederation(
        {
            "a": {Metric("accuracy"): 0.0}
            | scores({1: (3, 4), 2: (1, 2), 3: (0, 0)})
            | local({Metric("accuracy"): 0.0} | scores({1: (4, 4), 2: (0, 2), 3: (0, 0)})),
            "b": {Metric("accuracy"): 0.0} | scores({1: (25, 100), 2: (0, 0), 3: (0, 0)}),
        }
    )
    figures = round_figures(federation)
    assert figures["stages_global"] == [0.5, 0.5, None]  # not 28 of 104
    assert figures["stages_local"] == [1.0, 0.0, None]


def test_accuracies_of_several_rules_are_reported() -> None:
    metrics = {
        Metric("accuracy"): 0.5,
        Metric("accuracy", rule="local-prototypes"): 0.5,
        Metric("accuracy", rule="global-prototypes"): 0.25,
        Metric("accuracy", rule="head"): 0.0,
    }
    federation = MadeFederation({"a": metrics | local({k: 2 * v for k, v in metrics.items()})})
    expected = {
        "local-prototypes": {"global": 0.5, "local": 1.0},
        "global-prototypes": {"global": 0.25, "local": 0.5},
        "head": {"global": 0.0, "local": 0.0},
    }
    assert round_figures(federation)["by_inference"] == expected
    assert summary(federation)["by_inference"] == expected
    assert summary(MadeFederation(AVERAGED))["by_inference"] == {}


def test_thirds_follow_the_train_counts_and_the_first_are_larger() -> None:
    parts = thirds(np.array([10, 40, 10, 5, 40]))
    assert [list(third) for third in parts] == [[1, 4], [0, 2], [3]]
    assert [len(third) for third in thirds(None)] == [0, 0, 0]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_thirds_share_all_classes_and_none_has_fewer_images_than_the_next(
    counts: list[int],
) -> None:
    parts = [list(third) for third in thirds(np.array(counts))]
    assert sorted(chain(*parts)) == list(range(len(counts)))
    sizes = [len(third) for third in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[2] <= 1
    ranked = [counts[label] for third in parts for label in third]
    assert ranked == sorted(counts, reverse=True)


def test_many_medium_and_few_count_all_clients_answers_to_the_classes_of_the_third() -> None:
    figures = summary(LONG_TAIL)  # many: bee, ant; medium: dog; few: cat
    assert figures["many_global"] == 5 / 16
    assert figures["medium_global"] == 1.0
    assert figures["few_global"] is None  # nobody tests it
    assert figures["many_local"] == 1.0
    assert figures["medium_local"] == 0.0


def test_the_balanced_accuracy_is_the_mean_over_the_classes_that_are_tested() -> None:
    # ant 1 of 8, bee 4 of 8, dog 1 of 1, and nobody tests cat: 6 of 17 images are right.
    figures = summary(LONG_TAIL)
    assert figures["balanced_global"] == pytest.approx((1 / 8 + 1 / 2 + 1) / 3)
    assert figures["balanced_local"] == pytest.approx(2 / 3)  # ant and bee 1, dog 0
    assert summary(MadeFederation(AVERAGED, classes=FOUR))["balanced_local"] is None
    # Saying "head class" is right in 90% of the images and in one class of three.
    assert balanced_accuracy(np.array([90.0, 0, 0]), np.array([90.0, 9, 1])) == pytest.approx(1 / 3)


def test_without_known_train_counts_there_are_no_thirds() -> None:
    federation = MadeFederation(LONG_TAIL.metrics, classes=FOUR)
    figures = summary(federation)
    assert {figures[f"{third}_global"] for third in ("many", "medium", "few")} == {None}
    rows = tables(federation)["classes.csv"]
    assert rows[1] == ["ant", None, None, 8, 1 / 8, 1.0]


def test_classes_have_a_row_each_in_the_order_of_the_labels() -> None:
    rows = tables(LONG_TAIL)["classes.csv"]
    assert rows == [
        CLASS_COLUMNS,
        ["ant", 25, "many", 8, 1 / 8, 1.0],
        ["bee", 70, "many", 8, 0.5, 1.0],
        ["cat", 1, "few", 0, None, None],
        ["dog", 3, "medium", 1, 1.0, 0.0],
    ]


def test_clients_have_a_row_each_and_unknown_values_are_empty() -> None:
    rows = tables(MadeFederation(AVERAGED))["clients.csv"]
    empty = [None] * 3
    assert rows == [
        tuple(CLASSIFICATION_COLUMNS.split(",")),
        ["a", "n", "g", 10, 7, 0.5, 0.75, None, 0.25, None, *empty],
        ["b", "n", "g", 10, 7, 0.25, 0.25, 0.5, None, None, *empty],
        ["c", "n", "g", 10, 7, 0.0, None, 0.25, None, None, *empty],
    ]
    alone = tables(MadeFederation({"a": {Metric("accuracy"): 0.5}}))
    assert alone["clients.csv"][1][5:7] == [None, 0.5]


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([[0.75, None], [0.5, 0.5], [0.25, 1.0]], 0.5),
        ([[0.5, None, None], [0.75, 0.5, None], [0.25, 0.75, 1.0]], 0.25),  # lost 0.5 and 0
        ([[0.25, None], None, [0.75, 0.0]], 0.0),  # better than ever; a round not evaluated
        ([[0.5], [0.25]], None),  # one stage has nothing to be forgotten for
        ([[0.5, 0.5]], None),  # nothing earlier
        ([[0.5, None, None], [0.25, 0.5, 0.5]], 0.25),  # stage 2 has nothing earlier
        ([], None),
    ],
)
def test_forgetting_by_hand(rounds: list[list[float | None] | None], expected: float) -> None:
    assert forgetting(rounds) == expected


accuracy = st.none() | st.floats(0, 1)


@given(st.lists(st.none() | st.lists(accuracy, min_size=3, max_size=3), max_size=6))
def test_forgetting_as_the_definition_says(rounds: list[list[float | None] | None]) -> None:
    table = np.array([row or [None] * 3 for row in rounds if row], dtype=np.float64).reshape(-1, 3)
    drops = []
    for stage in (0, 1):
        if len(table) and not np.isnan(table[-1, stage]):
            earlier = table[:-1, stage][~np.isnan(table[:-1, stage])]
            if earlier.size:
                drops.append(max(0.0, earlier.max() - table[-1, stage]))
    assert forgetting(rounds) == (pytest.approx(np.mean(drops)) if drops else None)


def test_the_summary_tells_a_sel_of_the_last_ten_evaluated_rounds_and_of_the_last() -> None:
    rounds = [line(0.0), line(0.0), *(line(value) for _ in range(5) for value in (None, 0.5, 1.0))]
    figures = summary(MadeFederation(AVERAGED), rounds)
    assert figures["accuracy_selected"] == 0.75
    assert figures["accuracy_selected_final"] == 1.0
    assert summary(MadeFederation(AVERAGED))["accuracy_selected"] is None


def test_the_summary_tells_forgetting_of_each_model() -> None:
    rounds = [line(0, 0.5, None, shared=[0.25, None]), line(0, 0.25, 0.5, shared=[0.125, 0.5])]
    figures = summary(MadeFederation(AVERAGED), rounds)
    assert (figures["forgetting_local"], figures["forgetting_global"]) == (0.25, 0.125)


def test_the_table_of_a_run_tells_of_both_models() -> None:
    federation = MadeFederation(
        {"a": LONG_TAIL.metrics["a"] | scores({1: (1, 4), 2: (1, 2)})}, LONG_TAIL.counts, FOUR
    )
    rows = dict(REPORT.run_rows(summary(federation, [line(0.125, 0.5, None)]) | {"keep": "last"}))
    assert rows["test accuracy, own model (A_loc)"] == "50.0 %"
    assert rows["test accuracy, clients of a round (A_sel)"] == "12.5 %"
    assert rows["test accuracy, kept model (last)"] == "-"
    assert rows["balanced accuracy, own model"] == "66.7 %"
    assert rows["many / medium / few-shot, own model"] == "100.0 / 0.0 / - %"
    assert rows["stages 1 … 2, averaged model"] == "25.0 / 50.0 %"
    assert rows["forgetting, averaged model"] == "-"
    assert "stages 1 … 2, own model" not in rows  # without counts of its own
