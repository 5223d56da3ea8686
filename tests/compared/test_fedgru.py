"""FedGRU: a client trains its cluster's model by FedAvg within the cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Guidance
from fedproto_app.engine.local import nodes_sharing
from fedproto_app.experiments.invariants import everything
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_rounds
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import Context
from fedproto_compared.fedgru import (
    CHOICE,
    Ensemble,
    StackedGru,
    constrained_kmeans,
    member,
    of_member,
    subsets,
)
from tests.helpers.local_grid import run_locally, small_settings
from tests.helpers.tiny_cohort import tiny_cohort, tiny_learner, train
from tests.strategies.server_half import server_of

# --- the client's half ---------------------------------------------------------------------------


TINY = {"fedgru.hidden": 3, "graph.noise": 0.0}
GUIDANCE = Guidance(options={"a": 1.0, "b": 0.0})


def test_every_mean_of_some_models_is_a_candidate() -> None:
    assert [weights.tolist() for weights in subsets(2)] == [[1, 0], [0, 1], [0.5, 0.5]]
    assert len(subsets(4)) == 15
    assert all(weights.sum() == 1 for weights in subsets(4))


def test_a_client_trains_its_own_clusters_model_and_sends_that() -> None:
    """As it would with that model alone. The other cluster's stays, bit for bit."""
    learner = tiny_learner("fedgru", **TINY)
    before = tiny_cohort(learner).parameters
    losses, _, after = train(learner, GUIDANCE)
    sent_model = learner.contribution(after, Context()).model
    alone = tiny_learner("fedgru", **TINY, **{"fedgru.clusters": 1})
    plain_losses, _, plain = train(alone, replace(GUIDANCE, options={}))
    assert set(sent_model) == set(plain.parameters)
    torch.testing.assert_close(losses["total"], plain_losses["total"])
    for name, values in plain.parameters.items():
        torch.testing.assert_close(sent_model[name], values, atol=1e-6, rtol=1e-4)
    for row, cluster in enumerate((0, 1)):
        was, trained_member = member(before, cluster), member(after.parameters, cluster)
        assert all(torch.equal(trained_member[name][row], was[name][row]) for name in was)


def test_it_forecasts_with_the_models_that_err_least_on_validation_samples() -> None:
    learner = tiny_learner("fedgru", **TINY)
    _, _, cohort = train(learner, GUIDANCE)
    errors = []
    for choice in subsets(2):
        tried = {**cohort.parameters, CHOICE: choice.expand(2, -1)}
        errors.append(learner.task.validation_error(tried, cohort.samples))
    assert learner.receive(cohort, GUIDANCE) == [0, 1]
    best = torch.stack(errors).argmin(dim=0)
    chosen = [subsets(2)[index].tolist() for index in best.tolist()]
    assert cohort.parameters[CHOICE].tolist() == chosen
    cohort.parameters["decoder.0.bias"].fill_(torch.nan)
    learner.receive(cohort, GUIDANCE)
    assert cohort.parameters[CHOICE].tolist() == [[0, 1], [0, 1]]


# --- whole runs ----------------------------------------------------------------------------------


SIZE = 23_301
SMALL = {"method": "fedgru", "fedgru.hidden": 4, "rounds": 2}

AVERAGED = """
from fedproto_app.core.method import Method
from fedproto_compared.fedgru import FedGruSettings

METHOD = Method(
    name="averaged",
    strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
    learner="fedproto_app.strategies.fedavg:FedAvgLearner",
    settings=FedGruSettings,
    tasks=("forecasting",),
    table="fedgru",
    model="fedproto_compared.fedgru:gru_of_clusters",
)
"""


def series(tmp_path: Path, names: str) -> str:
    """Days of two kinds: a and b rise while c and d fall."""
    hours, draws = np.arange(24 * 14), np.random.default_rng(0)
    values = {
        name: np.sin(hours * np.pi / 12 + (np.pi if name in "cd" else 0))
        + draws.normal(scale=0.2, size=len(hours))
        for name in "abcd"
    }
    path = tmp_path / f"{names}.csv"
    pd.DataFrame({name: values[name] for name in names}).to_csv(path, index=False)
    return str(path)


def run(tmp_path: Path, name: str, clients: str, **changes: Any) -> RunFolder:
    data = {"data.source": "wide-csv", "data.path": series(tmp_path, clients)}
    settings = small_settings(tmp_path, **{**SMALL, **data, **changes, "output.name": name})
    nodes = nodes_sharing(settings.data, 2, tmp_path / f"state-{name}")
    return run_locally(settings, nodes)[0]


