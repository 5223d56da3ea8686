"""What ``[optimizer]`` chooses."""

from __future__ import annotations

import torch

from fedproto_app.maths.optim import CohortAdam, TimeSmoothed
from fedproto_app.settings import OptimizerSettings
from fedproto_app.strategies.common.learner import make_optimizer


def test_a_window_of_1_is_the_plain_optimiser() -> None:
    parameters = {"w": torch.zeros(2, 3)}
    assert isinstance(make_optimizer(OptimizerSettings(), parameters), CohortAdam)
    smoothed = make_optimizer(OptimizerSettings(smoothing_window=3), parameters)
    assert isinstance(smoothed, TimeSmoothed)
    assert set(smoothed.state) == {"first", "second", "steps"}  # Adam's


def test_the_numbers_reach_the_optimiser() -> None:
    """SGD of rate ½: w = 1, g = 1, weight decay ¼, momentum ½ give steps of ½·1¼ = ⅝, then of
    ½·(½·1¼ + 1 + ¼·⅜) = 0.859375; with a window of 2 and γ = 1 the first gradient is halved."""
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
