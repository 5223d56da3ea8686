"""FEDIC: FedAvg, and a student of a calibrated ensemble at the server."""

from __future__ import annotations

from fedproto_app.core.method import Method
from fedproto_app.core.section import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Section,
    ShareOrEither,
    setting,
)


class FedicSettings(Section):
    """``[fedic]``: FedAvg, and a student of a calibrated ensemble (docs: compared.md)."""

    tuning_steps: CountOrZero = setting(
        100, "steps per round that train the averaged model on the server's labelled images"
    )
    calibration_steps: CountOrZero = setting(
        100, "steps per round that learn how much to trust each model"
    )
    student_steps: CountOrZero = setting(
        100, "steps per round that train the averaged model towards the teacher"
    )
    labelled_batch_size: Count = setting(20, "labelled images per step")
    unlabelled_batch_size: Count = setting(128, "unlabelled images per step")
    adam_rate: Positive = setting(1e-3, "learning rate of all these steps")
    student_decay: NonNegative = setting(2e-4, "the student's weight decay")
    temperature: Positive = setting(2.0, "temperature for teacher and student (T)")
    distillation: ShareOrEither = setting(
        0.5,
        "weight of the teacher in the student's loss (λ). Labelled images have the remaining "
        "weight",
    )


METHOD = Method(
    name="fedic",
    strategy=f"{__name__}.strategy:FedicStrategy",
    learner=f"{__name__}.learner:FedicLearner",
    settings=FedicSettings,
    tasks=("classification",),
    small={
        "data.partition.reserve-per-class": 4,
        "fedic.tuning-steps": 5,
        "fedic.calibration-steps": 5,
        "fedic.student-steps": 5,
    },
)
