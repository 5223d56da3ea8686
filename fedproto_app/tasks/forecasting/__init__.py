"""Forecasting: series of values, cut into windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedproto_app.tasks import small_runs
from fedproto_app.tasks.parts import Admission, TaskParts

if TYPE_CHECKING:
    from fedproto_app.data.shard import Shard
    from fedproto_app.settings import Settings
    from fedproto_app.tasks.task import AnyTask


class ForecastingParts(TaskParts):
    """The parts of forecasting."""

    small = small_runs.SERIES

    def task_class(self) -> type[AnyTask]:
        from fedproto_app.tasks.forecasting.task import ForecastingTask

        return ForecastingTask

    def load(self, settings: Settings, partition: int, partitions: int) -> Shard:
        from fedproto_app.tasks.forecasting.clients import load_shard

        return load_shard(settings, partition, partitions)

    def read(self, settings: Settings) -> None:
        from fedproto_app.data.shared_read import read_once
        from fedproto_app.data.sources import load_series

        read_once(load_series, settings.data)

    def admission(self, settings: Settings) -> Admission:
        from fedproto_app.tasks.forecasting.clients import admission

        return admission(settings)


PARTS: dict[str, TaskParts] = {"forecasting": ForecastingParts()}