def test_an_organisation_a_client_and_one_cluster_are_fedavg_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "averaged_method.py").write_text(AVERAGED)
    monkeypatch.syspath_prepend(tmp_path)
    single = {"fedgru.clusters": 1, "fedgru.organisations": 4}
    fedgru = everything(run(tmp_path, "ours", "abcd", **single).path)
    fedavg = everything(
        run(tmp_path, "its", "abcd", **single, method="averaged_method:METHOD").path
    )
    extra = {name for name in fedgru if "organisations" in name or "clusters" in name}
    assert fedgru.keys() - extra == fedavg.keys()
    for name, value in fedavg.items():
        np.testing.assert_array_equal(fedgru[name], value, err_msg=name)


def test_clusters_of_an_organisation_each_do_not_learn_from_each_other(tmp_path: Path) -> None:
    """Two organisations of two clients: two runs of FedAvg."""
    two = {"fedgru.clusters": 2, "fedgru.organisations": 2}
    folder = run(tmp_path, "both", "abcd", **two)
    joint = load_file(next((folder.path / "model").glob("*.safetensors")))
    single = {"fedgru.clusters": 1, "fedgru.organisations": 1}
    for cluster, clients in enumerate(("ab", "cd")):
        alone = run(tmp_path, clients, clients, **single)
        for name, value in load_file(next((alone.path / "model").glob("*.safetensors"))).items():
            prefix, _, suffix = name.partition(".")
            got = joint[f"{prefix}.{cluster}.{suffix}"]
            np.testing.assert_allclose(got, value, atol=2e-6, err_msg=name)
    artefact = np.load(folder.path / "organisations.npz")
    assert artefact["names"].tolist() == ["a", "b", "c", "d"]
    assert artefact["organisation"].tolist() == artefact["cluster"].tolist() == [0, 0, 1, 1]
    assert read_rounds(folder.path)[0]["figures"] == {"organisations": 2, "clusters": 2}


def test_what_goes_up_is_one_clusters_model_and_a_day_once(tmp_path: Path) -> None:
    folder = run(tmp_path, "sizes", "abcd", **{"fedgru.hidden": 50, "fedgru.organisations": 2})
    parameters_up = [line["parameters_up"] for line in read_rounds(folder.path)]
    assert parameters_up == [4 * (SIZE + 24), 4 * SIZE]
    parameters_down = [line["parameters_down"] for line in read_rounds(folder.path)]
    assert parameters_down == [2 * 4 * 2 * SIZE] * 2  # both models, to train and to be judged
    assert json.loads((folder.path / "summary.json").read_text())["clients"] == 4


def test_organisations_are_neighbouring_names_or_communities(tmp_path: Path) -> None:
    places = tmp_path / "places.csv"
    places.write_text("name,x,y\na,0,0\nb,9,0\nc,0,1\nlate,9,1\n")
    graph = {"graph.source": "positions", "graph.path": str(places)}
    for organisations, expected, clusters in (
        (3, [0, 0, 1, 2], None),
        (9, [0, 1, 2, 3], [0, 1, 0, 1]),
        (0, [0, 1, 0, 1], [0, 1, 0, 1]),
    ):
        strategy = server_of("fedgru", **graph, **{"fedgru.organisations": organisations})
        artefact = strategy.findings()["organisations"]
        assert artefact["organisation"].tolist() == expected
        assert clusters is None or artefact["cluster"].tolist() == clusters


def test_before_any_profile_came_all_are_in_one_cluster() -> None:
    assert not server_of("fedgru").findings()["organisations"]["cluster"].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fedgru.organisations": 3, "fedgru.smallest": 2}, "fedgru.organisations = 3: fewer than"),
        ({"graph.source": "file", "graph.path": "x.csv"}, "graph.source = 'file': edge weights gi"),
    ],
)
def test_settings_that_leave_no_clusters_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings_from({"method": "fedgru", **changes})


# --- the maths ------------------------------------------------------------------------------------


def cost(points: np.ndarray, labels: np.ndarray) -> float:
    """The sum of squared distances to the means of the clusters."""
    return sum(
        float(((points[labels == label] - points[labels == label].mean(axis=0)) ** 2).sum())
        for label in set(labels.tolist())
    )


@pytest.mark.parametrize(("smallest", "labels"), [(1, [0, 0, 0, 1]), (2, [0, 0, 1, 1])])
def test_a_point_far_away_needs_company_where_sizes_ask_for_it(
    smallest: int, labels: list[int]
) -> None:
    points = np.array([[0.0], [1.0], [2.0], [10.0]])
    actual = constrained_kmeans(points, 2, smallest, np.random.default_rng(0))
    assert actual.tolist() == labels
    assert constrained_kmeans(points[::-1], 2, smallest, np.random.default_rng(0))[0] == 0


