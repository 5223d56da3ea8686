"""FLSC (Li, Li and Varshney, IEEE Internet of Things Journal 2021), client half, on heads.

Clusters overlap: a client belongs to the ``flsc.overlap`` clusters whose heads have the lowest loss
on its samples of the round.
"""

from __future__ import annotations

from fedproto_app.learners.ifca import IfcaLearner
from fedproto_app.settings import Settings
from fedproto_app.tasks.sequences import SequenceTask


class FlscLearner(IfcaLearner):
    """IFCA with several clusters a client."""

    def __init__(self, settings: Settings, task: SequenceTask) -> None:
        super().__init__(settings, task)
        self.overlap = settings.flsc.overlap
