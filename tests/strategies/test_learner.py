"""What clients of several methods share: optimisers, FedAvg's training, the size of a message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.messages import Reply
from fedproto_app.core.round import Round
from fedproto_app.maths.optim import CohortAdam, TimeSmoothed
from fedproto_app.settings import OptimizerSettings
from fedproto_app.strategies.common.learner import make_optimizer, train_cohort
from fedproto_compared.creff import CLASSIFIER
from tests.helpers.tiny_cohort import global_model, tiny_cohort, tiny_learner
from tests.helpers.tiny_images import CLASSES, WIDTH, class_guidance, image_cohort, image_learner
from tests.strategies.server_half import server_of


def test_a_window_of_1_is_the_plain_optimiser() -> None:
    parameters = {"w": torch.zeros(2, 3)}
    assert isinstance(make_optimizer(OptimizerSettings(), parameters), CohortAdam)
    smoothed = make_optimizer(OptimizerSettings(smoothing_window=3), parameters)
    assert isinstance(smoothed, TimeSmoothed)
    assert set(smoothed.state) == {"first", "second", "steps"}  # Adam's


def test_the_numbers_reach_the_optimiser() -> None:
    """SGD of rate ½: w = 1, g = 1, weight decay ¼, momentum ½ give steps of ½·1¼ = ⅝, then of
    ½·(½·1¼ + 1 + ¼·⅜) = 0.859375. With a window of 2 and γ = 1 the first gradient is halved."""
    settings = OptimizerSettings(name="sgd", learning_rate=0.5, momentum=0.5, weight_decay=0.25)
    parameters, gradient = {"w": torch.ones(1, 1)}, {"w": torch.ones(1, 1)}
    plain = make_optimizer(settings, parameters)
    plain.step(parameters, gradient)
    assert parameters["w"].item() == 1 - 0.625
    plain.step(parameters, gradient)
    assert parameters["w"].item() == 1 - 0.625 - 0.859375

    update = {"smoothing_window": 2, "smoothing_factor": 1.0, "weight_decay": 0.0}
    smoothed = make_optimizer(settings.model_copy(update=update), parameters)
    parameters["w"].fill_(1)
    smoothed.step(parameters, gradient)
    assert parameters["w"].item() == 1 - 0.25


SERIES = tiny_learner, tiny_cohort, global_model
IMAGES = image_learner, image_cohort, global_model
NO_PROTOTYPES: dict[int, float] = {}


@pytest.mark.parametrize(
    ("method", "reference", "of_task", "received", "changes"),
    [
        ("fedala", "fedavg", SERIES, NO_PROTOTYPES, {}),
        ("fedda", "fedavg", SERIES, NO_PROTOTYPES, {}),
        ("fedpcl", "fedavg", SERIES, NO_PROTOTYPES, {}),
        ("fedpcl", "fedavg", IMAGES, NO_PROTOTYPES, {}),
        ("knn-per", "fedavg", IMAGES, NO_PROTOTYPES, {}),
        ("creff", "fedavg", IMAGES, NO_PROTOTYPES, {}),
        ("fedtgp", "solo", IMAGES, NO_PROTOTYPES, {"fedtgp.prototype-weight": 10.0}),
        ("fedtgp", "solo", IMAGES, {0: 1.0, 1: 2.0}, {"fedtgp.prototype-weight": 0.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_without_what_only_the_method_has_a_client_trains_as_fedavgs_or_solos(
    method: str, reference: str, of_task: Any, received: dict[int, float], changes: dict[str, Any]
) -> None:
    make_learner, make_cohort, model_of = of_task
    cohorts = {}
    for name, more in ((method, changes), (reference, {})):
        learner = make_learner(name, **more)
        cohorts[name] = make_cohort(learner)
        guidance = class_guidance(received, model_of(learner))
        guidance.arrays[CLASSIFIER] = np.ones((len(CLASSES), WIDTH + 1), np.float32)
        losses = train_cohort(learner, cohorts[name], learner.context(guidance, cohorts[name]))
        if name == "fedpcl":
            assert losses["contrast"].tolist() == [0, 0]
    ours, expected = cohorts[method].parameters, cohorts[reference].parameters
    assert ours.keys() == expected.keys()
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("method", "values", "changes"),
    [
        *((m, 100_865, {}) for m in ("fedavg", "fedprox", "fedala", "fedda", "knn-per", "apfl")),
        *((m, 100_865, {}) for m in ("ditto", "pfedme", "per-fedavg")),
        ("fedrep", 100_608, {}),
        ("naive", 0, {}),
        ("fedproto", 24 * 256, {}),
        ("analytic", 527, {"data.calendar": "phase"}),  # 31 · 32 / 2 products, and 31
        ("fedpcl", 100_865 + 24 * 256, {}),  # the papers' heads have 129 values, ours 257
        ("fuels", 768, {}),
        ("fuels", 6_144, {"fuels.prototype-dim": 0}),
        ("fuels", 4_608, {"data.period": 288, "fuels.prototype-dim": 16}),
        ("fuels", 36_864, {"data.period": 288, "fuels.prototype-dim": 128}),
    ],
)
def test_the_uplink_is_the_papers(method: str, values: int, changes: dict[str, Any]) -> None:
    strategy = server_of(method, **changes)
    assert strategy.expected(Round(1)).values(Reply(["a"], [1])) == values
