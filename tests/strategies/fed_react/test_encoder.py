"""Fed-REACT's first phase at a client: how many steps, on what, and the loss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.randomness import torch_stream
from fedproto_app.data.sequences.clients import ClientSequences
from fedproto_app.strategies.common.learner import Cohort, Context, make_learner, train_cohort
from fedproto_app.strategies.fed_react.encoder import (
    ContrastiveBatch,
    ContrastiveEncoderLearner,
)
from fedproto_app.tasks.sequences.task import SequenceTask
from tests.helpers.tiny_cohort import cohort_of
from tests.helpers.tiny_sequences import (
    ENCODER_ROUNDS,
    sequence_client,
    sequence_settings,
    task_of,
)

CLIENTS = (
    sequence_client("a", [0, 1, 2, 0, 1], [9, 12, 4]),
    sequence_client("b", [1, 1, 2], [5, 3]),
    sequence_client("c", [2], [1]),
)
STEPS = 3
STILL = {"optimizer.name": "sgd", "optimizer.learning-rate": 1e-30}


def learner_of(**changes: Any) -> ContrastiveEncoderLearner:
    settings = sequence_settings(**changes)
    learner = make_learner(settings, task_of(settings))
    assert isinstance(learner, ContrastiveEncoderLearner)
    return learner


def trained(
    learner: ContrastiveEncoderLearner,
    clients: tuple[ClientSequences, ...] = CLIENTS,
    server_round: int = 1,
) -> tuple[dict[str, Tensor], Cohort]:
    """The losses of a round, and what became of the clients."""
    cohort = cohort_of(learner, clients, server_round)
    learner.begin(cohort)
    guidance = Guidance()
    return train_cohort(learner, cohort, learner.context(guidance, cohort)), cohort


@pytest.mark.parametrize("method", ["fed-react", "ifca", "flsc"])
def test_the_first_rounds_of_these_methods_learn_the_encoder(method: str) -> None:
    settings = sequence_settings(method=method)
    task = task_of(settings)
    kinds = [
        isinstance(make_learner(settings, task, r), ContrastiveEncoderLearner)
        for r in range(1, ENCODER_ROUNDS + 2)
    ]
    assert kinds == [True] * ENCODER_ROUNDS + [False]
    with_encoder = sequence_settings(method=method, **{"encoder.path": "a run"})
    assert not isinstance(make_learner(with_encoder, task, 1), ContrastiveEncoderLearner)


def test_the_encoder_and_nothing_else_is_learned_and_sent() -> None:
    learner = learner_of()
    initial = learner.initial_parameters()
    assert set(initial) == set(learner.task.initial_encoder())
    assert all(name.startswith("encoder.") and learner.is_shared(name) for name in initial)
    _, cohort = trained(learner)
    for name, value in cohort.parameters.items():
        moved = (value != initial[name]).flatten(start_dim=1).any(dim=1)
        assert moved[:2].all(), name
    contribution = learner.contribution(cohort, Context(), 1)
    assert contribution.arrays == {}


def test_a_head_beside_the_encoder_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with a decay, which moves all that learns."""
    learner = learner_of(**{"optimizer.name": "sgd", "optimizer.weight-decay": 0.1})
    initial_model = learner.task.initial_parameters()
    monkeypatch.setattr(learner, "initial_parameters", lambda: initial_model)
    _, cohort = trained(learner)
    for name, value in initial_model.items():
        unchanged = all(torch.equal(row, value) for row in cohort.parameters[name])
        assert unchanged == name.startswith("head."), name


