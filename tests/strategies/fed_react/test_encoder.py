"""Fed-REACT's first phase at a client: how many steps, on what, and the loss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.randomness import torch_stream
from fedproto_app.data.sequences.clients import ClientSequences
from fedproto_app.strategies.common.learner import Cohort, Context, make_learner, train_cohort
from fedproto_app.strategies.fed_react.encoder import (
    ContrastiveBatch,
    ContrastiveEncoderLearner,
    Crops,
    cut,
    draw_crops,
    triplet_loss,
)
from fedproto_app.tasks.sequences.task import SequenceTask
from tests.helpers.tiny_cohort import cohort_of
from tests.helpers.tiny_sequences import ENCODER_ROUNDS, sequence_client, sequence_settings, task_of

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
    contribution = learner.contribution(cohort, Context())
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
    """Fed-REACT, eq. 1 of the first client, each crop encoded by itself, mean over references."""

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


def test_each_round_has_crops_of_its_own() -> None:
    learner = learner_of(**STILL)
    first, repeated, later = (trained(learner, CLIENTS, r)[0]["contrastive"] for r in (1, 1, 2))
    assert torch.equal(first, repeated)
    assert (first[:2] != later[:2]).all()


# --- the contrastive loss -------------------------------------------------------------------------


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_loss_by_hand() -> None:
    """Client 0 has products 2 with the positives and 1, −3 or 0, 4 with the negatives. All of
    client 1 are 0, which costs log 2 a term."""
    reference = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]])
    positive = torch.tensor([[[2.0, 5.0], [7.0, 1.0]], [[9.0, 9.0], [9.0, 9.0]]])
    negatives = torch.tensor([[[1.0, 8.0], [-3.0, 8.0]], [[6.0, 0.0], [6.0, 2.0]]])
    negatives = torch.stack([negatives, torch.ones(2, 2, 2)])
    first = -log_sigmoid(2) - log_sigmoid(-1) - log_sigmoid(3)
    second = -log_sigmoid(2) - log_sigmoid(0) - log_sigmoid(-4)
    value = triplet_loss(reference, positive, negatives)
    torch.testing.assert_close(value, torch.tensor([(first + second) / 2, 3 * math.log(2)]))


def test_the_negatives_terms_may_be_averaged_and_large_products_overflow_nothing() -> None:
    reference, positive = torch.tensor([[[1.0]]]), torch.tensor([[[2.0]]])
    negatives = torch.tensor([[[[1.0], [-3.0]]]])
    value = triplet_loss(reference, positive, negatives, averages=True)
    expected = -log_sigmoid(2) - (log_sigmoid(-1) + log_sigmoid(3)) / 2
    torch.testing.assert_close(value, torch.tensor([expected]))
    reference = torch.full((1, 1, 1), 100.0, requires_grad=True)
    value = triplet_loss(reference, -reference, reference.unsqueeze(3))
    assert value.tolist() == [20_000]
    value.sum().backward()
    assert reference.grad.isfinite().all()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    batch=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_crops_lie_where_they_should(lengths: list[int], batch: int, seed: int) -> None:
    series_lengths = torch.tensor(lengths)
    series, starts, cropped = draw_crops(series_lengths, 7, batch, 3, seeded(seed))
    assert series.shape == starts.shape == cropped.shape == (7, batch, 5)
    assert (series >= 0).all()
    assert (starts >= 0).all()
    assert (cropped >= 1).all()
    assert (starts + cropped <= series_lengths[series]).all()
    ends = starts + cropped
    assert (series[..., 1] == series[..., 0]).all()
    assert (starts[..., 1] >= starts[..., 0]).all()
    assert (ends[..., 1] <= ends[..., 0]).all()
    different = series[..., 2:] != series[..., :1]
    assert different.all() if len(lengths) > 1 else not different.any()
    if len(set(lengths)) == 1:  # rectangular, as in the paper's code
        assert (cropped[..., 1:] == cropped[:, :1, 1:2]).all()
        assert (cropped[..., 0] == cropped[:, :1, 0]).all()


def test_every_length_start_and_other_series_is_as_likely() -> None:
    """5 series with 6 steps, 20,000 batches. A share of 1/6 has standard error 0.003."""
    series, starts, lengths = draw_crops(torch.full((5,), 6), 20_000, 1, 1, seeded(0))
    positive, reference = lengths[:, 0, 1], lengths[:, 0, 0]
    torch.testing.assert_close(shares(positive, 7)[1:], torch.full((6,), 1 / 6), atol=0.012, rtol=0)
    after = reference[positive == 3]
    torch.testing.assert_close(shares(after, 7)[3:], torch.full((4,), 1 / 4), atol=0.03, rtol=0)
    start = starts[:, 0, 2][positive == 3]
    torch.testing.assert_close(shares(start, 4), torch.full((4,), 1 / 4), atol=0.03, rtol=0)
    inside = (starts[:, 0, 1] - starts[:, 0, 0])[(positive == 3) & (reference == 6)]
    torch.testing.assert_close(shares(inside, 4), torch.full((4,), 1 / 4), atol=0.06, rtol=0)
    distances = (series[:, 0, 2] - series[:, 0, 0]) % 5
    torch.testing.assert_close(
        shares(distances, 5)[1:], torch.full((4,), 1 / 4), atol=0.012, rtol=0
    )


def shares(drawn: Tensor, values: int) -> Tensor:
    return torch.bincount(drawn, minlength=values) / len(drawn)


def test_series_are_references_equally_often_in_changing_order() -> None:
    drawn = draw_crops(torch.full((7,), 4), 21, 2, 1, seeded(3))
    turns = drawn.series[..., 0].flatten().view(6, 7)
    assert (turns.sort(dim=1).values == torch.arange(7)).all()
    assert len({tuple(turn.tolist()) for turn in turns}) > 1
    # The generator decides.
    assert all(map(torch.equal, drawn, draw_crops(torch.full((7,), 4), 21, 2, 1, seeded(3))))
    other_seed = draw_crops(torch.full((7,), 4), 21, 2, 1, seeded(6))
    assert not torch.equal(drawn.starts, other_seed.starts)


def test_crops_are_cut_by_hand() -> None:
    """A series holds 100·client + 10·series + step, and the crops of client 1 are shorter."""
    values = (
        100 * torch.arange(2).view(2, 1, 1) + 10 * torch.arange(3).view(1, 3, 1) + torch.arange(5)
    ).unsqueeze(3)
    crops = Crops(
        torch.tensor([[[2, 2, 0, 1]], [[1, 1, 2, 2]]]),
        torch.tensor([[[0, 1, 3, 0]], [[4, 4, 0, 1]]]),
        torch.tensor([[[4, 2, 2, 3]], [[1, 1, 1, 2]]]),
    )
    batch = cut(values, crops, torch.tensor([4, 3]))
    assert batch.inputs.squeeze(3).tolist() == [[[20, 21, 22, 23]], [[114, 0, 0, 0]]]
    assert batch.lengths.tolist() == [[4], [1]]
    assert batch.candidates.squeeze(4).tolist() == [
        [[[21, 22, 0], [3, 4, 0], [10, 11, 12]]],
        [[[114, 0, 0], [120, 0, 0], [121, 122, 0]]],
    ]
    assert batch.candidate_lengths.tolist() == [[[2, 2, 3]], [[1, 1, 2]]]
