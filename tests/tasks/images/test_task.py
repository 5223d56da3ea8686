"""The classification task: stages, batches, augmentation, metrics by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedproto_app.core.metrics import Metric
from fedproto_app.data.images.clients import ClientImages
from fedproto_app.settings import settings_from
from fedproto_app.tasks.images.task import ClassificationTask, stage_at
from tests.helpers.tiny_images import SHAPE, client_of, image_cohort, image_learner, images_of


@pytest.mark.parametrize(
    ("rounds", "stages", "schedule", "expected"),
    [
        (6, 3, "sequential", [0, 0, 1, 1, 2, 2]),  # equal parts
        (5, 2, "sequential", [0, 0, 0, 1, 1]),
        (3, 1, "sequential", [0, 0, 0]),
        (2, 3, "sequential", [0, 1]),
        (6, 3, "cyclic", [0, 1, 2, 0, 1, 2]),
    ],
)
def test_the_stage_of_each_round(
    rounds: int, stages: int, schedule: str, expected: list[int]
) -> None:
    assert [stage_at(r, rounds, stages, schedule) for r in range(1, rounds + 1)] == expected


def test_a_stage_without_images_goes_on_with_the_last_one() -> None:
    client = client_of("x", [[], [0, 1], [], [2]])
    labels = [client.training(stage).labels.tolist() for stage in range(4)]
    assert labels == [[0, 1], [0, 1], [0, 1], [2]]


def test_clients_may_have_different_numbers_of_stages() -> None:
    task = image_learner().task
    clients = [client_of("one", [[0, 1, 2]]), client_of("three", [[0, 0], [1, 1], [2, 2]])]
    assert [task.stage(client, 4) for client in clients] == [0, 2]
    samples = task.gather(clients, 4)
    assert samples.train_samples == [3, 2]
    assert samples.is_test.sum(dim=1).tolist() == [3, 3]


def test_late_test_images_are_used_from_the_start() -> None:
    """A source may give a stage without test images, but a client is never tested on nothing."""
    task = image_learner().task
    full, bare = client_of("x", [[0, 1], [2, 2]]), client_of("x", [[0, 1], []])
    late = ClientImages(
        "x",
        (replace(full.stages[0], test=bare.stages[1].test), *full.stages[1:]),
        full.class_counts,
    )
    samples = task.gather([late], 1)
    assert samples.is_test.sum() == 1
    metrics = task.evaluate(
        {n: v.unsqueeze(0) for n, v in task.initial_parameters().items()}, samples
    )
    assert [metrics[Metric(f"count/stage-{s}")] for s in (1, 2)] == [[0], [1]]


def test_only_stages_so_far_are_tested() -> None:
    gldp = image_learner()
    for server_round, tested in ((2, [2, 1]), (3, [4, 2])):
        samples = image_cohort(gldp, server_round).samples
        assert samples.is_test.sum(dim=1).tolist() == tested
        assert samples.is_validation.sum(dim=1).tolist() == tested


def test_an_epoch_has_every_image_on_the_scale_of_the_encoder() -> None:
    """The order of batches is tested with sequences, whose task has the same code for it."""
    task = image_learner().task
    samples = task.gather([client_of("x", [[0, 1, 2, 0, 1]])], 1)
    batches = list(task.batches(samples, [torch.Generator().manual_seed(1)]))
    shown = torch.cat([batch.inputs[0, batch.present[0] > 0] for batch in batches])
    expected = (samples.values[0].float() / 255 - 0.5) / 0.25
    assert sorted(shown.flatten(1).tolist()) == sorted(expected.flatten(1).tolist())


def test_large_images_are_encoded_a_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task, counts = image_learner().task, list[int]()

    def encode(parameters: object, inputs: torch.Tensor, lengths: object) -> torch.Tensor:
        counts.append(inputs.shape[1])
        return inputs.flatten(2)[..., :2]

    monkeypatch.setattr(task, "encode", encode)
    for side, most in ((16, 256), (512, 2), (2048, 1)):
        counts.clear()
        images = torch.zeros(1, 1, 3, side, side, dtype=torch.uint8).expand(
            1, 300 // side + 3, -1, -1, -1
        )
        assert task.encode_all({}, images).shape == (1, images.shape[1], 2)
        assert max(counts) <= most
    assert sum(counts) == 3


def test_augmentation_is_each_clients_own_and_seeded() -> None:
    augmented = image_learner(**{"classification.augment": "crop-and-mirror"})
    cohort = image_cohort(augmented)

    def first(seed: int) -> torch.Tensor:
        generators = [torch.Generator().manual_seed(s) for s in (seed, 7)]
        return next(iter(augmented.task.batches(cohort.samples, generators))).inputs

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1)[0], first(2)[0])
    assert torch.equal(first(1)[1], first(2)[1])


def test_metrics_by_hand() -> None:
    """A rule that always says class 0, on stages [0, 0, 1] and [0, 2, 2]."""
    gldp = image_learner()
    cohort = image_cohort(gldp, server_round=3)

    def always(representation: torch.Tensor) -> torch.Tensor:
        return torch.zeros(representation.shape[:2], dtype=torch.int64)

    metrics = gldp.task.judge(cohort.parameters, cohort.samples, {"": always})
    assert metrics[Metric("accuracy")] == [0.5, 0.0]  # tested on classes 0, 1 | 0, 2 and on 1 | 1
    assert metrics[Metric("validation-error")] == [0.5, 1.0]
    assert [metrics[Metric(f"correct/stage-{s}")] for s in (1, 2)] == [[1, 0], [1, 0]]
    assert [metrics[Metric(f"count/stage-{s}")] for s in (1, 2)] == [[2, 1], [2, 1]]
    assert [metrics[Metric(f"correct/class-{c}")] for c in range(3)] == [[2, 0], [0, 0], [0, 0]]
    assert [metrics[Metric(f"count/class-{c}")] for c in range(3)] == [[2, 0], [1, 2], [1, 0]]


def test_resnet18_has_the_length_of_the_settings() -> None:
    settings = settings_from(
        {
            "task": "classification",
            "method": "solo",
            "keep": "last",
            "model.image-encoder": "resnet18",
            "model.representation-dim": 48,
        }
    )
    task = ClassificationTask(settings, SHAPE)
    assert task.representation_dim == 48
    parameters = {name: value.unsqueeze(0) for name, value in task.initial_parameters().items()}
    images = torch.from_numpy(images_of([0, 1]).pixels).unsqueeze(0)
    assert task.encode_all(parameters, images).shape == (1, 2, 48)
