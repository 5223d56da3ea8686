"""FedProto: the loss by hand, and what it does. What is sent is in test_prototypes."""

from __future__ import annotations

import numpy as np
import torch

from fedproto_app.core.messages import Guidance
from tests.helpers.tiny_cohort import PERIOD, WIDTH, tiny_batches, tiny_cohort, tiny_learner

GLOBAL = np.arange(PERIOD * WIDTH, dtype=np.float32).reshape(PERIOD, WIDTH)


def test_the_distance_to_the_global_prototype_by_hand() -> None:
    """An encoder of zeros represents everything by 0, so the distance is the mean of P²."""
    fedproto = tiny_learner("fedproto", **{"fedproto.prototype-weight": 3.0})
    clients = tiny_cohort(fedproto)
    for name, value in clients.parameters.items():
        if name.startswith(fedproto.task.encoder):
            value.zero_()
    batch = tiny_batches(fedproto, clients)[0]
    context = fedproto.context(Guidance({"prototype": GLOBAL}), clients)
    terms = fedproto.loss(clients.parameters, batch, context)
    mean_square = sum(i**2 for i in range(16)) / 16  # = 77.5
    torch.testing.assert_close(terms["prototype"], torch.full((2,), 3 * mean_square))
    assert (context.local_prototypes.value() == 0).all()


def test_only_the_last_epoch_is_sent() -> None:
    fedproto = tiny_learner("fedproto")
    clients = tiny_cohort(fedproto)
    context = fedproto.context(Guidance({"prototype": GLOBAL}), clients)
    batches = tiny_batches(fedproto, clients)[:2]
    for batch in batches:  # as if each were an epoch of its own
        context.start_epoch()
        fedproto.loss(clients.parameters, batch, context)
    expected = fedproto.task.represent(clients.parameters, batches[1])
    torch.testing.assert_close(context.local_prototypes.value(), expected)
