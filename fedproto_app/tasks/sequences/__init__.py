"""Sequences with a class or a number each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedproto_app.tasks import small_runs
from fedproto_app.tasks.parts import Admission, TaskParts

if TYPE_CHECKING:
    from fedproto_app.data.shard import Shard
    from fedproto_app.settings import Settings
    from fedproto_app.tasks.task import AnyTask


class SequenceClassificationParts(TaskParts):
    """The parts of the classification of sequences."""

    small = small_runs.LABELLED_SEQUENCES

    def task_class(self) -> type[AnyTask]:
        from fedproto_app.tasks.sequences.task import SequenceClassificationTask

        return SequenceClassificationTask

    def load(self, settings: Settings, partition: int, partitions: int) -> Shard:
        from fedproto_app.tasks.sequences.clients import load_shard

        return load_shard(settings, partition, partitions)

    def read(self, settings: Settings) -> None:
        from fedproto_app.data.sequences.sources import load_sequences
        from fedproto_app.data.shared_read import read_once

        read_once(load_sequences, settings.data)

    def admission(self, settings: Settings) -> Admission:
        from fedproto_app.tasks.sequences.clients import reasons_against

        return Admission(reasons_against(settings))

    def has_pool(self, loaded: object) -> bool:
        from fedproto_app.data.sequences.pool import SequencePool

        return isinstance(loaded, SequencePool)


class SequenceRegressionParts(SequenceClassificationParts):
    """The parts of the regression of a number on a sequence."""

    small = small_runs.MEASURED_SEQUENCES

    def task_class(self) -> type[AnyTask]:
        from fedproto_app.tasks.sequences.task import SequenceRegressionTask

        return SequenceRegressionTask


PARTS: dict[str, TaskParts] = {
    "sequence-classification": SequenceClassificationParts(),
    "sequence-regression": SequenceRegressionParts(),
}
