"""The clients' own models at the server: for rules that bear hostile clients, and for methods that
look at each.

The rules are Flower's own: coordinate-wise median and trimmed mean (Yin et al., ICML 2018), Krum
and Multi-Krum (Blanchard et al., NeurIPS 2017). Clipping is ours: a client's step away from the
model of the round is shortened to the median length of the round's steps, then the mean is taken.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import median_low

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, MultiKrum
from numpy.typing import NDArray
from scipy.stats import trim_mean

from fedproto_app.core.clients import ClientKey
from fedproto_app.errors import FederationError
from fedproto_app.messages import Arrays, Reply
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import AggregationSettings
from fedproto_app.wire import ARRAYS, array_record, numpy_arrays

_COPIES = 3  # of a client's model at a time: bytes of the message, arrays, and all of them stacked


def each_client(
    answers: Iterable[NodeReply], names: Collection[str]
) -> list[tuple[ClientKey, Reply, Message]]:
    """A reply of its own for each client, with these arrays, in the order of the clients' names."""
    found = []
    for answer in answers:
        reply = answer.reply
        for row, key in enumerate(answer.keys()):
            arrays = {name: reply.arrays[name][row] for name in names}
            one = Reply([key.client], [reply.samples[row]], arrays=arrays)
            found.append((key, one, answer.message))
    return sorted(found, key=lambda one: one[0])


def require_room(settings: AggregationSettings, clients: int, values: int) -> None:
    """`FederationError` if models of so many values of so many clients take too much memory."""
    megabytes = _COPIES * clients * 4 * values / 1e6
    if megabytes > settings.most_megabytes:
        raise FederationError(
            f"aggregation.most-megabytes = {settings.most_megabytes}: the models of {clients} "
            f"clients, {values} values each, take {megabytes:.0f} MB at the server; raise it, or "
            "lower participation"
        )


class ClippedMean(FedAvg):
    """Flower's mean of models whose steps from `before` were clipped."""

    def __init__(self, before: Arrays) -> None:
        super().__init__()
        self._before = before

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        messages = list(replies)
        models = [numpy_arrays(one.content.array_records[ARRAYS]) for one in messages]
        for message, model in zip(messages, clipped(models, self._before), strict=True):
            message.content[ARRAYS] = array_record(model)
        return super().aggregate_train(server_round, messages)


def rule_of(settings: AggregationSettings, clients: int, before: Arrays) -> FedAvg:
    """Flower's strategy whose rule makes one model of so many clients' ones, which began with
    `before`."""
    hostile = math.floor(settings.hostile_share * clients)
    rule: FedAvg
    if settings.rule == "median":
        rule = FedMedian()
    elif settings.rule == "trimmed-mean":
        rule = FedTrimmedAvg(beta=settings.hostile_share)
    elif settings.rule == "krum":
        rule = MultiKrum(num_malicious_nodes=hostile, num_nodes_to_select=1)
    elif settings.rule == "multi-krum":
        kept = max(1, clients - hostile)
        rule = MultiKrum(num_malicious_nodes=hostile, num_nodes_to_select=kept)
    elif settings.rule == "clipped-mean":
        rule = ClippedMean(before)
    else:
        rule = FedAvg()
    return rule


def middle(rows: NDArray[np.float32], settings: AggregationSettings) -> NDArray[np.float32]:
    """One prototype of the clients' [N, …], by the rule's counterpart.

    The mean, the trimmed mean, or for every other rule that bears hostile clients the median: of
    a few numbers distances and lengths tell little.
    """
    if settings.rule == "mean":
        mean: NDArray[np.float32] = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean
    share = settings.hostile_share
    found = trim_mean(rows, share) if settings.rule == "trimmed-mean" else np.median(rows, axis=0)
    return np.asarray(found, dtype=np.float32)


def clipped(models: Sequence[Arrays], before: Arrays) -> list[Arrays]:
    """The models, their steps from `before` shortened to the median length of all steps.

    Lengths are Euclidean, over all arrays together. Of an even number of steps the lower of the two
    in the middle counts, which half of the clients cannot raise.
    """
    steps = [{name: value - before[name] for name, value in model.items()} for model in models]
    lengths = [
        math.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in step.values()))
        for step in steps
    ]
    limit = median_low(lengths) if lengths else 0.0
    return [
        model
        if length <= limit
        else {name: before[name] + np.float32(limit / length) * step[name] for name in step}
        for model, step, length in zip(models, steps, lengths, strict=True)
    ]
