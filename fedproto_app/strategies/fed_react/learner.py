"""Phase 2, client half (Fed-REACT, Algorithm 2): fit a head to a few labelled samples and send it.

The client's sequences are vectors here, computed by the frozen encoder (`encoder.py`). A client
predicts with its own head until the server sends its cluster's head. After that it predicts with
the newest head that the server has sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.linear_heads import Head, Vectors
from fedproto_app.strategies.common.closed_form import ClosedFormLearner
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution
from fedproto_app.strategies.fed_react import FedReactSettings
from fedproto_app.tasks.sequences.task import SequenceTask

HEAD, HEADS = "head", "heads"  # the array that a client sends; the array with clusters' heads


class HeadMemory(NamedTuple):
    """A client's memory. local: the head of its last training. received: the last head from the
    server. Both are [outputs, D + 1]. has_received: whether the server has sent one, bool."""

    local: Tensor
    received: Tensor
    has_received: Tensor


class HeadContext(Context):
    """The cohort's samples of this round: vectors M_t and their targets by client."""

    def __init__(self, vectors: list[Vectors], targets: list[Any]) -> None:
        self.vectors, self.targets = vectors, targets


class EvolutionaryClusterLearner(ClosedFormLearner[HeadContext, SequenceTask]):
    """Fits a head for each client in every round. The server combines the heads."""

    needs_representation = True
    section: FedReactSettings

    @classmethod
    def sends(cls, section: FedReactSettings, sizes: Sizes) -> Sequence[Sends]:
        return [
            Sends(
                "head",
                {HEAD: (sizes.outputs, sizes.width + 1)},
                combine="groups",
                remember="latest",
                clip="rows",
                any_size=True,
                reveals="a head fitted to its samples",
            )
        ]

    def initial_parameters(self) -> dict[str, Tensor]:
        return {}  # nothing is trained by gradients

    def initial_memory(self) -> HeadMemory:
        (width,) = self.task.shape.inputs  # of the vectors
        empty = torch.zeros(self.task.outputs, width + 1)
        return HeadMemory(local=empty, received=empty, has_received=torch.tensor(False))

    def begin(self, cohort: Cohort) -> None:
        """Draw each client's train samples M_t of the round, uniformly without replacement."""
        limit = self.section.samples
        samples = cohort.samples
        counts = [min(limit or have, have) for have in samples.train_samples]
        choices = np.zeros((len(counts), max(counts)), dtype=np.int64)
        for row, (name, count) in enumerate(zip(cohort.names, counts, strict=True)):
            draws = numpy_stream(self.training.seed, name, self._task_round(cohort), "samples")
            choices[row, :count] = draws.choice(samples.train_samples[row], count, replace=False)
        picked = torch.from_numpy(choices)
        rows = torch.arange(len(counts)).unsqueeze(1)
        cohort.samples = replace(
            samples,
            train_samples=counts,
            values=samples.values[rows, picked],
            lengths=samples.lengths[rows, picked],
            targets=samples.targets[rows, picked],
        )

    def context(self, guidance: Guidance, cohort: Cohort) -> HeadContext:
        samples = cohort.samples
        counts = samples.train_samples
        values, labels = samples.values[:, :, 0].cpu().numpy(), samples.targets.cpu().numpy()
        vectors = [values[row, :count] for row, count in enumerate(counts)]
        targets = [labels[row, :count] for row, count in enumerate(counts)]
        return HeadContext(vectors, targets)

    def conclude(self, cohort: Cohort, context: HeadContext) -> dict[str, Tensor]:
        """Fit each client's head to its M_t, and return the loss of the fit."""
        losses = []
        for row, (vectors, targets) in enumerate(
            zip(context.vectors, context.targets, strict=True)
        ):
            head = self.task.fit_head(vectors, targets, self.section.penalty)
            cohort.memory.local[row] = torch.from_numpy(head)
            losses.append(self.task.head_loss(head, vectors, targets))
        return {"head": torch.tensor(losses), "total": torch.tensor(losses)}

    def contribution(self, cohort: Cohort, context: HeadContext) -> Contribution:
        return Contribution({HEAD: cohort.memory.local.cpu().numpy()})

    def receive(self, cohort: Cohort, guidance: Guidance) -> list[int]:
        """Store the heads that the server sends for the clusters of some clients."""
        heads: dict[str, Head] = dict(
            zip(guidance.clients, guidance.arrays.get(HEADS, ()), strict=True)
        )
        rows = [row for row, name in enumerate(cohort.names) if name in heads]
        for row in rows:
            cohort.memory.received[row] = torch.from_numpy(heads[cohort.names[row]])
            cohort.memory.has_received[row] = True
        return rows

    def predictor(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a kept model with the head in use, which is part of the memory."""
        used = _in_use(HeadMemory(*(parameters[f"memory/{field}"] for field in HeadMemory._fields)))
        head = {"weight": used[:, :, :-1].transpose(1, 2), "bias": used[:, :, -1]}
        return {**parameters, **{self.task.head + name: value for name, value in head.items()}}

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Return the metrics of the head in use and of the client's own head."""
        local = self._judge(cohort.memory.local, cohort)
        return {
            **self._judge(_in_use(cohort.memory), cohort),
            **{replace(metric, model=Model.LOCAL): values for metric, values in local.items()},
        }

    def _judge(self, heads: Tensor, cohort: Cohort) -> dict[Metric, list[float]]:
        """Return the metrics of heads [K, outputs, D + 1]."""
        vectors = cohort.samples.test_values[:, :, 0]  # (K, m, D)
        outputs = torch.baddbmm(heads[:, None, :, -1], vectors, heads[:, :, :-1].transpose(1, 2))
        return self.task.judge(outputs, cohort.samples)

    def _task_round(self, cohort: Cohort) -> int:
        """Return the round's number in this phase, from 1 on, even if the encoder was loaded."""
        return cohort.server_round - self.training.pretraining_rounds


def _in_use(memory: HeadMemory) -> Tensor:
    """Return the heads [K, outputs, D + 1] that K clients predict with."""
    return torch.where(memory.has_received[:, None, None], memory.received, memory.local)
