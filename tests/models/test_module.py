"""A user's module as the model: by hand, alone and in a cohort, and every reason against it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedproto_app.core.errors import SettingsError
from fedproto_app.data.shape import DataShape
from fedproto_app.models.linear import linear
from fedproto_app.models.module import ModuleModel
from fedproto_app.settings import settings_from
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.table import make_task
from fedproto_app.tasks.task import AnyTask
from tests.helpers import users_modules
from tests.helpers.tiny_sequences import sequence_task, with_clients

WINDOW = 5  # c + q
CPU = torch.device("cpu")


def task_with(module: str, **changes: Any) -> ForecastingTask:
    settings = settings_from(
        {
            "data.close-window": 2,
            "data.periodic-window": 3,
            "data.lags": "",
            "model.module": f"tests.helpers.users_modules:{module}",
            **changes,
        }
    )
    return ForecastingTask(settings)


def sequences_with(module: str) -> AnyTask:
    return sequence_task(**{"model.module": f"tests.helpers.users_modules:{module}"})


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_a_linear_module_is_the_linear_layer() -> None:
    """Exactly: products and sums of whole numbers have no rounding."""
    model = ModuleModel(users_modules.linear(inputs=3, outputs=2), 2, "head.", CPU)
    weight, bias = noise(4, 3, 2).mul(8).round(), noise(4, 2).mul(8).round()
    inputs = noise(4, 6, 3).mul(8).round()
    parameters = {"encoder.weight": weight.transpose(1, 2), "encoder.bias": bias}
    prediction = model.predict(parameters, model.encode(parameters, inputs))
    assert torch.equal(prediction, linear({"weight": weight, "bias": bias}, "", inputs))
    assert not model.splits


def test_parts_have_the_tasks_names_and_the_true_width() -> None:
    task = task_with("perceptron")
    assert {n: tuple(v.shape) for n, v in task.initial_parameters(prototype_dim=4).items()} == {
        "encoder.0.weight": (8, WINDOW),
        "encoder.0.bias": (8,),
        "decoder.weight": (1, 8),
        "decoder.bias": (1,),
        "projector.weight": (8, 4),
        "projector.bias": (4,),
    }
    assert task.representation_dim == 8
    assert task.model.splits
    undivided = task_with("whole_perceptron")  # without the two children, all is the encoder
    assert set(undivided.initial_parameters()) == {
        f"encoder.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")
    }
    assert not undivided.model.splits


def test_the_runs_seed_alone_decides_the_start() -> None:
    before = torch.get_rng_state()
    first = task_with("perceptron", seed=0).initial_parameters()
    assert torch.equal(before, torch.get_rng_state())
    copies = {name: value.clone() for name, value in first.items()}
    torch.rand(3)  # moves the default generator
    for value in first.values():
        value.zero_()  # as training would
    repeated, other_seed = (
        task_with("perceptron", seed=seed).initial_parameters() for seed in (0, 1)
    )
    assert all(torch.equal(value, repeated[name]) for name, value in copies.items())
    assert not any(torch.equal(value, other_seed[name]) for name, value in copies.items())


def test_every_client_has_its_own_parameters_and_gradients() -> None:
    """As torch's own module would with each client's parameters loaded into it."""
    task = task_with("perceptron")
    parameters = with_clients(task.initial_parameters(), 3)
    inputs = noise(3, 6, WINDOW)
    leaves = {name: value.requires_grad_() for name, value in parameters.items()}
    prediction = task.predict(leaves, task.encode(leaves, inputs))
    gradients = torch.autograd.grad(prediction.square().sum(), list(leaves.values()))
    assert prediction.shape == (3, 6, 1)
    for k in range(3):
        module = users_modules.perceptron(inputs=WINDOW, outputs=1)
        state = {n.replace("decoder.", "head."): value[k] for n, value in parameters.items()}
        module.load_state_dict(state)
        expected = module(inputs[k])
        torch.testing.assert_close(prediction[k], expected)
        expected.square().sum().backward()
        for name, gradient in zip(leaves, gradients, strict=True):
            alone = module.get_parameter(name.replace("decoder.", "head.")).grad
            torch.testing.assert_close(gradient[k], alone)


def test_sequences_come_with_their_lengths() -> None:
    task = sequences_with("RecurrentModel")
    parameters = with_clients(task.initial_parameters(), 2)
    inputs, lengths = noise(2, 3, 5, 2), torch.tensor([[5, 2, 1], [3, 3, 4]])
    representation = task.encode(parameters, inputs, lengths)
    assert representation.shape == (2, 3, task.representation_dim) == (2, 3, 7)
    for k in range(2):
        gru = nn.GRU(2, 7, batch_first=True)
        start = "encoder.gru."
        gru.load_state_dict(
            {n.removeprefix(start): v[k] for n, v in parameters.items() if n.startswith(start)}
        )
        for row, length in enumerate(lengths[k].tolist()):
            _, last = gru(inputs[k, row, :length])
            torch.testing.assert_close(representation[k, row], last[0])


def test_images_and_classes_are_told_to_the_factory() -> None:
    settings = settings_from(
        {
            "task": "classification",
            "method": "solo",
            "keep": "last",
            "model.module": "tests.helpers.users_modules:small_convolution",
        }
    )
    task = make_task(settings, DataShape((3, 6, 4), ("ant", "bee", "cat")))
    assert task.initial_parameters()["encoder.5.weight"].shape == (6, 4 * 3 * 2)
    assert task.initial_parameters()["head.weight"].shape == (3, 6)


@pytest.mark.parametrize("module", ["no_dropout", "Scaled"])
def test_what_does_no_harm_is_taken(module: str) -> None:
    assert task_with(module).initial_parameters()


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("batch_norm", "1 is a BatchNorm1d, whose running statistics describe .* use GroupNorm"),
        ("instance_norm", "2 is a InstanceNorm1d, whose running statistics"),
        ("dropout", "other numbers when it is called again; dropout .* set its p = 0"),
        ("FunctionalDropout", "other numbers when it is called again"),
        ("BatchStatistics", "changes with the other samples of the batch$"),
        ("Counting", "its buffer calls changes in a call"),
        ("lazy", "1.weight is lazy"),
        ("without_parameters", "it has no parameters"),
        ("of_float64", r"weight is torch\.float64, expected torch\.float32"),
        ("frozen", "weight is frozen"),
        ("no_module", r"its factory gives a list, expected a torch\.nn\.Module"),
        ("three_outputs", r"it gives \[4, 3\] of \[4, 5\], expected \[4, 1\]"),
        ("flat", r"its encoder gives \[4, 2, 4\], expected \[B, D\]"),
        ("too_narrow", r"its call with \[4, 5\] fails: RuntimeError: mat1 and mat2"),
        ("of_other_keywords", "its factory fails: TypeError: .*unexpected keyword"),
        ("OtherForward", r"its forward differs from head\(encoder\(…\)\)"),
        ("Stray", "scale must belong to either its encoder or its head"),
        ("tied", "weight must belong to either"),
        ("without_head_parameters", "its head has no parameters"),
        ("drawn_elsewhere", "bias differs each time the factory is called"),
        ("NO_FUNCTION", "NO_FUNCTION is not a function"),
        ("absent", "has no attribute 'absent'"),
    ],
)
def test_a_module_that_cannot_serve_is_refused_in_one_line(module: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason) as raised:
        _ = task_with(module).model
    assert str(raised.value).startswith(f"model.module = 'tests.helpers.users_modules:{module}': ")
    assert "\n" not in str(raised.value)


def test_a_module_that_looks_at_padding_is_refused() -> None:
    with pytest.raises(SettingsError, match="of the batch or with padding; use the lengths"):
        _ = sequences_with("blind_to_lengths").model


def test_a_module_that_is_not_there_is_refused() -> None:
    for path in ("nowhere:factory", "nowhere", ":factory"):
        with pytest.raises(SettingsError, match=f"^model.module = '{path}': "):
            _ = task_with("x", **{"model.module": path}).model
