"""The arrays that each client sent last, and their way through a checkpoint."""

from __future__ import annotations

import numpy as np

from fedproto_app.server.roster import ClientKey
from fedproto_app.strategies.latest_arrays import LatestArrays


def test_the_latest_of_each_client_counts_in_the_order_of_names() -> None:
    latest = LatestArrays("x", "y")
    assert (latest.clients(), latest.state()) == ([], {})
    for client, node, x in (("b", "n", 1.0), ("a", "n", 2.0), ("a", "m", 3.0), ("b", "n", 4.0)):
        sent = {"x": np.float32([x]), "y": np.float32([[x, -x]]), "else": np.float32([0])}
        latest.keep(ClientKey(client, node), sent)
    assert latest.clients() == [("a", "m"), ("a", "n"), ("b", "n")]
    assert latest.stacked("x").tolist() == [[3], [2], [4]]
    assert latest.stacked("y").tolist() == [[[3, -3]], [[2, -2]], [[4, -4]]]

    # Older checkpoints have the clients in the order in which they came.
    kept = latest.state()
    assert set(kept) == {"names", "nodes", "x", "y"}
    again = LatestArrays("x", "y")
    again.restore({name: array[[2, 0, 1]] for name, array in kept.items()})
    again.restore({})
    for name, array in again.state().items():
        np.testing.assert_array_equal(array, kept[name])
