"""Phase 1, client half (Fed-REACT, Algorithm 1): learn the shared encoder without labels.

Franceschi, Dieuleveut and Jaggi (NeurIPS 2019): a part of a series should look like a part of
that part, and unlike parts of other series. Only the encoder is sent; the server half is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedproto_app.core.messages import Order
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.settings import EncoderSettings
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Context, Learner, Phase
from fedproto_app.strategies.fed_react.encoder_learner import (
    ContrastiveBatch,
    contrastive_batches,
    contrastive_loss,
)
from fedproto_app.tasks.sequences.samples import CohortSequences
from fedproto_app.tasks.sequences.task import SequenceTask


class ContrastiveEncoderLearner(Learner[Context, SequenceTask]):
    """The triplet loss (Fed-REACT, eq. 1) on the encoder, by default the causal CNN.

    It learns from all train sequences, with a label or without.
    """

    needs_representation = True

    section: EncoderSettings

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        return [model(sizes.encoder)]

    def initial_parameters(self) -> dict[str, Tensor]:
        return self.task.initial_encoder()

    def phases(self) -> Sequence[Phase]:
        return [Phase("contrastive", (self.task.encoder,), 1)]

    def begin(self, cohort: Cohort) -> None:
        samples, steps = cohort.samples, [self.section.steps] * len(cohort.names)
        cohort.samples = replace(
            samples,
            batch_counts=steps,
            train_samples=samples.trainable,
            unlabelled=[0] * len(steps),
        )

    def batches(
        self, samples: CohortSequences, generators: Sequence[torch.Generator]
    ) -> Iterator[ContrastiveBatch]:
        return contrastive_batches(
            samples.values,
            samples.lengths,
            samples.train_samples,
            generators,
            steps=self.section.steps,
            batch=self.section.batch_size,
            negatives=self.section.negatives,
        )

    def context(self, order: Order, cohort: Cohort) -> Context:
        return Context()

    def loss(
        self, parameters: Mapping[str, Tensor], batch: ContrastiveBatch, context: Context
    ) -> dict[str, Tensor]:
        averages = self.section.negative_terms == "mean"
        encode = partial(self.task.encode, parameters)
        return {"contrastive": contrastive_loss(encode, batch, averages=averages)}
