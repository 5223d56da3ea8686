"""Metrics as values."""

from __future__ import annotations

import json
from itertools import product

import pytest

from fedproto_app.core.metrics import Metric, Model, metric_of, metric_row

EVERY_KIND = [
    Metric("correct/stage-1", model, shared, rule)
    for model, shared, rule in product(Model, (False, True), ("", "head"))
]


def test_metrics_of_other_models_or_rules_are_others() -> None:
    assert len(set(EVERY_KIND)) == len({str(metric) for metric in EVERY_KIND}) == 12


@pytest.mark.parametrize("metric", EVERY_KIND, ids=str)
def test_a_metric_survives_json(metric: Metric) -> None:
    read_back = metric_of(json.loads(json.dumps(metric_row(metric))))
    assert read_back == metric
    assert isinstance(read_back.model, Model)


def test_people_read_whose_model_and_which_rule() -> None:
    assert str(Metric("mse")) == "mse"
    assert str(Metric("mse", Model.KEPT)) == "kept-mse"
    assert str(Metric("accuracy", Model.LOCAL, shared=True, rule="head")) == (
        "local-global-head-accuracy"
    )


def test_a_model_that_there_is_not_is_an_error() -> None:
    with pytest.raises(ValueError, match="loaned"):
        metric_of(["mse", "loaned", False, ""])
