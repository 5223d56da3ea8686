"""Classification of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedproto_app.tasks import small_runs
from fedproto_app.tasks.parts import Admission, TaskParts

if TYPE_CHECKING:
    from fedproto_app.data.shard import Shard
    from fedproto_app.settings import Settings
    from fedproto_app.tasks.task import AnyTask


class ImageParts(TaskParts):
    """The parts of the classification of images."""

    small = small_runs.IMAGES

    def task_class(self) -> type[AnyTask]:
        from fedproto_app.tasks.images.task import ClassificationTask

        return ClassificationTask

    def load(self, settings: Settings, partition: int, partitions: int) -> Shard:
        from fedproto_app.tasks.images.clients import load_shard

        return load_shard(settings, partition, partitions)

    def read(self, settings: Settings) -> None:
        from fedproto_app.data.shared_read import read_once
        from fedproto_app.tasks.images.clients import dealt

        read_once(dealt, settings.data, settings.seed)

    def admission(self, settings: Settings) -> Admission:
        from fedproto_app.tasks.images.clients import reasons_against

        return Admission(reasons_against(settings))

    def has_pool(self, loaded: object) -> bool:
        from fedproto_app.data.images.pool import ImagePool

        return isinstance(loaded, ImagePool)


PARTS: dict[str, TaskParts] = {"classification": ImageParts()}
