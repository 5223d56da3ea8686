"""Decide what a node reports about its clients beyond arrays: losses, errors, sample counts.

`privacy.metrics` says whether a run's nodes report everything, nothing, or only the errors by which
models are chosen and ranked, with noise added (`trust/noised_errors.py`). The node itself chooses
the models to keep by the exact errors.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedproto_app.core.messages import Order, Reply
from fedproto_app.core.metrics import Metric
from fedproto_app.node.protection import Protection
from fedproto_app.settings import Settings
from fedproto_app.settings.fit import withholds_samples
from fedproto_app.tasks.metrics import TaskMetrics
from fedproto_app.trust.noised_errors import NoisedErrors
from fedproto_app.trust.privacy_loss import privacy_plan


class Reporting:
    """The last stage of a cohort's reply, in runs where not all results may leave the node.

    required: the metrics that every client evaluates.
    """

    def __init__(
        self,
        settings: Settings,
        task: TaskMetrics,
        required: Sequence[Metric],
        protection: Protection | None,
    ) -> None:
        self._counts_samples = not withholds_samples(settings)
        self._protection = protection
        plan = privacy_plan(settings) if settings.privacy.reported == "noised" else None
        self._errors = None if plan is None else NoisedErrors.planned(plan, task, required)

    def applied(self, reply: Reply, order: Order) -> Reply:
        """Remove from the reply, in place, all that the server must not learn. Return the reply."""
        evaluated = reply.metrics if reply.kept_rounds else {}
        reply.losses, reply.metrics, reply.kept_rounds = {}, {}, []
        if not self._counts_samples:
            reply.samples = [1] * len(reply.names)
        if self._errors is not None and evaluated:
            assert self._protection is not None
            reply.metrics = {metric: [] for metric in self._errors.metrics}
            reply.kept_rounds = [0] * len(reply.names)  # 0: withheld
            for row, client in enumerate(reply.names):
                exact = {metric: values[row] for metric, values in evaluated.items()}
                offsets, reason = self._protection.errors(
                    client, self._errors.offsets(exact), order, self._errors.deviation
                )
                for metric, value in self._errors.reported(offsets).items():
                    reply.metrics[metric].append(value)
                if reason:
                    reply.failed[client] = reason
        return reply
