"""Which clients of a run can take part, told before a window is cut or an image decoded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from fedproto_app.data.images.clients import partition_pool
from fedproto_app.data.images.clients import why_refused as why_images_refused
from fedproto_app.data.images.pool import ImagePool
from fedproto_app.data.images.sources import IMAGE_SOURCES, load_pool
from fedproto_app.data.sequences.clusters import deal_sequences
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.sequences.sources import SEQUENCE_SOURCES, load_sequences
from fedproto_app.data.sequences.split import split_holding
from fedproto_app.data.sequences.split import why_refused as why_sequences_refused
from fedproto_app.data.source_checks import require_known, users_function
from fedproto_app.data.sources import SOURCES, load_series
from fedproto_app.data.windows import why_refused as why_series_refused
from fedproto_app.errors import DataError
from fedproto_app.settings import SEQUENCE_TASKS, DataSettings, Settings

Kind = Literal["series", "images", "labelled sequences"]

# What the embedded sources and those of files hold, the tasks for it, the sources by name.
_KINDS: tuple[tuple[Kind, tuple[str, ...], Collection[str]], ...] = (
    ("series", ("forecasting",), SOURCES),
    ("images", ("classification",), IMAGE_SOURCES),
    ("labelled sequences", SEQUENCE_TASKS, SEQUENCE_SOURCES),
)


def reasons_against(settings: Settings) -> dict[str, str | None]:
    """For every client of the run's data why it cannot take part, None for one that can.

    Raises `DataError` if the source fits another task, cannot be read, or has too few images,
    sequences or classes for the partition. An image whose file is damaged is not noticed.
    """
    require_fitting_source(settings)
    if settings.task == "forecasting":
        clients = load_series(settings.data)
        return {series.name: why_series_refused(series, settings.data) for series in clients}
    if settings.task in SEQUENCE_TASKS:
        return _reasons_against_sequences(settings)
    pool = load_pool(settings.data)
    holdings = partition_pool(pool, settings.data, settings.seed)
    require_fitting_stages(settings, [len(holding.stages) for holding in holdings])
    partition = settings.data.partition
    return {holding.name: why_images_refused(holding.stages, partition) for holding in holdings}


def _reasons_against_sequences(settings: Settings) -> dict[str, str | None]:
    pool = load_sequences(settings.data)
    require_fitting_targets(settings, pool)
    return {
        holding.name: why_sequences_refused(
            split_holding(pool, holding, settings.data, settings.seed), settings.data
        )
        for holding in deal_sequences(pool, settings.data, settings.seed)
    }


def require_fitting_source(settings: Settings) -> None:
    """Refuse a source of another task; a user's own function shows only when it is called."""
    source = settings.data.source
    wanted, known = next((held, names) for held, tasks, names in _KINDS if settings.task in tasks)
    for held, tasks, names in _KINDS:
        if source in names and held != wanted:
            raise DataError(
                f"data.source = {source!r} holds {held}; set task = "
                f"{' or '.join(map(repr, tasks))}, or data.source to {wanted}: "
                f"{', '.join(known)} or package.module:factory"
            )


def require_fitting_targets(settings: Settings, pool: SequencePool) -> None:
    """Refuse sequences with classes where numbers are to be predicted, and the other way round."""
    fitting = "sequence-classification" if pool.classes else "sequence-regression"
    if settings.task != fitting:
        targets = "classes" if pool.classes else "real numbers"
        raise DataError(
            f"task = {settings.task!r}: the targets of data.source = {settings.data.source!r} are "
            f"{targets}; set task = {fitting!r}"
        )


def require_fitting_stages(settings: Settings, stages: Sequence[int]) -> None:
    """Refuse clients with these numbers of stages if the run cannot walk through them all.

    Settings are checked for it where they deal the stages; here they are the source's own.
    """
    most = max(stages, default=1)
    if most > settings.rounds:
        raise DataError(
            f"rounds = {settings.rounds}: fewer than the {most} stages of the data, so some would "
            "never be trained on"
        )
    if most > 1 and (settings.keep != "last" or settings.patience):
        raise DataError(
            f"keep = {settings.keep!r}, patience = {settings.patience}: errors of different "
            f"stages cannot be compared; the data have {most} stages, which need keep = 'last' "
            "and patience = 0"
        )


def kind_of(settings: DataSettings) -> Kind:
    """What the source holds; a user's own function is called to see it.

    Raises `DataError` for an unknown source.
    """
    source = settings.source
    if ":" in source:
        given = users_function(source)(settings)
        if isinstance(given, ImagePool):
            return "images"
        return "labelled sequences" if isinstance(given, SequencePool) else "series"
    require_known(settings, [name for _, _, names in _KINDS for name in names])
    return next(held for held, _, names in _KINDS if source in names)
