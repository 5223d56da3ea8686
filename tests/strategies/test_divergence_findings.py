"""What ``divergence.npz`` has of few clients and of very many."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedproto_app.maths.divergence import pairwise_divergence
from fedproto_app.strategies.common import divergence_findings as module
from tests.strategies.one_node import report
from tests.strategies.test_jsd_prototype import strategy

TOLD = {name: [[float(place), 0.0], [0.0, 1.0]] for place, name in enumerate("abc")}


def test_the_whole_matrix_of_few_clients() -> None:
    fuels = strategy()
    report(fuels, TOLD)
    found = fuels.findings()["divergence"]
    assert set(found) == {"names", "nodes", "prototypes", "groups", "divergence"}
    assert found["names"].tolist() == list(TOLD)
    assert found["divergence"].shape == (3, 3)
    assert np.array_equal(found["divergence"], found["divergence"].T)


def test_of_many_clients_some_and_the_prototypes_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    fuels = strategy()
    report(fuels, TOLD)
    whole = fuels.findings()["divergence"]["divergence"]
    monkeypatch.setattr(module, "MOST_CLIENTS", 2)
    found = fuels.findings()["divergence"]
    places = found["divergence_of"]
    assert len(places) == 2
    assert np.array_equal(found["divergence"], whole[np.ix_(places, places)])
    assert len(found["names"]) == len(found["groups"]) == len(found["prototypes"]) == 3

    again = pairwise_divergence(torch.from_numpy(found["prototypes"]))
    assert np.array_equal(again.numpy(), whole)
