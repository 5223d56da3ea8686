"""The metrics of labelled sequences: accuracies, or errors in the data's units.

A client is evaluated with the model that it uses now. If the method shares heads inside clusters,
the client is also evaluated with its own head ("local"). If the client uses a mixture or a personal
model, it is also evaluated with the averaged model ("global").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.tasks.metrics import Field, Figure, TaskMetrics, percent_text, short_text

ACCURACY, ERROR = Metric("accuracy"), Metric("validation-error")
RMSE, MAE, VALIDATION_RMSE = Metric("rmse"), Metric("mae"), Metric("validation-rmse")


def _metrics(
    test: Metric,
    validation: Metric,
    *,
    text: Callable[[float | None], str],
    progress: tuple[str, str],
    unit: str,
    more: tuple[Metric, ...] = (),
    **names: Any,
) -> TaskMetrics:
    """Return the metrics of a task on sequences.

    progress: titles of the validation and the test figure during a run. unit: the end of the titles
    of test figures in tables. more: further metrics of the models in use. names: see `TaskMetrics`.
    """
    name, validation_name = test.name, validation.name.replace("-", "_")
    shown = partial(Field, text=text)
    used = Figure(
        test,
        column=shown(name, f"last {unit}"),
        round=shown(name, progress[1]),
        summary=(shown(name, f"last {unit}", spread=True),),
    )
    kept_model = Figure(
        replace(test, model=Model.KEPT),
        column=shown(f"{name}_kept", f"kept {unit}"),
        round=Field(f"{name}_kept"),
        summary=(shown(f"{name}_kept", f"kept {unit}", spread=True),),
    )
    own_head = Figure(
        replace(test, model=Model.LOCAL),
        column=shown(f"{name}_local", f"own head {unit}"),
        round=Field(f"{name}_local"),
        summary=(Field(f"{name}_local"),),
    )
    averaged = Figure(
        replace(test, shared=True),
        round=Field(f"{name}_global"),
        summary=(Field(f"{name}_global"),),
    )
    in_use = Figure(
        validation,
        column=Field(validation_name),
        round=shown(validation_name, progress[0]),
        summary=(Field(validation_name),),
    )
    kept_validation = Figure(
        replace(validation, model=Model.KEPT), column=Field(f"kept_{validation_name}")
    )
    further = [
        Figure(metric, column=field, round=field, summary=(field,))
        for metric, field in ((metric, Field(metric.name)) for metric in more)
    ]
    return TaskMetrics(
        figures=(
            used,
            own_head,
            averaged,
            kept_model,
            *further,
            in_use,
            kept_validation,
        ),
        headline=kept_model,
        latest=used,
        validation=in_use,
        kept=kept_model,
        kept_validation=kept_validation,
        compared=kept_model,
        kept_error=names["error"],
        caption=(
            "kept: the models that clients end with; last: those of the last round; rounds: mean "
            "over the evaluated rounds; Rand: index of the clusters against the true ones, mean "
            "over rounds"
        ),
        # These settings change how models see the sequences, but not which sequences there are.
        inputs=("sequences.scaling", "sequences.steps", "sequences.target-scale"),
        more_rounds=(Field("rand_index", "Rand", short_text),),
        more_summary=(
            shown(f"{name}_rounds", f"rounds {unit}", spread=True),
            Field("rand_index_rounds", "Rand", short_text),
        ),
        **names,
    )


CLASSES = _metrics(
    ACCURACY,
    ERROR,
    text=percent_text,
    progress=("val error %", "accuracy %"),
    unit="%",
    is_accuracy=True,
    axis="test accuracy",
    error="share of wrong answers",
)
NUMBERS = _metrics(
    RMSE,
    VALIDATION_RMSE,
    text=short_text,
    progress=("val RMSE", "RMSE"),
    unit="RMSE",
    more=(MAE,),
    axis="test RMSE (the data's units)",
    error="RMSE",
)
