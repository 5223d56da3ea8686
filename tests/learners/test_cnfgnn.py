"""CNFGNN's client half: what it trains on, what it tells, and against torch's own GRUs and Adam."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.maths.losses import prediction_loss
from fedproto_app.strategies.common.learner import Cohort
from fedproto_app.strategies.compared.cnfgnn.learner import (
    COUNT,
    ENCODINGS,
    FIRST,
    GRADIENT,
    GRAPH,
    STEPS,
    CnfgnnLearner,
)
from tests.learners.tiny_cohort import NAMES, PERIOD, tiny_cohort, tiny_learner, train

HIDDEN = 3
GRU = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
GUIDANCE = Guidance()


def learner_of(model: str = "paper") -> CnfgnnLearner:
    learner = tiny_learner("cnfgnn", **{"cnfgnn.hidden": HIDDEN, "cnfgnn.model": model})
    assert isinstance(learner, CnfgnnLearner)
    return learner


def span(cohort: Cohort) -> tuple[int, int]:
    """The time of the clients' first sample, and how many they have."""
    return cohort.samples.starts[0], cohort.samples.lengths[0]


def with_graph(first: int, values: Tensor, names: list[str] = NAMES) -> Guidance:
    """An order with g [n, T, d_g] of these clients."""
    options = {FIRST: float(first), COUNT: float(values.shape[1])}
    return replace(GUIDANCE, arrays={GRAPH: values.numpy()}, clients=names, options=options)


