"""Find signs that the training of a finished run learned nothing."""

from __future__ import annotations

from pathlib import Path

from fedproto_app.report.images.charts import read_partition
from fedproto_app.report.runs import Run

_LEAST_ROUNDS = 3  # with a validation error
_LEAST_GAIN = 0.001  # of the first round's validation error
_DIVERGED = 10.0  # validation MSE in units of the train variance, where a constant has about 1


def learning_faults(run: Run) -> list[str]:
    """Return the signs that the run learned nothing, as sentences without a full stop.

    There are three signs: training diverged, the validation error did not fall, or the kept models
    are no better than always predicting each client's most frequent class. A run with fewer than
    three evaluations shows none.
    """
    lines = run.rounds
    squared, shares = (
        [line[name] for line in lines if line.get(name) is not None]
        for name in ("validation_mse", "validation_error")
    )
    errors = squared or shares
    if len(errors) < _LEAST_ROUNDS:
        return []
    faults = []
    if squared and min(squared[1:]) > _DIVERGED:
        faults.append(
            f"training diverged: the validation MSE is {squared[-1]:,.0f} times the variance of "
            "the train values; a smaller optimizer.learning-rate may help"
        )
    elif errors[0] > 0 and min(errors[1:]) > errors[0] * (1 - _LEAST_GAIN):
        faults.append(
            f"no progress: the validation error of round 1, {errors[0]:.4g}, did not fall in "
            f"{len(errors)} evaluations; another optimizer.learning-rate may help"
        )
    accuracy, constant = run.summary.get("accuracy_kept"), _most_frequent_share(run.folder)
    if accuracy is not None and constant is not None and accuracy <= constant:
        faults.append(
            f"no better than the most frequent class: the kept models classify {accuracy:.1%} of "
            f"the test samples correctly, and {constant:.1%} of the train samples belong to their "
            "client's most frequent class"
        )
    return faults


def _most_frequent_share(folder: Path) -> float | None:
    """Return the share of train samples that belong to their client's most frequent class."""
    if not (folder / "partition.csv").exists():
        return None
    counts, _ = read_partition(folder)
    totals = [stages.sum(axis=0) for stages in counts.values()]
    samples = sum(int(classes.sum()) for classes in totals)
    return sum(int(classes.max()) for classes in totals) / samples if samples else None
