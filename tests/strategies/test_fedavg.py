"""FedAvg: averaging over clients through Flower's averaging over nodes, and fine-tuning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from fedproto_app.client_app import app as client_app
from fedproto_app.core.messages import Guidance, Order
from fedproto_app.core.wire import numpy_arrays, write_order
from fedproto_app.experiments.invariants import SmallRuns
from fedproto_app.report.runs import read_run
from fedproto_app.strategies.fedavg import FedAvgStrategy
from tests.helpers.local_grid import run_locally, small_settings
from tests.helpers.reported import fields_of
from tests.helpers.tiny_cohort import tiny_cohort, tiny_learner, train
from tests.strategies.server_half import one_node

# --- the client's half ---------------------------------------------------------------------------


GUIDANCE = Guidance()


def test_fine_tuning_is_training_that_the_shared_model_does_not_see() -> None:
    learner = tiny_learner("fedavg", **{"fedavg.fine-tune-epochs": 1})
    cohort = tiny_cohort(learner)
    before = {name: value.clone() for name, value in cohort.parameters.items()}
    personalised = learner.personalised(cohort, GUIDANCE)
    assert personalised is not None
    assert all(torch.equal(value, cohort.parameters[name]) for name, value in before.items())
    _, _, trained = train(tiny_learner("fedavg"), GUIDANCE)
    for name, value in personalised.items():  # one epoch of its own order of batches
        assert not torch.equal(value[0], before[name][0])
        assert value.shape == trained.parameters[name].shape
    assert not torch.equal(personalised["decoder.weight"][0], personalised["decoder.weight"][1])


@pytest.mark.parametrize(("epochs", "as_many"), [(0, 1), (3, 3)])
def test_fedavg_ft_is_fedavg_with_at_least_one_epoch_of_it(epochs: int, as_many: int) -> None:
    models = []
    for method, fine_tune_epochs in (("fedavg-ft", epochs), ("fedavg", as_many)):
        learner = tiny_learner(method, **{"fedavg.fine-tune-epochs": fine_tune_epochs})
        models.append(learner.personalised(tiny_cohort(learner), GUIDANCE))
    fine_tuned, plain = models
    assert fine_tuned is not None
    assert plain is not None
    assert all(torch.equal(value, plain[name]) for name, value in fine_tuned.items())


# --- the server's half ---------------------------------------------------------------------------


LENGTHS = {"long": 24 * 20, "middle": 24 * 15, "short": 24 * 10}
NODES = (["long", "middle"], ["short"])


def nodes(tmp_path: Path) -> list[dict[str, object]]:
    """Two nodes: one with two clients, one with one, all of different length."""
    hours = np.arange(max(LENGTHS.values()))
    configs: list[dict[str, object]] = []
    for node, clients in enumerate(NODES):
        waves = {c: np.sin(hours[: LENGTHS[c]] / 4 + LENGTHS[c]) for c in clients}
        path = tmp_path / f"node{node}.csv"
        pd.DataFrame({c: pd.Series(wave) for c, wave in waves.items()}).to_csv(path, index=False)
        configs.append(
            {
                "node-name": f"n{node}",
                "data-source": "wide-csv",
                "least-periods": 0,
                "data-path": str(path),
                "state-dir": str(tmp_path / "state"),
            }
        )
    return configs


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedrep"])
def test_one_round_is_the_sample_weighted_mean_over_clients(tmp_path: Path, method: str) -> None:
    settings = small_settings(tmp_path, method=method, rounds=1)
    folder, grid = run_locally(settings, nodes(tmp_path))
    averaged = load_file(folder.path / "model" / "global.safetensors")

    start = FedAvgStrategy(settings, None, one_node(settings)).initial_arrays()
    models, weights = [], []
    for node_id, context in grid.contexts.items():
        for client in NODES[node_id - 1000]:
            order = Order("alone", "t", 1, [client], guidance=Guidance(start))
            message = write_order(order, node_id, "train")
            message.metadata.__dict__["_message_id"] = "x"
            reply = client_app(message, context)
            models.append(numpy_arrays(reply.content.array_records["arrays"]))
            weights += fields_of(reply)["samples"]
    assert len(set(weights)) == 3
    for name, value in averaged.items():
        expected = np.average([model[name] for model in models], axis=0, weights=weights)
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)


def test_what_is_made_of_the_averaged_model_is_the_clients_own(tmp_path: Path) -> None:
    """A_glo is of the averaged model, A_loc of the fine-tuned one, which is kept."""
    changes = {"rounds": 2, "keep": "last", "optimizer.learning-rate": 0.1}
    changes |= {"fedavg.fine-tune-epochs": 5}
    runs = SmallRuns("classification", "fedavg-ft", tmp_path, **changes)
    tuned = read_run(runs.run("tuned", 1)).summary
    del changes["fedavg.fine-tune-epochs"]
    plain = SmallRuns("classification", "fedavg", tmp_path, **changes)
    averaged = read_run(plain.run("plain", 1)).summary
    assert tuned["accuracy_global"] == averaged["accuracy_global"]
    assert tuned["accuracy_local"] == tuned["accuracy_kept"]
    assert tuned["accuracy_local"] > tuned["accuracy_global"]