@pytest.mark.parametrize("steps", [1, 4])
def test_a_client_takes_the_set_number_of_steps(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its number of sequences and the settings of supervised epochs."""
    learner = learner_of(**{"encoder.steps": steps, "local-epochs": 5})
    shapes: list[torch.Size] = []
    plain = learner.loss

    def counting(
        parameters: dict[str, Tensor], batch: ContrastiveBatch, context: Context
    ) -> dict[str, Tensor]:
        shapes.append(batch.candidate_lengths.shape)
        return plain(parameters, batch, context)

    monkeypatch.setattr(learner, "loss", counting)
    _, cohort = trained(learner)
    assert shapes == [(3, 2, 1 + 2)] * steps  # clients, references, positive and negatives
    assert cohort.samples.train_samples == [5, 3, 1]  # the weights in the mean


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value))


def by_hand(
    task: SequenceTask, parameters: dict[str, Tensor], batch: ContrastiveBatch, terms: str
) -> float:
    """Fed-REACT, eq. 1 of the first client, each crop encoded by itself; mean over references."""

    def vector(crop: Tensor, length: Tensor) -> Tensor:
        steps = int(length)
        return task.encode(parameters, crop[None, None, :steps], length[None, None])[0, 0]

    losses = []
    for b in range(batch.lengths.shape[1]):
        reference = vector(batch.inputs[0, b], batch.lengths[0, b])
        positive, *negatives = (
            float(reference @ vector(crop, length))
            for crop, length in zip(
                batch.candidates[0, b], batch.candidate_lengths[0, b], strict=True
            )
        )
        away = sum(log_sigmoid(-score) for score in negatives)
        losses.append(-log_sigmoid(positive) - away / (len(negatives) if terms == "mean" else 1))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("terms", ["sum", "mean"])
@torch.no_grad()
def test_the_loss_of_a_round_is_that_of_eq_1(terms: str) -> None:
    """With steps too small to move anything, the mean over the steps at the initial encoder."""
    learner = learner_of(**STILL, **{"encoder.negative-terms": terms})
    with torch.enable_grad():
        losses, cohort = trained(learner)
    assert set(losses) == {"total", "contrastive"}
    assert torch.equal(losses["total"], losses["contrastive"])
    initial = {name: value.unsqueeze(0) for name, value in learner.initial_parameters().items()}
    for row, client in enumerate(CLIENTS):
        samples = learner.task.gather([client], 1)
        stream = torch_stream(learner.task.settings.seed, client.name, 1, "contrastive", 0)
        batches = list(learner.batches(samples, [stream]))
        assert len(batches) == STEPS
        expected = sum(by_hand(learner.task, initial, batch, terms) for batch in batches) / STEPS
        assert losses["contrastive"][row].item() == pytest.approx(expected, rel=1e-4)
        assert all(torch.equal(cohort.parameters[n][row], v[0]) for n, v in initial.items())


def test_sequences_without_a_label_are_learned_from() -> None:
    learner, [first_client, *_] = learner_of(), CLIENTS
    train = first_client.train
    labelled = replace(train, values=train.values[:1], targets=train.targets[:1])
    partly_labelled = replace(first_client, train=labelled, unlabelled=train.values[1:])
    losses, cohort = trained(learner, (partly_labelled,))
    expected, of_all = trained(learner, (first_client,))
    assert cohort.samples.train_samples == of_all.samples.train_samples == [len(train)]
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(cohort.parameters, of_all.parameters)


def test_neighbours_and_labels_change_nothing() -> None:
    learner = learner_of()
    losses, together = trained(learner)
    for row, client in enumerate(CLIENTS):
        other_labels = replace(client.train, targets=2 - client.train.targets)
        alone_losses, alone = trained(learner, (replace(client, train=other_labels),))
        torch.testing.assert_close(losses["contrastive"][row], alone_losses["contrastive"][0])
        for name, value in alone.parameters.items():
            torch.testing.assert_close(
                together.parameters[name][row], value[0], rtol=1e-4, atol=1e-5
            )


def test_each_round_has_crops_of_its_own() -> None:
    learner = learner_of(**STILL)
    first, repeated, later = (trained(learner, CLIENTS, r)[0]["contrastive"] for r in (1, 1, 2))
    assert torch.equal(first, repeated)
    assert (first[:2] != later[:2]).all()