def test_without_g_a_round_is_plain_training_of_two_grus() -> None:
    """The same with torch's modules and its Adam, on the batches that the task draws."""
    learner, cohort = learner_of(), tiny_cohort(learner_of())
    start = {name: value.clone() for name, value in cohort.parameters.items()}
    samples, task = cohort.samples, learner.task
    draws = [torch_stream(0, name, 1, "local", 0) for name in NAMES]
    batches = list(task.batches(samples, draws))
    assert len(batches) > 2
    losses, sent_arrays, cohort = train(learner, GUIDANCE, cohort)
    assert sent_arrays == {}
    for k in range(2):
        encoder, decoder = (
            torch.nn.GRU(2, size, batch_first=True) for size in (HIDDEN, 2 * HIDDEN)
        )
        last = torch.nn.Linear(2 * HIDDEN, 1)
        ours = {
            **{f"encoder.{name}": getattr(encoder, f"{name}_l0") for name in GRU},
            **{f"decoder.gru.{name}": getattr(decoder, f"{name}_l0") for name in GRU},
            "decoder.weight": last.weight,
            "decoder.bias": last.bias,
        }
        with torch.no_grad():
            for name, value in ours.items():
                value.copy_(start[name][k].transpose(0, -1))
        adam = torch.optim.Adam([*ours.values()], lr=1e-3)
        epoch_losses = []
        for batch in batches:
            # Rows have the phases 0 … 3; two days ago, one day ago, two, one step ago.
            values = batch.inputs[k][:, [2, 3, 0, 1]]
            phases = (torch.arange(PERIOD)[:, None] + torch.tensor([-8, -4, -2, -1])) % PERIOD
            read = torch.stack([values, phases / PERIOD], dim=2)
            _, h = encoder(read)
            state = torch.cat([h, torch.zeros(1, PERIOD, HIDDEN)], dim=2)
            decoded, _ = decoder(read[:, -1:], state)
            loss = (last(decoded[:, 0]) - batch.targets[k]).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            epoch_losses.append(loss.item())
        assert float(losses["total"][k]) == pytest.approx(np.mean(epoch_losses), rel=1e-5)
        for name, value in ours.items():
            torch.testing.assert_close(
                cohort.parameters[name][k].transpose(0, -1), value, rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("model", ["paper", "fuels"])
def test_g_reaches_the_samples_of_its_times(model: str) -> None:
    """g of all times; in training each sample of a batch has its own."""
    learner = learner_of(model)
    cohort = tiny_cohort(learner)
    first, count = span(cohort)
    values = torch.arange(count - 2.0).reshape(1, -1, 1).repeat(1, 1, HIDDEN)
    # From the second to the second-last sample, for client b alone.
    learner.context(with_graph(first + 1, values, ["b"]), cohort)
    graph = learner.model.graph_of(cohort.samples.inputs)
    assert not graph[0].any()
    assert graph[1, :, 0].tolist() == [0.0, *range(count - 2), 0.0]
    phases = learner.model.phase_of(cohort.samples.inputs)
    assert phases[0].tolist() == [(first + i) % PERIOD for i in range(count)]
    draws = [torch.Generator().manual_seed(0) for _ in NAMES]
    for batch in learner.batches(cohort.samples, draws):
        assert learner.model.phase_of(batch.inputs)[0].tolist() == [0, 1, 2, 3]
        of_batch = learner.model.graph_of(batch.inputs)[1, :, 0]
        rows = [int(value) + 1 for value in of_batch]
        torch.testing.assert_close(cohort.samples.targets[1, rows], batch.targets[1])


def test_times_at_which_a_client_has_no_sample_are_zeros() -> None:
    learner = learner_of()
    cohort = tiny_cohort(learner)
    first, count = span(cohort)
    guidance = replace(GUIDANCE, options={FIRST: first - 2.0, COUNT: count + 5.0})
    encodings = learner.answer(cohort, guidance).arrays[ENCODINGS]
    assert encodings.shape == (2, count + 5, HIDDEN)
    present = np.abs(encodings).max(axis=2) > 0
    assert present.tolist() == [[False] * 2 + [True] * count + [False] * 3] * 2
    assert np.abs(encodings).max() < 1


@pytest.mark.parametrize("model", ["paper", "fuels"])
def test_the_gradient_is_of_each_clients_own_loss(model: str) -> None:
    """Three times: trained on, in no batch, and with a missing target."""
    learner = learner_of(model)
    cohort = tiny_cohort(learner)
    first, count = span(cohort)
    used = sorted(int(place) for place in cohort.samples.batches[0].flatten())
    places = [used[3], count - 1, used[5]]
    cohort.samples.present[1, used[5]] = 0
    graph = torch.randn(2, 3, HIDDEN, generator=torch.Generator().manual_seed(1))
    arrays = {GRAPH: graph.flip(0).numpy(), STEPS: np.array(places, dtype=np.float32)}
    guidance = replace(GUIDANCE, arrays=arrays, clients=["b", "a"], options={FIRST: float(first)})
    gradient = torch.from_numpy(learner.answer(cohort, guidance).arrays[GRADIENT])

    leaf = graph.clone().requires_grad_()
    phases = torch.tensor([(first + place) % PERIOD for place in places]).float().expand(2, -1)
    inputs = learner.model.guided(cohort.samples.inputs[:, places], phases, leaf)
    forecast = learner.model.predict(
        cohort.parameters, learner.model.encode(cohort.parameters, inputs)
    )
    is_target = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]]).unsqueeze(2)
    prediction_loss(forecast, cohort.samples.targets[:, places], is_target).sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(gradient, leaf.grad)
    counts = gradient.any(dim=2).tolist()
    assert counts == [[True, False, True], [True, False, False]]


def test_evaluation_is_with_the_g_that_comes() -> None:
    learner = learner_of()
    cohort = tiny_cohort(learner)
    first, count = span(cohort)
    values = torch.zeros(1, count, HIDDEN)
    values[0, -1] = 3.0
    before, after = (
        learner.evaluate(cohort, guidance)
        for guidance in (GUIDANCE, with_graph(first, values, ["a"]))
    )
    changed = [a != b for a, b in zip(before[Metric("mse")], after[Metric("mse")], strict=True)]
    assert changed == [True, False]
    assert before[Metric("validation-mse")] == after[Metric("validation-mse")]
