"""Tasks on sequences: batches, padding, metrics by hand, and what a server accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedproto_app.core.metrics import Metric
from fedproto_app.data.sequences.clients import ClientSequences
from fedproto_app.maths.linear_heads import fit_classifier, fit_regressor
from fedproto_app.models.causal_cnn import CausalCnnModel
from fedproto_app.models.model import LinearHeadModel
from fedproto_app.models.sequence_model import LstmModel
from fedproto_app.tasks import labelled
from fedproto_app.tasks.labelled import LabelledBatch
from fedproto_app.tasks.sequences.task import (
    CohortSequences,
    SequenceTask,
)
from tests.helpers.tiny_sequences import (
    WIDTH,
    sequence_client,
    sequence_settings,
    sequence_task,
    sequences_of,
    task_of,
    vector_client,
    with_clients,
)

REGRESSION = {"task": "sequence-regression", "data.sequences.target-scale": 10.0}
CNN = {"model.sequence-encoder": "causal-cnn"}
EVERY_TASK = [{}, CNN, REGRESSION, {**REGRESSION, **CNN}]


def clients_of(task: SequenceTask) -> list[ClientSequences]:
    """Return a client with many long sequences and two with few short ones, down to one step."""
    targets = ([0, 1, 2, 0, 1], [2, 2, 1], [1])
    if task.settings.task == "sequence-regression":
        targets = ([0.5, 12.0, -3.0, 7.0, 1.0], [40.0, 2.0, 3.0], [5.0])
    lengths = ([9, 4, 7], [3, 2], [1])
    return [
        sequence_client(name, client_targets, steps)
        for name, client_targets, steps in zip("abc", targets, lengths, strict=True)
    ]


def seeded(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def rows_of(parameters: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    return {name: value[row : row + 1] for name, value in parameters.items()}


@pytest.mark.parametrize(
    ("method", "encoder", "model", "width"),
    [
        ("fedavg", "lstm", LstmModel, 5),
        ("fedavg", "causal-cnn", CausalCnnModel, WIDTH),
        ("fed-react", "lstm", CausalCnnModel, WIDTH),
        ("ifca", "lstm", CausalCnnModel, WIDTH),
        ("flsc", "causal-cnn", CausalCnnModel, WIDTH),
    ],
)
def test_methods_that_learn_their_encoder_first_take_the_cnn(
    method: str, encoder: str, model: type[LinearHeadModel], width: int
) -> None:
    task = task_of(sequence_settings(method=method, **{"model.sequence-encoder": encoder}))
    assert isinstance(task.model, model)
    assert task.representation_dim == width


def test_clients_are_stacked_with_zeros_after_the_end() -> None:
    task = sequence_task()
    clients = clients_of(task)
    with pytest.raises(AssertionError, match="out of order"):  # the most batches come first
        task.gather(clients[::-1], 1)
    samples = task.gather(clients, 1)
    assert samples.train_samples == [5, 3, 1]
    assert samples.batch_counts == [3, 2, 1]
    assert samples.values.shape == (3, 5, 9, 2)
    assert samples.lengths.tolist() == [[9, 4, 7, 9, 4], [3, 2, 3, 1, 1], [1] * 5]
    assert samples.targets.tolist() == [[0, 1, 2, 0, 1], [2, 2, 1, 0, 0], [1, 0, 0, 0, 0]]
    for row, client in enumerate(clients):
        for place, steps in enumerate(client.train.values):
            assert np.array_equal(samples.values[row, place, : len(steps)], steps)
            assert not samples.values[row, place, len(steps) :].any()
        assert not samples.values[row, len(client.train) :].any()


def test_validation_and_test_sequences_are_separate() -> None:
    task = sequence_task()
    first = replace(sequence_client("a", [0, 1, 2], [4, 3]), validation=sequences_of([2], [6]))
    second = replace(sequence_client("b", [1]), validation=sequences_of([2, 0], [2]))
    samples = task.gather([first, second], 1)
    assert samples.is_validation.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]
    assert samples.is_test.tolist() == [[0, 1, 1, 1], [0, 0, 1, 0]]
    assert samples.test_targets.tolist() == [[2, 0, 1, 2], [2, 0, 1, 0]]
    assert samples.test_lengths.tolist() == [[6, 4, 3, 4], [2, 2, 4, 1]]
    assert samples.test_values.shape == (2, 4, 6, 2)


@pytest.mark.parametrize("fixed", [False, True])
def test_an_epoch_has_every_sequence_once_in_random_order(fixed: bool) -> None:
    task = sequence_task()
    samples = task.gather(clients_of(task), 1)
    # What tells a sequence from another: its first value, which is also its first feature here.
    if fixed:
        samples = replace(samples, representation=samples.values[:, :, 0])

    def epoch(*seeds: int) -> list[LabelledBatch]:
        return list(task.batches(samples, seeded(*seeds)))

    def first(batch: LabelledBatch) -> Tensor:
        return batch.inputs[:, :, 0] if fixed else batch.inputs[:, :, 0, 0]

    batches = epoch(1, 2, 3)
    assert [len(batch.inputs) for batch in batches] == [3, 2, 1]
    assert [batch.encoded for batch in batches] == [fixed] * 3
    assert [batch.present.tolist() for batch in batches] == [
        [[1, 1], [1, 1], [1, 0]],
        [[1, 1], [1, 0]],
        [[1, 0]],
    ]
    for row, count in enumerate(samples.train_samples):
        epoch_samples = [
            (first(batch)[row, b].item(), int(batch.lengths[row, b]), int(batch.targets[row, b]))
            for batch in batches
            if row < len(batch.inputs)
            for b in range(2)
            if batch.present[row, b]
        ]
        columns = (samples.values[row, :, 0, 0], samples.lengths[row], samples.targets[row])
        expected = list(zip(*(part[:count].tolist() for part in columns), strict=True))
        assert sorted(epoch_samples) == sorted(expected)
    assert any(not torch.equal(first(epoch(s, 2, 3)[0])[0], first(batches[0])[0]) for s in (4, 5))
    assert all(torch.equal(first(epoch(s, 2, 3)[0])[1], first(batches[0])[1]) for s in (4, 5))


def test_a_batch_is_as_long_as_its_longest_sequence() -> None:
    task = sequence_task()
    samples = task.gather([sequence_client("a", [0] * 6, [9, 2, 2, 2, 2, 2])], 1)
    longest = [batch.inputs.shape[2] for batch in task.batches(samples, seeded(0))]
    assert sorted(longest) == [2, 2, 9]


@pytest.mark.parametrize("changes", EVERY_TASK)
def test_padding_and_neighbours_change_nothing(changes: dict[str, Any]) -> None:
    """Loss and gradient of a client do not depend on other clients' lengths."""
    task = sequence_task(**changes)
    clients = clients_of(task)
    parameters = with_clients(task.initial_parameters(), len(clients))

    def epoch(
        rows: dict[str, Tensor], samples: CohortSequences, seeds: list[int]
    ) -> list[tuple[Tensor, list[Tensor]]]:
        """Return the losses [k] of each batch and the gradients of their sum."""
        results = []
        for batch in task.batches(samples, seeded(*seeds)):
            leaves = {n: v[: len(batch.inputs)].clone() for n, v in rows.items()}
            weights = [value.requires_grad_() for value in leaves.values()]
            loss = task.loss(task.predict(leaves, task.represent(leaves, batch)), batch)
            results.append((loss.detach(), list(torch.autograd.grad(loss.sum(), weights))))
        return results

    samples = task.gather(clients, 1)
    together = epoch(parameters, samples, [0, 1, 2])
    for row, client in enumerate(clients):
        row_parameters, row_samples = rows_of(parameters, row), task.gather([client], 1)
        alone = epoch(row_parameters, row_samples, [row])
        for (losses, gradients), (loss, its_gradients) in zip(together, alone, strict=False):
            torch.testing.assert_close(losses[row], loss[0], rtol=1e-5, atol=1e-6)
            for big, small in zip(gradients, its_gradients, strict=True):
                torch.testing.assert_close(big[row], small[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", EVERY_TASK)
def test_a_fixed_encoder_gives_the_same_predictions(changes: dict[str, Any]) -> None:
    task = sequence_task(**changes)
    samples = task.gather(clients_of(task), 1)
    parameters = with_clients(task.initial_parameters(), 3)
    fixed = task.fix_encoder(parameters, samples)
    assert fixed.representation.shape == (3, 5, task.representation_dim)
    for plain, encoded in zip(
        task.batches(samples, seeded(0, 1, 2)), task.batches(fixed, seeded(0, 1, 2)), strict=True
    ):
        rows = {name: value[: len(plain.inputs)] for name, value in parameters.items()}
        first, second = (
            task.predict(rows, task.represent(rows, batch)) for batch in (plain, encoded)
        )
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(task.loss(first, plain), task.loss(second, encoded))


def test_sequences_are_encoded_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    task = sequence_task()
    samples = task.gather(clients_of(task), 1)
    parameters = with_clients(task.initial_parameters(), 3)
    at_once = task.encode_all(parameters, samples.values, samples.lengths)
    monkeypatch.setattr(labelled, "ENCODED_AT_ONCE", 2)
    parts = task.encode_all(parameters, samples.values, samples.lengths)
    assert not parts.requires_grad
    torch.testing.assert_close(parts, at_once, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, CNN])
def test_mixed_precision_changes_little(changes: dict[str, Any]) -> None:
    plain, mixed = sequence_task(**changes), sequence_task(precision="bfloat16", **changes)
    samples = plain.gather(clients_of(plain), 1)
    parameters = with_clients(plain.initial_parameters(), 3)
    first, second = (
        task.encode_all(parameters, samples.values, samples.lengths) for task in (plain, mixed)
    )
    assert second.dtype == torch.float32
    assert not torch.equal(first, second)
    torch.testing.assert_close(first, second, rtol=0.05, atol=0.05)


def test_losses_by_hand() -> None:
    """The mean cross-entropy for classes, and for numbers the squared error of targets over 10."""
    full = LabelledBatch(torch.zeros(1, 2, 1, 2), torch.tensor([[0, 1]]), torch.ones(1, 2))
    part = replace(full, present=torch.tensor([[1.0, 0.0]]))
    task, logits = sequence_task(), torch.tensor([[[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    first, second = np.log(1 + 2 * np.exp(-2)), np.log(3)
    assert task.loss(logits, part).tolist() == pytest.approx([first])
    assert task.loss(logits, full).tolist() == pytest.approx([(first + second) / 2])
    task, prediction = sequence_task(**REGRESSION), torch.tensor([[[1.0], [0.5]]])
    targets = torch.tensor([[30.0, -5.0]], dtype=torch.float64)
    assert task.loss(prediction, replace(full, targets=targets)).tolist() == [(4 + 1) / 2]
    assert task.loss(prediction, replace(part, targets=targets)).tolist() == [4]


def test_accuracy_by_hand() -> None:
    """A client may be tested on labels that it never trained on. The second has no class 2."""
    task = sequence_task()
    clients = [
        replace(
            sequence_client("a", [0, 0, 0], tested=[0, 1, 2, 2]), validation=sequences_of([1], [4])
        ),
        sequence_client("b", [1, 0], tested=[1]),
    ]
    samples = task.gather(clients, 1)
    says = torch.tensor([[1, 0, 2, 2, 2], [0, 1, 0, 0, 0]])  # the validation sequence first
    metrics = task.judge(torch.nn.functional.one_hot(says, 3).float(), samples)
    assert metrics == {Metric("accuracy"): [3 / 4, 1], Metric("validation-error"): [0, 1]}


def test_errors_of_regression_by_hand_in_units() -> None:
    """Outputs times 10 are 20, 40, 80 and 0, 5. Right are 20, 43, 76 and 5, 6."""
    task = sequence_task(**REGRESSION)
    clients = [
        replace(
            sequence_client(name, trained),
            validation=sequences_of(validated, [2]),
            test=sequences_of(tested, [2]),
        )
        for name, trained, validated, tested in (
            ("a", [1.0, 2.0, 3.0], [20.0], [43.0, 76.0]),
            ("b", [1.0], [5.0], [6.0]),
        )
    ]
    outputs = torch.tensor([[2.0, 4.0, 8.0], [0.0, 0.5, 99.0]]).unsqueeze(2)
    metrics = task.judge(outputs, task.gather(clients, 1))
    assert metrics[Metric("rmse")] == pytest.approx([12.5**0.5, 1])
    assert metrics[Metric("mae")] == pytest.approx([3.5, 1])
    assert metrics[Metric("validation-rmse")] == pytest.approx([0, 5])


@pytest.mark.parametrize("changes", EVERY_TASK)
def test_evaluation_is_the_judgement_of_each_sequence_alone(changes: dict[str, Any]) -> None:
    task = sequence_task(**changes)
    clients = clients_of(task)
    parameters = with_clients(task.initial_parameters(), 3)
    metrics = task.evaluate(parameters, task.gather(clients, 1))
    assert set(metrics) == set(task.required_metrics(task.settings))
    for row, client in enumerate(clients):
        row_parameters = rows_of(parameters, row)
        outputs = []
        for values in client.test.values:
            inputs, length = torch.from_numpy(values)[None, None], torch.tensor([[len(values)]])
            outputs.append(
                task.predict(row_parameters, task.encode(row_parameters, inputs, length))[
                    0, 0
                ].detach()
            )
        client_outputs = torch.stack(outputs).numpy()
        if task.settings.task == "sequence-classification":
            expected = {
                Metric("accuracy"): (client_outputs.argmax(axis=1) == client.test.targets).mean()
            }
        else:
            errors = client_outputs[:, 0] * 10.0 - client.test.targets
            expected = {
                Metric("rmse"): (errors**2).mean() ** 0.5,
                Metric("mae"): abs(errors).mean(),
            }
        for name, value in expected.items():
            assert metrics[name][row] == pytest.approx(value, rel=1e-4)


def test_heads_are_fitted_with_the_penalty_and_all_classes() -> None:
    task = sequence_task()
    data = vector_client("a", [0, 2, 0, 2, 2]).train
    vectors = np.concatenate(data.values)
    head = task.fit_head(vectors, data.targets, 0.3)
    assert np.array_equal(head, fit_classifier(vectors, data.targets, 3, 0.3))
    assert head[1].tolist() == [0, 0, 0, 0, -1]
    flat = np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], dtype=np.float32)
    gaps = [[0, 4, 1], [4, 4, 1], [0, 4, 1], [4, 4, 1], [4, 4, 1]]
    assert task.head_loss(flat, vectors, data.targets) == np.sum(gaps) / 5


def test_heads_of_regression_are_fitted_to_the_scaled_target() -> None:
    task = sequence_task(**REGRESSION)
    data = vector_client("a", [10.0, 20.0, -30.0, 5.0]).train
    vectors = np.concatenate(data.values)
    head = task.fit_head(vectors, data.targets, 0.3)
    assert np.array_equal(head, fit_regressor(vectors, data.targets / 10, 0.3))
    flat = np.array([[0, 0, 0, 0, 1]], dtype=np.float32)
    assert task.head_loss(flat, vectors, data.targets) == (0 + 1 + 16 + 0.25) / 4
