"""The metrics of forecasts: errors on the standardised scale and in the data's units."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.maths.client_errors import worst_tenth
from fedproto_app.tasks.metrics import (
    BETTER_OFF,
    Field,
    Figure,
    TaskMetrics,
    percent_text,
    short_text,
)

VALIDATION_MSE, MSE, MAE = Metric("validation-mse"), Metric("mse"), Metric("mae")
RMSE_UNITS, MAE_UNITS = Metric("rmse-units"), Metric("mae-units")
# The divisors of MASE and WAPE, in the data's units. A client without a usable divisor reports 0,
# so every client reports every metric, and quotients on the server are finite.
SEASONAL_DIFFERENCE, MEAN_SIZE = DIVISORS = (Metric("seasonal-difference"), Metric("mean-size"))
_STEP = "mse/step-"
LEVELS = (80, 95)  # of the prediction intervals, in percent
COVERAGES = tuple(Metric(f"coverage-{level}") for level in LEVELS)
WIDTHS = tuple(Metric(f"width-{level}") for level in LEVELS)


# The blocks of consecutive steps in a client's test part, see blocks.py. The server gets them for
# the kept model only. They show on how many days a verdict rests.
MOST_BLOCKS = 32
STEP_SECONDS, BLOCK_STEPS, FIRST_BLOCK = BLOCK_FACTS = tuple(
    Metric(name, Model.KEPT) for name in ("step-seconds", "block-steps", "first-block")
)
LARGEST_COUNT = 2**53  # up to here, float64 holds every whole number
_BLOCK = "mae/block-"


def block_metric(number: int) -> Metric:
    """Return the kept model's part of the test MAE in one block of its test part, 0 … 31."""
    return Metric(f"{_BLOCK}{number + 1}", Model.KEPT)


BLOCK_METRICS = (*BLOCK_FACTS, *map(block_metric, range(MOST_BLOCKS)))


def step_metric(step: int) -> Metric:
    """Return the test MSE for values `step` steps after the first forecast value."""
    return Metric(f"{_STEP}{step + 1}")


def is_step(name: str) -> bool:
    """Return whether this is the name of a result of `step_metric`."""
    return re.fullmatch(f"{_STEP}[1-9][0-9]{{0,3}}", name) is not None


def of_kept(metric: Metric) -> Metric:
    return replace(metric, model=Model.KEPT)


_MEAN = Field("mse", "mean MSE", spread=True)
_MEDIAN = Field("mse_median", "median MSE", statistic=np.median, spread=True)
_WORST = Field("mse_worst_tenth", "worst tenth", statistic=worst_tenth)
_MASE_MEDIAN = Field("mase_median", "MASE", statistic=np.median)
_BETTER_OFF = Field(BETTER_OFF, "better off %", percent_text, larger_is_better=True)

_VALIDATION = Figure(VALIDATION_MSE, round=Field("validation_mse", "val MSE"))
_KEPT_VALIDATION = Figure(of_kept(VALIDATION_MSE), column=Field("validation_mse"))
_KEPT_MODELS = Figure(
    of_kept(MSE),
    column=Field("mse", "MSE"),
    round=Field("kept_test_mse"),
    summary=(_MEAN, _MEDIAN, _WORST),
)
# Clients are compared by absolute errors, whose ratio is the same in the data's units.
_KEPT_MAE = Figure(
    of_kept(MAE),
    column=Field("mae", "MAE"),
    round=Field("kept_test_mae"),
    summary=(
        Field("mae", "MAE", later=True),
        Field("mae_median", statistic=np.median),
    ),
)
_LAST = Figure(
    MSE,
    column=Field("last_mse"),
    round=Field("test_mse", "test MSE"),
    summary=(Field("last_mse", "last MSE", only_wide=True, later=True),),
)
_MAE_UNITS = Figure(of_kept(MAE_UNITS), column=Field("mae_units"), summary=(Field("mae_units"),))
# The MAE over the mean absolute seasonal difference of the train part (Hyndman and Koehler 2006).
# It is unknown if the train part hardly ever changes, for instance if it is constant.
MASE = Figure(
    of_kept(MAE_UNITS),
    over=SEASONAL_DIFFERENCE.name,
    column=Field("mase", "MASE", short_text, only_wide=True),
    summary=(Field("mase", "MASE (mean)", only_wide=True), _MASE_MEDIAN),
)
# Σ|e| / Σ|y| over the test part. Unknown if all its values are 0.
WAPE = Figure(
    of_kept(MAE_UNITS),
    over=MEAN_SIZE.name,
    column=Field("wape", "WAPE", short_text, only_wide=True),
    summary=(
        Field("wape", "WAPE (mean)", only_wide=True),
        Field("wape_median", "WAPE", statistic=np.median, only_wide=True),
    ),
)


def _interval(metric: Metric, title: str = "") -> Figure:
    """Return the figure of a coverage or a width. title: its heading in the table of clients."""
    name = metric.name.replace("-", "_")
    column = Field(name, title, percent_text, only_wide=True)
    return Figure(of_kept(metric), column=column, summary=(Field(name),), jumps=True)


FORECASTING = TaskMetrics(
    figures=(
        _VALIDATION,
        _KEPT_MODELS,
        _KEPT_MAE,
        Figure(
            of_kept(RMSE_UNITS),
            column=Field("rmse_units", "RMSE (units)", short_text),
            summary=(Field("rmse_units"),),
        ),
        _MAE_UNITS,
        _KEPT_VALIDATION,
        _LAST,
        Figure(
            MAE,
            column=Field("last_mae"),
            round=Field("test_mae"),
            summary=(Field("last_mae"),),
        ),
        MASE,
        WAPE,
        _interval(COVERAGES[0], f"in {LEVELS[0]}% interval %"),
        *map(_interval, (*COVERAGES[1:], *WIDTHS)),
    ),
    headline=_KEPT_MODELS,
    latest=_LAST,
    validation=_VALIDATION,
    kept=_KEPT_MODELS,
    kept_validation=_KEPT_VALIDATION,
    compared=_KEPT_MAE,
    axis="test MSE (standardised)",
    kept_error="MSE",
    error="MAE",
    caption=(
        "over clients: the worst tenth shows its mean MSE, MASE is the median and MAE the mean; "
        "better off: clients with a lower MAE than with their best local model"
    ),
    inputs=("path", "groups", "calendar", "known", "covariates", "holidays"),
    orders={
        "median": _MEDIAN,
        "mean": _MEAN,
        "mase": _MASE_MEDIAN,
        "worst": _WORST,
        "better": _BETTER_OFF,
    },
    verdict={"MAE in the data's units": _MAE_UNITS, "MASE": MASE, "MSE": _KEPT_MODELS},
    more_summary=(_BETTER_OFF,),
)
