"""FedALA's client: the model that it begins a round with, what it remembers and is judged by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, train_cohort
from fedproto_compared.fedala import have_settled, mixed, stepped
from tests.helpers.tiny_cohort import global_model, tiny_cohort, tiny_learner
from tests.helpers.tiny_images import image_cohort, image_learner

HEAD = ["decoder.weight", "decoder.bias"]


def receive(cohort: Cohort, model: Arrays, number: int) -> None:
    """As a node loads the clients for a round."""
    cohort.server_round = number
    for name, value in model.items():
        cohort.parameters[name].copy_(torch.from_numpy(value).expand_as(cohort.parameters[name]))


def train(learner: AnyLearner, cohort: Cohort, guidance: Guidance) -> None:
    learner.begin(cohort)
    train_cohort(learner, cohort, learner.context(guidance, cohort))


def copied(cohort: Cohort) -> dict[str, Any]:
    return {n: v.clone() for n, v in {**cohort.parameters, **cohort.memory_tensors()}.items()}


def other_model(learner: AnyLearner) -> Arrays:
    """What the server might send in a later round."""
    rng = np.random.default_rng(0)
    model = global_model(learner)
    return {
        name: (value + rng.normal(size=value.shape)).astype(np.float32)
        for name, value in model.items()
    }


def after_first_round(**changes: Any) -> tuple[AnyLearner, Cohort]:
    learner = tiny_learner("fedala", **changes)
    cohort = tiny_cohort(learner)
    train(learner, cohort, Guidance(global_model(learner)))
    return learner, cohort


def test_later_it_begins_with_a_mixture_of_the_top_layer_and_the_received_rest() -> None:
    """It learns until it has settled, then an epoch a round, and W goes on from where it was."""
    learner, cohort = after_first_round(**{"fedala.rate": 0.1})
    assert bool((cohort.memory.weight["decoder.weight"] == 1).all())
    model = other_model(learner)
    trained = copied(cohort)
    assert cohort.memory.learned.tolist() == [0, 0]
    receive(cohort, model, 2)
    learner.begin(cohort)
    after = cohort.parameters
    for name, value in model.items():
        received = torch.from_numpy(value).expand_as(after[name])
        if name not in HEAD:
            assert torch.equal(after[name], received)
            continue
        weight = cohort.memory.weight[name]
        assert ((weight >= 0) & (weight <= 1)).all()
        assert not torch.equal(weight, torch.ones_like(weight))
        mixture = trained[name] + (received - trained[name]) * weight
        torch.testing.assert_close(after[name], mixture)
    assert cohort.memory.learned.tolist() == [1, 1]
    before = cohort.memory.weight["decoder.weight"].clone()
    receive(cohort, model, 3)
    learner.begin(cohort)
    assert not torch.equal(cohort.memory.weight["decoder.weight"], before)


def test_the_weights_of_a_round_lower_the_loss() -> None:
    learner, cohort = after_first_round(**{"fedala.rate": 0.05, "fedala.share": 1.0})
    receive(cohort, other_model(learner), 2)
    task = learner.task
    errors = [task.training_error(cohort.parameters, cohort.samples)]
    learner.begin(cohort)
    errors.append(task.training_error(cohort.parameters, cohort.samples))
    assert (errors[1] < errors[0]).all()


def test_an_epoch_takes_its_share_of_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients have the same number of batches: half of them, rounded up, in each of 11."""
    learner, cohort = after_first_round(**{"fedala.share": 0.5, "fedala.threshold": 1e9})
    watched_inputs: list[Any] = []
    loss = learner.loss

    def watched(parameters: Any, batch: Any, context: Any) -> Any:
        watched_inputs.append(batch.targets)
        return loss(parameters, batch, context)

    monkeypatch.setattr(learner, "loss", watched)
    for number, epochs in ((2, 11), (3, 1)):
        receive(cohort, global_model(learner), number)
        watched_inputs.clear()
        learner.begin(cohort)
        steps_per_epoch = -(-cohort.samples.batch_counts[0] // 2)
        assert len(watched_inputs) == epochs * steps_per_epoch
        assert all(
            torch.equal(watched_inputs[i], watched_inputs[i % steps_per_epoch])
            for i in range(len(watched_inputs))
        )


def test_a_client_that_never_settles_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedproto_compared.fedala.MOST_EPOCHS", 13)
    learner, cohort = after_first_round(**{"fedala.threshold": 1e-30, "fedala.rate": 0.01})
    receive(cohort, other_model(learner), 2)
    learner.begin(cohort)
    assert cohort.memory.learned.tolist() == [1, 1]


def test_it_is_judged_by_what_it_would_begin_with() -> None:
    """Evaluation changes no state, and without training a client has the received model."""
    learner, cohort = after_first_round(**{"fedala.rate": 0.1})
    model = other_model(learner)
    receive(cohort, model, 1)
    cohort.memory.trained[1] = False
    before = copied(cohort)
    judged = learner.personalised(cohort, Guidance(model))
    assert judged.keys() == model.keys()
    after = copied(cohort)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    learner.begin(cohort)
    for name, value in judged.items():
        assert torch.equal(value, cohort.parameters[name])
        assert torch.equal(value[1], torch.from_numpy(model[name]))
    assert not torch.equal(judged["decoder.weight"][0], torch.from_numpy(model["decoder.weight"]))


@pytest.mark.parametrize(
    ("layers", "mixed"), [(1, {"head"}), (2, {"head", "encoder.linear"}), (0, None), (99, None)]
)
def test_layers_count_from_the_top(layers: int, mixed: set[str] | None) -> None:
    learner = image_learner("fedala", **{"fedala.layers": layers})
    initial = learner.initial_parameters()
    local_names = set(learner.initial_memory().own)
    shared_names = {name for name in initial if learner.is_shared(name)}
    if mixed is None:
        assert local_names == shared_names
    else:
        assert {name.rpartition(".")[0] for name in local_names} == mixed
    cohort = image_cohort(learner)  # with all layers the encoder learns, too
    guidance = Guidance()
    train(learner, cohort, guidance)
    receive(cohort, {name: np.zeros(initial[name].shape, np.float32) for name in shared_names}, 2)
    learner.begin(cohort)
    assert cohort.memory.learned.tolist() == [1, 1]


# --- the maths ------------------------------------------------------------------------------------


def test_each_element_has_its_own_share_of_the_received_model() -> None:
    local, received = {"w": torch.tensor([[1.0, 2.0, 3.0]])}, {"w": torch.tensor([[5.0, 0.0, 3.0]])}
    mixture = mixed(local, received, {"w": torch.tensor([[0.25, 1.0, 0.5]])})
    assert mixture["w"].tolist() == [[2.0, 0.0, 3.0]]


def test_the_step_is_the_papers_and_weights_stay_shares() -> None:
    """At ½(θ − 2)² with θ_own = 0, θ_received = 4 and W = 3/4: θ = 3, the gradient (3 − 2)·4 = 4.

    At ½θ² with the same it is 3·4 = 12, and at ½(θ − 7)² it is −16.
    """
    local, received = {"w": torch.zeros(3, 1)}, {"w": torch.full((3, 1), 4.0)}
    weights = {"w": torch.full((3, 1), 0.75, requires_grad=True)}
    goals = torch.tensor([[2.0], [0.0], [7.0]])
    loss = 0.5 * (mixed(local, received, weights)["w"] - goals).square()
    (gradient,) = torch.autograd.grad(loss.sum(), [weights["w"]])
    assert gradient.flatten().tolist() == [4.0, 12.0, -16.0]
    after = stepped(weights, {"w": gradient}, 0.125)
    assert after["w"].flatten().tolist() == [0.25, 0.0, 1.0]


def test_losses_have_settled_where_the_newest_ones_are_near_each_other() -> None:
    """The deviation of 1, 1, 3 and 3 is 1, of 0, 0, 0 and 0.1 below 0.05."""
    losses = torch.tensor([[9.0, 9.0], [1.0, 0.0], [1.0, 0.0], [3.0, 0.0], [3.0, 0.1]])
    assert have_settled(losses, 0.9, 4).tolist() == [False, True]
    assert have_settled(losses, 1.1, 4).tolist() == [True, True]
    assert have_settled(losses[1:], 1.1, 4).tolist() == [False, False]  # no more than four
