"""The metrics of images: accuracies of clients' own, averaged and kept models, and of rules.

Accuracies are fractions, 0 … 1, in the artefacts and percent on screen. The names are the paper's
(GLDP, section 5.1): A_glo, A_loc, A_sel.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.tasks.metrics import Field, Figure, TaskMetrics, percent_text

ACCURACY, ERROR = Metric("accuracy"), Metric("validation-error")
CORRECT, COUNT = "correct", "count"  # numbers of test images: those predicted right, and all
INFERENCES = ("local-prototypes", "global-prototypes", "head")  # GLDP
MOST_STAGES, MOST_CLASSES = 9999, 10_000  # they bound a server's memory
THIRDS = ("many", "medium", "few")


def stage_metric(quantity: str, stage: int) -> Metric:
    """Return the metric that counts the test images of stage 0, 1, …. quantity: as in `totals`."""
    return Metric(f"{quantity}/stage-{stage + 1}")


def class_metric(quantity: str, label: int) -> Metric:
    """Return the metric that counts a class's test images. quantity: as in `totals`."""
    return Metric(f"{quantity}/class-{label}")


@cache
def totals() -> dict[str, str]:
    """Map the name of each count, of right or of all images, to the name of the count of all.

    The map covers every stage and class that a server accepts, so no code must take a name apart.
    """
    makers = ((stage_metric, MOST_STAGES), (class_metric, MOST_CLASSES))
    return {
        make(quantity, number).name: make(COUNT, number).name
        for make, most in makers
        for number in range(most)
        for quantity in (CORRECT, COUNT)
    }


_percent = partial(Field, text=percent_text)
_A_GLO = _percent("accuracy_global", "A_glo %", spread=True)
_A_LOC = _percent("accuracy_local", "A_loc %", spread=True)

# The report finds out which models a method has, and reads both accuracies accordingly.
AVERAGED = Figure(
    replace(ACCURACY, shared=True),
    column=_A_GLO,
    round=_A_GLO,
    summary=(_A_GLO,),
)
LOCAL_MODELS = Figure(
    replace(ACCURACY, model=Model.LOCAL),
    column=_A_LOC,
    round=_A_LOC,
    summary=(_A_LOC,),
)
_KEPT_MODELS = Figure(
    replace(ACCURACY, model=Model.KEPT),
    column=_percent("accuracy_kept", "kept %"),
    round=Field("accuracy_kept"),
    summary=(Field("accuracy_kept"),),
)
_VALIDATION = Figure(
    ERROR,
    column=Field("validation_error"),
    round=_percent("validation_error", "val error %"),
    summary=(Field("validation_error"),),
)
_KEPT_VALIDATION = Figure(replace(ERROR, model=Model.KEPT), column=Field("kept_validation_error"))

CLASSIFICATION = TaskMetrics(
    figures=(
        AVERAGED,
        LOCAL_MODELS,
        _KEPT_MODELS,
        _VALIDATION,
        Figure(
            replace(ERROR, model=Model.LOCAL),
            round=Field("validation_error_local"),
            summary=(Field("validation_error_local"),),
        ),
        _KEPT_VALIDATION,
        *(
            Figure(
                replace(ACCURACY, rule=rule),
                column=Field(f"accuracy_by_{rule.replace('-', '_')}"),
            )
            for rule in INFERENCES
        ),
    ),
    headline=LOCAL_MODELS,
    latest=LOCAL_MODELS,
    validation=_VALIDATION,
    kept=_KEPT_MODELS,
    kept_validation=_KEPT_VALIDATION,
    compared=_KEPT_MODELS,
    is_accuracy=True,
    axis="test accuracy",
    kept_error="share of wrong answers",
    error="share of wrong answers",
    caption=(
        "A_loc: clients' own models; A_glo: after averaging; A_sel: own models of a round's "
        "clients, last 10 evaluated rounds; balanced, many, medium, few, forgetting: own models"
    ),
    more_summary=(
        _percent("accuracy_selected", "A_sel %", spread=True),
        _percent("balanced_local", "balanced %", spread=True),
        *(_percent(f"{third}_local", f"{third} %") for third in THIRDS),
        _percent("forgetting_local", "forgetting %"),
    ),
)
