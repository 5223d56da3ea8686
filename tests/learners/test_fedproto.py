"""FedProto's client: its loss by hand, and the prototype it sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.strategies.common.learner import Learner
from tests.learners.tiny_cohort import (
    NAMES,
    PERIOD,
    WIDTH,
    tiny_batches,
    tiny_cohort,
    tiny_learner,
    train,
)

GLOBAL = np.arange(PERIOD * WIDTH, dtype=np.float32).reshape(PERIOD, WIDTH)


def guidance(*, first_round: bool = False) -> Guidance:
    arrays = {} if first_round else {"prototype": GLOBAL}
    return Guidance(arrays)


def representations(fedproto: Learner[Any]) -> list[torch.Tensor]:
    """[K, B, d_r] of each batch at the initial parameters."""
    clients = tiny_cohort(fedproto)
    return [
        fedproto.task.represent(clients.parameters, batch)
        for batch in tiny_batches(fedproto, clients)
    ]


def test_nothing_is_shared() -> None:
    fedproto = tiny_learner("fedproto")
    assert not any(fedproto.is_shared(name) for name in fedproto.initial_parameters())


def test_the_distance_to_the_global_prototype_by_hand() -> None:
    """An encoder of zeros represents everything by 0, so the distance is the mean of P²."""
    fedproto = tiny_learner("fedproto", **{"fedproto.prototype-weight": 3.0})
    clients = tiny_cohort(fedproto)
    for name, value in clients.parameters.items():
        if name.startswith(fedproto.task.encoder):
            value.zero_()
    batch = tiny_batches(fedproto, clients)[0]
    context = fedproto.context(guidance(), clients)
    terms = fedproto.loss(clients.parameters, batch, context)
    mean_square = sum(i**2 for i in range(16)) / 16  # = 77.5
    torch.testing.assert_close(terms["prototype"], torch.full((2,), 3 * mean_square))
    assert (context.local_prototypes.value() == 0).all()


def test_the_loss_is_prediction_and_distance() -> None:
    losses, _, _ = train(tiny_learner("fedproto"), guidance())
    assert set(losses) == {"prediction", "prototype", "total"}
    torch.testing.assert_close(losses["total"], losses["prediction"] + losses["prototype"])


def test_in_the_first_round_there_is_no_global_prototype() -> None:
    losses, sent_arrays, _ = train(tiny_learner("fedproto"), guidance(first_round=True))
    assert set(losses) == {"prediction", "total"}
    assert set(sent_arrays) == {"prototypes"}


def test_what_is_sent_is_the_mean_representation_over_the_batches() -> None:
    # At so small a learning rate the parameters stay what they are.
    fedproto = tiny_learner("fedproto", **{"optimizer.learning-rate": 1e-12})
    _, sent_arrays, _ = train(fedproto, guidance())
    assert sent_arrays["prototypes"].shape == (len(NAMES), PERIOD, WIDTH)
    assert sent_arrays["prototypes"].dtype == np.float32
    expected = torch.stack(representations(fedproto)).mean(dim=0)
    np.testing.assert_allclose(sent_arrays["prototypes"], expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(sent_arrays["prototypes"][0], sent_arrays["prototypes"][1])


def test_only_the_last_epoch_is_sent() -> None:
    fedproto = tiny_learner("fedproto")
    clients = tiny_cohort(fedproto)
    context = fedproto.context(guidance(), clients)
    for batch in tiny_batches(fedproto, clients)[:2]:  # as if each were an epoch of its own
        context.start_epoch()
        fedproto.loss(clients.parameters, batch, context)
    torch.testing.assert_close(context.local_prototypes.value(), representations(fedproto)[1])


def test_training_pulls_the_representations_to_the_global_prototype() -> None:
    changes = {"optimizer.learning-rate": 0.05, "local-epochs": 20}
    target = np.full((PERIOD, WIDTH), 0.5, dtype=np.float32)
    received = Guidance({"prototype": target})

    def distance(weight: float) -> float:
        fedproto = tiny_learner("fedproto", **changes, **{"fedproto.prototype-weight": weight})
        _, sent_arrays, _ = train(fedproto, received)
        return float(np.square(sent_arrays["prototypes"] - target).mean())

    assert distance(100.0) < distance(0.0) / 10
