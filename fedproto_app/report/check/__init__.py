"""``fedproto data check``: what a run would make of the data of each task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from fedproto_app.report.check.findings import Checked
    from fedproto_app.settings import Settings

# Prints what a run would make of the data, all rows if the second argument is true.
Check: TypeAlias = "Callable[[Settings, bool], Checked]"


def _series(settings: Settings, all_rows: bool) -> Checked:
    from fedproto_app.report.check.forecasting import check

    return check(settings, all_rows)


def _images(settings: Settings, all_rows: bool) -> Checked:
    from fedproto_app.report.check.images import check

    return check(settings, all_rows)


def _sequences(settings: Settings, all_rows: bool) -> Checked:
    from fedproto_app.report.check.sequences import check

    return check(settings, all_rows)


# By task; a check is imported when it is made.
CHECKS: dict[str, Check] = {
    "forecasting": _series,
    "classification": _images,
    "sequence-classification": _sequences,
    "sequence-regression": _sequences,
}
