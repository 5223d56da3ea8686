"""FedPCL's client: the terms of its loss, the prototype it sends, the head it is judged with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.strategies.fedpcl import GLOBAL_PROTOTYPES, PROTOTYPES, prototype_contrast
from tests.learners.tiny_cohort import (
    PERIOD,
    WIDTH,
    global_model,
    tiny_batches,
    tiny_cohort,
    tiny_learner,
    train,
)

GLOBAL = np.random.default_rng(0).normal(size=(2, PERIOD, WIDTH)).astype(np.float32)
FIRST = Guidance()
LATER = Guidance({GLOBAL_PROTOTYPES: GLOBAL})
STILL = {"optimizer.learning-rate": 1e-12}  # the parameters stay what they are


def test_the_whole_model_is_shared_and_no_prototype_is() -> None:
    learner = tiny_learner("fedpcl")
    assert global_model(learner).keys() == learner.initial_parameters().keys()
    assert not learner.is_shared(PROTOTYPES)
    assert not learner.is_shared(GLOBAL_PROTOTYPES)


def test_the_loss_is_prediction_and_weighted_contrast() -> None:
    settings = {"fedpcl.contrast-weight": 3.0, "fedpcl.temperature": 0.5}
    learner = tiny_learner("fedpcl", **settings)
    cohort = tiny_cohort(learner)
    batch = tiny_batches(learner, cohort)[0]
    terms = learner.loss(cohort.parameters, batch, learner.context(LATER, cohort))
    assert set(terms) == {"prediction", "contrast"}
    representation = learner.task.represent(cohort.parameters, batch)
    expected = 3 * prototype_contrast(representation, torch.from_numpy(GLOBAL), 0.5)
    torch.testing.assert_close(terms["contrast"], expected)


def test_what_is_sent_is_the_mean_representation_over_the_batches() -> None:
    learner = tiny_learner("fedpcl", **STILL)
    _, sent_arrays, cohort = train(learner, LATER)
    batches = tiny_batches(learner, cohort)
    representations = torch.stack(
        [learner.task.represent(cohort.parameters, batch) for batch in batches]
    )
    assert set(sent_arrays) == {PROTOTYPES}
    np.testing.assert_allclose(
        sent_arrays[PROTOTYPES], representations.mean(dim=0), rtol=1e-5, atol=1e-6
    )


def test_the_first_round_is_fedavgs() -> None:
    models = []
    for method in ("fedavg", "fedpcl"):
        losses, _, cohort = train(tiny_learner(method), FIRST)
        models.append(cohort.parameters)
    assert losses["contrast"].tolist() == [0, 0]
    assert all(torch.equal(models[1][name], value) for name, value in models[0].items())


@pytest.mark.parametrize(("guidance", "moves"), [(FIRST, False), (LATER, True)])
def test_without_supervision_the_contrast_alone_moves_the_encoder(
    guidance: Guidance, moves: bool
) -> None:
    learner = tiny_learner("fedpcl", **{"fedpcl.supervised": False})
    losses, _, cohort = train(learner, guidance)
    assert set(losses) == {"contrast", "total"}
    for name, start in learner.initial_parameters().items():
        changed = not torch.equal(cohort.parameters[name][0], start)
        assert changed == (moves and name.startswith(learner.task.encoder)), name


def test_training_makes_a_phase_look_like_its_prototype() -> None:
    """Rows at right angles are separable: the contrast falls to less than half of chance."""
    target = np.eye(PERIOD, WIDTH, dtype=np.float32)[None]
    guidance = Guidance({GLOBAL_PROTOTYPES: target})
    learner = tiny_learner(
        "fedpcl",
        **{"fedpcl.temperature": 0.5, "optimizer.learning-rate": 0.03, "local-epochs": 300},
    )
    first, _, _ = train(tiny_learner("fedpcl", **STILL, **{"fedpcl.temperature": 0.5}), guidance)
    last, _, _ = train(learner, guidance)
    assert (last["contrast"] < first["contrast"] * 0.75).all()


@pytest.mark.parametrize("supervised", [True, False])
def test_clients_are_judged_with_a_head_of_their_own_on_the_averaged_encoder(
    supervised: bool,
) -> None:
    learner = tiny_learner("fedpcl", **{"fedpcl.supervised": supervised})
    cohort = tiny_cohort(learner)
    before = {name: value.clone() for name, value in cohort.parameters.items()}
    personalised: Any = learner.personalised(cohort, FIRST)
    for name, value in before.items():
        assert torch.equal(cohort.parameters[name], value)
        frozen = name.startswith(learner.task.encoder)
        assert torch.equal(personalised[name], value) == frozen, name
    assert not torch.equal(personalised["decoder.weight"][0], personalised["decoder.weight"][1])
    plain = tiny_learner("fedpcl", **{"fedpcl.fine-tune-epochs": 0})
    assert plain.personalised(cohort, FIRST) is None
