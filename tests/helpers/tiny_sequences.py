"""Clients with a few sequences of noise, or vectors, and what works on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedproto_app.core.messages import Arrays
from fedproto_app.data.sequences.clients import ClientSequences, LabelledSequences
from fedproto_app.data.shape import DataShape
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.common.learner import AnyLearner, make_learner
from fedproto_app.tasks.sequences.task import SequenceTask
from fedproto_app.tasks.table import make_task

CLASSES = ("ant", "bee", "cat")
DIMENSIONS = 2  # d
WIDTH = 4  # D, of the causal CNN's vectors
ENCODER_ROUNDS = 2

Targets = Sequence[int] | Sequence[float]


def sequence_settings(**changes: Any) -> Settings:
    """Small encoders and batches of two sequences."""
    return settings_from(
        {
            "task": "sequence-classification",
            "method": "fed-react",
            "model.embedding-dim": 3,
            "model.hidden-dim": 5,
            "sequence.batch-size": 2,
            "encoder.rounds": ENCODER_ROUNDS,
            "encoder.steps": 3,
            "encoder.batch-size": 2,
            "encoder.negatives": 2,
            "encoder.blocks": 3,
            "encoder.channels": 4,
            "encoder.reduced-dim": 6,
            "encoder.output-dim": WIDTH,
            "fed-react.samples": 3,
            "fed-react.penalty": 1.0,
            **changes,
        }
    )


def task_of(settings: Settings, dimensions: int = DIMENSIONS) -> SequenceTask:
    """The settings' task on sequences of so many dimensions."""
    classes = CLASSES if settings.task == "sequence-classification" else ()
    task = make_task(settings, DataShape((dimensions,), classes))
    assert isinstance(task, SequenceTask)
    return task


def sequence_task(method: str = "fedavg", **changes: Any) -> SequenceTask:
    """The task with an encoder and a head that are trained together."""
    return task_of(sequence_settings(method=method, **changes))


def head_learner(method: str = "fed-react", **changes: Any) -> AnyLearner:
    """The method's client half in its second phase, where a client has vectors [1, WIDTH]."""
    settings = sequence_settings(method=method, **changes)
    return make_learner(settings, task_of(settings, WIDTH), settings.pretraining_rounds + 1)


def sequences_of(
    targets: Targets, lengths: Sequence[int], dimensions: int = DIMENSIONS, seed: int = 0
) -> LabelledSequences:
    """Noise whose mean tells the target. lengths: of the sequences, repeated if necessary."""
    rng = np.random.default_rng([seed, len(targets)])
    values = [
        (rng.normal(size=(lengths[n % len(lengths)], dimensions)) + target).astype(np.float32)
        for n, target in enumerate(targets)
    ]
    return LabelledSequences(values, np.array(targets))


def sequence_client(
    name: str,
    targets: Targets,
    lengths: Sequence[int] = (4,),
    tested: Targets | None = None,
    dimensions: int = DIMENSIONS,
) -> ClientSequences:
    """A client that is validated and tested on sequences with the targets `tested`, by default
    those that it trains on."""
    tested = targets if tested is None else tested
    seed = sum(name.encode())
    return ClientSequences(
        name,
        sequences_of(targets, lengths, dimensions, seed),
        sequences_of(tested, lengths, dimensions, seed + 1),
        sequences_of(tested, lengths, dimensions, seed + 2),
    )


def vector_client(name: str, targets: Targets, tested: Targets | None = None) -> ClientSequences:
    """A client whose sequences are vectors already."""
    return sequence_client(name, targets, (1,), tested, WIDTH)


def with_clients(parameters: dict[str, torch.Tensor], clients: int) -> dict[str, torch.Tensor]:
    """Return one client's parameters for several clients, each with its own random shift."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: value + 0.3 * torch.randn(clients, *value.shape, generator=generator)
        for name, value in parameters.items()
    }


def encoder_arrays(task: SequenceTask, shift: float = 0.0) -> Arrays:
    """The initial encoder as the server sends it, every value moved by shift."""
    return {n: v.numpy() + np.float32(shift) for n, v in task.initial_encoder().items()}
