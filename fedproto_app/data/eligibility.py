"""Which clients of a run can take part, told before a window is cut or an image decoded."""

from __future__ import annotations

from collections.abc import Sequence

from fedproto_app.data.images.clients import partition_pool
from fedproto_app.data.images.clients import why_refused as why_images_refused
from fedproto_app.data.images.pool import ImagePool
from fedproto_app.data.images.sources import IMAGE_SOURCES, load_pool
from fedproto_app.data.source_checks import require_known, users_function
from fedproto_app.data.sources import SOURCES, load_series
from fedproto_app.data.windows import why_refused as why_series_refused
from fedproto_app.errors import DataError
from fedproto_app.settings import DataSettings, Settings


def reasons_against(settings: Settings) -> dict[str, str | None]:
    """For every client of the run's data why it cannot take part, None for one that can.

    Raises `DataError` if the source fits another task, cannot be read, or has too few images or
    classes for the partition. An image whose file is damaged is not noticed.
    """
    require_fitting_source(settings)
    if settings.task == "forecasting":
        clients = load_series(settings.data)
        return {series.name: why_series_refused(series, settings.data) for series in clients}
    pool = load_pool(settings.data)
    holdings = partition_pool(pool, settings.data, settings.seed)
    require_fitting_stages(settings, [len(holding.stages) for holding in holdings])
    partition = settings.data.partition
    return {holding.name: why_images_refused(holding.stages, partition) for holding in holdings}


def require_fitting_source(settings: Settings) -> None:
    """Refuse a source of the other task; a user's own function shows only when it is called."""
    source = settings.data.source
    if settings.task == "forecasting" and source in IMAGE_SOURCES:
        raise DataError(f"data.source = {source!r} holds images; set task = 'classification'")
    if settings.task == "classification" and source in SOURCES:
        raise DataError(
            f"data.source = {source!r} holds series; set task = 'forecasting', or data.source to "
            f"images: {', '.join(IMAGE_SOURCES)} or package.module:factory"
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


def holds_images(settings: DataSettings) -> bool:
    """Whether the source has images, not series; a user's own function is called to see it.

    Raises `DataError` for an unknown source.
    """
    source = settings.source
    if ":" in source:
        return isinstance(users_function(source)(settings), ImagePool)
    require_known(settings, [*SOURCES, *IMAGE_SOURCES])
    return source in IMAGE_SOURCES
