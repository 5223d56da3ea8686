"""Lengths of steps by hand: two clients of a model with two arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedproto_app.maths.steps import length, longest_mean, mean_fault, shortened_steps

START = {"w": np.array([1, 0], np.float32), "b": np.array([0], np.float32)}
MODELS = {"w": torch.tensor([[1.0, 0.0], [4.0, 0.0]]), "b": torch.tensor([[1.0], [4.0]])}


def test_only_steps_beyond_the_limit_are_shortened_and_keep_their_direction() -> None:
    models, lengths = shortened_steps(MODELS, START, longest=2.5)
    assert lengths == [1.0, 2.5]
    assert models["w"].tolist() == [[1.0, 0.0], [2.5, 0.0]]  # half of (3, 0)
    assert models["b"].tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("longest", [0.0, 5.0])
def test_without_a_longer_step_nothing_changes(longest: float) -> None:
    models, lengths = shortened_steps(MODELS, START, longest)
    assert lengths == [1.0, 5.0]
    assert all(models[name] is MODELS[name] for name in MODELS)


def test_a_mean_moves_no_further_than_its_clients() -> None:
    assert length({"w": np.array([4, 0], np.float32), "b": np.array([4], np.float32)}, START) == 5
    assert longest_mean([1.0, 4.0], [1, 2]) == 3
    assert longest_mean([1.0, 4.0], [2, 1]) == 2.5  # a method may weigh all alike
    assert mean_fault(3.0, [1.0, 4.0], [1, 2]) is None
    assert "moved by 3.1" in str(mean_fault(3.1, [1.0, 4.0], [1, 2]))