@pytest.mark.parametrize("smallest", [1, 2, 3])
def test_no_other_assignment_costs_less(smallest: int) -> None:
    points = np.random.default_rng(smallest).normal(size=(7, 2))
    points[:2] += 4
    actual = constrained_kmeans(points, 2, smallest, np.random.default_rng(0))
    assert np.bincount(actual).min() >= smallest
    assignments = (np.array(labels) for labels in product((0, 1), repeat=7))
    allowed = [
        assignment
        for assignment in assignments
        if np.bincount(assignment, minlength=2).min() >= smallest
    ]
    assert cost(points, actual) == pytest.approx(
        min(cost(points, assignment) for assignment in allowed)
    )


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="3 points for 2 clusters of 2"):
        constrained_kmeans(np.zeros((3, 1)), 2, 2, np.random.default_rng(0))
    actual = constrained_kmeans(np.zeros((5, 1)), 2, 2, np.random.default_rng(0))
    assert np.bincount(actual).min() == 2


def test_fedgrus_model_has_two_layers_of_50_and_is_torchs() -> None:
    model = StackedGru(2, 50, WindowLayout(close=3, distances=3, horizon=1, period=24, times=0))
    parameters = model.initial_parameters(torch.Generator().manual_seed(0))
    assert sum(value.numel() for value in parameters.values()) == 7_950 + 15_300 + 51 == 23_301
    reference = torch.nn.GRU(1, 50, num_layers=2, batch_first=True)
    for layer in (0, 1):
        for name, value in reference.named_parameters():
            if name.endswith(f"_l{layer}"):
                ours = parameters[f"encoder.layer-{layer}.{name.removesuffix(f'_l{layer}')}"]
                value.data.copy_(ours.T if ours.dim() == 2 else ours)
    samples = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
    representation = model.encode(
        {name: value[None] for name, value in parameters.items()}, samples
    )
    in_time = torch.cat([samples[0, :, 3:], samples[0, :, :3]], dim=1)  # days ago, then hours
    _, last = reference(in_time[..., None])
    torch.testing.assert_close(representation[0], last[1], atol=1e-6, rtol=1e-5)


def test_the_head_sees_the_calendar_beside_the_state() -> None:
    model = StackedGru(1, 4, WindowLayout(close=2, distances=1, horizon=2, period=3, times=1))
    parameters = model.initial_parameters(torch.Generator().manual_seed(0))
    assert parameters["decoder.weight"].shape == (4 + 3, 2)
    stacked = {name: value[None] for name, value in parameters.items()}
    samples = torch.tensor([[[0.1, 0.2, 0.3, 0.4, 2.0]]])
    assert model.encode(stacked, samples)[0, 0, 4:].tolist() == [0, 0, 1]
    assert model.predict(stacked, model.encode(stacked, samples)).shape == (1, 1, 2)


MEMBER = StackedGru(2, 3, WindowLayout(close=2, distances=2, horizon=1, period=4, times=0))


def test_its_forecast_is_the_weighted_mean_of_its_members() -> None:
    """What a member of weight 0 says does not matter to two clients, not even to the gradient."""
    ensemble, draw = Ensemble(MEMBER, 2), torch.Generator().manual_seed(0)
    initial = ensemble.initial_parameters(draw)
    assert set(initial) == {of_member(n, c) for n in member(initial, 0) for c in (0, 1)}
    assert all(torch.equal(member(initial, 0)[n], v) for n, v in member(initial, 1).items())
    parameters = {n: torch.randn(2, *v.shape, generator=draw) for n, v in initial.items()}
    parameters["decoder.1.weight"][1] = 1e38
    parameters[CHOICE] = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    samples = torch.randn(2, 5, 4, generator=draw) * 100
    alone = []
    for number in (0, 1):
        member_parameters = member(parameters, number)
        alone.append(MEMBER.predict(member_parameters, MEMBER.encode(member_parameters, samples)))
    assert not alone[1][1].isfinite().all() or alone[1][1].abs().max() > 1e37
    weight = parameters["decoder.1.weight"].requires_grad_()
    prediction = ensemble.predict(parameters, ensemble.encode(parameters, samples))
    torch.testing.assert_close(prediction[0], 0.25 * alone[0][0] + 0.75 * alone[1][0])
    assert torch.equal(prediction[1], alone[0][1])
    [gradient] = torch.autograd.grad(prediction.sum(), [weight])
    assert gradient[0].any()
    assert not gradient[1].any()
