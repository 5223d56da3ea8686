"""What ``divergence.npz`` has of few clients and of very many."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedproto_app.maths.divergence import pairwise_divergence
from fedproto_app.strategies.common import findings as module
from tests.strategies.one_node import report
from tests.strategies.test_jsd_prototype import strategy

PROTOTYPES = {name: [[float(place), 0.0], [0.0, 1.0]] for place, name in enumerate("abc")}


def test_the_whole_matrix_of_few_clients() -> None:
    fuels = strategy()
    report(fuels, PROTOTYPES)
    artefact = fuels.findings()["divergence"]
    assert set(artefact) == {"names", "nodes", "prototypes", "groups", "divergence"}
    assert artefact["names"].tolist() == list(PROTOTYPES)
    assert artefact["divergence"].shape == (3, 3)
    assert np.array_equal(artefact["divergence"], artefact["divergence"].T)


def test_of_many_clients_some_and_the_prototypes_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    fuels = strategy()
    report(fuels, PROTOTYPES)
    full_matrix = fuels.findings()["divergence"]["divergence"]
    monkeypatch.setattr(module, "MOST_COMPARED", 2)
    artefact = fuels.findings()["divergence"]
    places = artefact["divergence_of"]
    assert len(places) == 2
    assert np.array_equal(artefact["divergence"], full_matrix[np.ix_(places, places)])
    assert len(artefact["names"]) == len(artefact["groups"]) == len(artefact["prototypes"]) == 3

    recomputed = pairwise_divergence(torch.from_numpy(artefact["prototypes"]))
    assert np.array_equal(recomputed.numpy(), full_matrix)
