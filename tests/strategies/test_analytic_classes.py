"""The server of the closed form for classes: which sums it takes, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord

from fedproto_app.core.clients import ClientFacts, ClientKey
from fedproto_app.core.messages import Arrays, Guidance, NodeRoster, Reply
from fedproto_app.core.round import ClientReply, Received, Round
from fedproto_app.core.sends import Sends
from fedproto_app.core.wire import read_order
from fedproto_app.data.shape import DataShape
from fedproto_app.experiments.invariants import SmallRuns, invariants_of
from fedproto_app.maths.class_gaussian import LabelledVectors, class_sums
from fedproto_app.maths.ridge import triangle
from fedproto_app.report.runs import read_rounds, read_run
from fedproto_app.settings import AggregationSettings, settings_from
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.analytic import classes_strategy as class_groups
from fedproto_app.strategies.analytic.classes_strategy import AnalyticClassesStrategy, ClassGroups
from fedproto_app.strategies.common.class_fit import packed
from tests.strategies.one_node import NO_GRID, NODE, SAMPLES, evaluation, one_node

WIDTH, CLASSES = 8, ("ant", "bee")


@pytest.fixture
def server() -> AnalyticClassesStrategy:
    """The server for one filter, so eight features."""
    settings = settings_from(
        {
            "task": "classification",
            "method": "analytic",
            "keep": "last",
            "analytic.features": 1,
            "data.source": "digits",
        }
    )
    return strategy_of(settings, DataShape((1, 8, 8), CLASSES))


def strategy_of(settings: object, shape: DataShape) -> AnalyticClassesStrategy:
    federation = one_node(settings)  # type: ignore[arg-type]
    federation.members.expect([], shape)
    return AnalyticClassesStrategy(settings, settings.method_settings, federation)  # type: ignore


def sums_of(
    seed: int, scale: float = 1.0, samples: int = SAMPLES, classes: Sequence[int] = ()
) -> Arrays:
    """Return sums of this many samples, of both classes in turn or of `classes`."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes or [n % 2 for n in range(samples)]).unsqueeze(0)
    features = scale * torch.randn(1, samples, WIDTH, generator=draws)
    sums = class_sums(LabelledVectors(features, labels, torch.ones(1, samples)), 2)
    arrays = {"gram": triangle(sums.gram), "moment": sums.moment, "counts": sums.counts}
    return {name: value[0].float().numpy() for name, value in arrays.items()}


def report(
    strategy: AnalyticClassesStrategy, node: str = NODE, **clients: Arrays
) -> dict[str, str]:
    """What was refused, and why."""
    names = ("gram", "moment", "counts")
    arrays = {key: np.stack([sums[key] for sums in clients.values()]) for key in names}
    reply = Reply(list(clients), [SAMPLES] * len(clients), arrays=arrays)
    strategy.take_in([replace(reply, node=node)], 1)
    return {sums.client: sums.reason for sums in strategy.federation.history.log.refused}


def totals(strategy: AnalyticClassesStrategy) -> Arrays:
    return evaluation(strategy).arrays


def test_with_a_rule_one_of_three_does_not_move_the_means_of_classes(
    server: AnalyticClassesStrategy,
) -> None:
    settings = server.settings.model_copy(
        update={"aggregation": AggregationSettings(rule="median")}
    )
    robust = strategy_of(settings, server.federation.shape)
    good, liar = sums_of(0), sums_of(0)
    liar["moment"] = -liar["moment"]
    assert report(robust, a=good, b=good, c=liar) == {}
    robust_totals = totals(robust)
    for name, total in robust_totals.items():
        np.testing.assert_allclose(total, 3 * good[name], rtol=1e-4, atol=1e-4)


def test_the_latest_sums_of_each_client_add_up(server: AnalyticClassesStrategy) -> None:
    first, second = sums_of(0), sums_of(1)
    assert report(server, a=first, b=second) == {}
    assert report(server, b=second) == {}  # again: it counts once
    sums_over_clients = totals(server)
    for name, total in sums_over_clients.items():
        np.testing.assert_allclose(total, first[name] + second[name], rtol=1e-6)
    restored = AnalyticClassesStrategy(server.settings, server.section, server.federation)
    restored.restore(server.state())
    np.testing.assert_array_equal(totals(restored)["gram"], sums_over_clients["gram"])


def test_sums_that_cannot_be_true_are_refused(server: AnalyticClassesStrategy) -> None:
    noise = {**sums_of(0), "moment": np.zeros((2, WIDTH), np.float32)}
    noise["gram"] = noise["gram"] * 1e4
    too_many = {**sums_of(1), "counts": np.array([1e6, 2], np.float32)}
    one_class = sums_of(2)
    one_class["moment"] = one_class["moment"] * 9
    refused = report(server, a=sums_of(3), b=sums_of(4), c=noise, late=too_many)
    assert set(refused) == {"c", "late"}
    assert "more than 10 times what is usual" in refused["c"]
    assert "more than the 4 that it declared" in refused["late"]
    refused = report(server, late=one_class)
    assert "no samples have such sums and products" in refused["late"]
    np.testing.assert_allclose(totals(server)["counts"], [4, 4])


def test_a_node_that_lost_its_memory_does_not_replace_what_it_sent(
    server: AnalyticClassesStrategy,
) -> None:
    report(server, a=sums_of(0))
    refused = report(server, a=sums_of(0, samples=2))
    assert "fewer samples than its earlier sums" in refused["a"]
    np.testing.assert_allclose(totals(server)["counts"], [2, 2])


def test_a_run_over_stages_asks_everyone_and_tells_of_both_models(tmp_path: Path) -> None:
    runs = SmallRuns("classification", "analytic", tmp_path, **{"analytic.features": 4})
    folder = runs.run("once", 2, participation=0.3)
    lines = read_rounds(folder)
    assert len(lines) == 2  # one a stage, whatever `rounds` says
    assert {line["clients"] for line in lines} == {8}
    summary = read_run(folder).summary
    assert summary["accuracy_global"] > 0.5
    assert summary["accuracy_local"] > 0.5


# Few labels, and many sequences without.
GUESSED: dict[str, Any] = {
    "keep": "last",
    "data.clusters.labels": 3,
    "data.clusters.unlabelled": True,
    "analytic.guess-rounds": 2,
}
RENAMED = {
    "analytic.features": 60,
    "data.clusters.renamed": True,
    "data.clusters.clusters": 2,
    "data.clusters.clients": 8,
}


def separated_sums(swapped: bool, seed: int, times: float = 0.1) -> Arrays:
    """So many times the sums of forty samples of two classes that lie far apart, named the other
    way round or not; of as many samples as declared."""
    draws = torch.Generator().manual_seed(seed)
    true = torch.arange(40).remainder(2).unsqueeze(0)
    features = torch.randn(1, 40, WIDTH, generator=draws) + 6.0 * true.unsqueeze(-1)
    vectors = LabelledVectors(features, 1 - true if swapped else true, torch.ones(1, 40))
    sums = {
        name: array[0].float().numpy() for name, array in packed(class_sums(vectors, 2)).items()
    }
    return {name: (value * times).astype(np.float32) for name, value in sums.items()}


def clustered(server: AnalyticClassesStrategy) -> AnalyticClassesStrategy:
    """With a second node, whose clients are d, e and f."""
    section = AnalyticSettings(features=1, sharing="clustered")
    settings = server.settings.model_copy(update={"method_settings": section})
    strategy = strategy_of(settings, server.federation.shape)
    samples, groups = dict.fromkeys("def", SAMPLES), dict.fromkeys("def", "")
    strategy.federation.members.roster.connected.add(2)
    second_node = NodeRoster("other", 0, samples, groups, dict.fromkeys("def", 0.0), {})
    strategy.federation.members.roster.admit(2, second_node)
    return strategy


def answers(strategy: AnalyticClassesStrategy) -> list[Guidance]:
    """To each node."""
    no_model, config = ArrayRecord(), ConfigRecord()
    return [
        read_order(message).guidance
        for message in strategy.configure_evaluate(1, no_model, config, NO_GRID)
    ]


def test_clients_are_told_the_sums_of_those_who_mean_the_same(
    server: AnalyticClassesStrategy,
) -> None:
    strategy = clustered(server)
    first_node = {name: separated_sums(False, seed) for seed, name in enumerate("abc")}
    second_node = {name: separated_sums(name != "d", 3 + seed) for seed, name in enumerate("def")}
    first_node["late"] = separated_sums(True, 6)
    assert report(strategy, **first_node) == report(strategy, "other", **second_node) == {}
    first, second = answers(strategy)
    assert (first.clients, second.clients) == (["a", "b", "c", "late"], ["d", "e", "f"])
    for guidance in (first, second):
        total = sum(sums["gram"] for sums in (*first_node.values(), *second_node.values()))
        np.testing.assert_allclose(guidance.arrays["gram"], total, rtol=1e-6)
    for name in ("moment", "counts"):
        own_cluster = sum(first_node[client][name] for client in "abc") + second_node["d"][name]
        other_cluster = first_node["late"][name] + second_node["e"][name] + second_node["f"][name]
        cluster_sums = first.arrays[f"cluster.{name}"], second.arrays[f"cluster.{name}"]
        np.testing.assert_allclose(
            cluster_sums[0], [own_cluster, own_cluster, own_cluster, other_cluster], rtol=1e-5
        )
        np.testing.assert_allclose(
            cluster_sums[1], [own_cluster, other_cluster, other_cluster], rtol=1e-5
        )
    assert strategy.federation.history.log.figures["clusters"] == 2
    labels = strategy.findings()["clusters"]["labels"].tolist()
    assert labels == [[0, 0, 0, 0, 1, 1, 1]]  # by name: a, b, c, d, e, f, late

    restored = clustered(server)
    restored.restore(strategy.state())
    for name, array in answers(restored)[0].arrays.items():
        np.testing.assert_array_equal(array, first.arrays[name])
    assert restored.findings()["clusters"]["labels"].tolist() == labels * 2


@pytest.mark.parametrize("swapped", [("c", "late"), ("late",)])
def test_nobody_is_told_what_one_other_client_has(
    swapped: tuple[str, ...], server: AnalyticClassesStrategy
) -> None:
    """Neither a client of the cluster, nor, by the total, one of the others."""
    strategy = clustered(server)
    sums_by_client = {
        name: separated_sums(name in swapped, seed)
        for seed, name in enumerate(["a", "b", "c", "late"])
    }
    report(strategy, **sums_by_client)
    first, _ = answers(strategy)
    assert first.clients == []
    assert set(first.arrays) == {"gram", "moment", "counts"}


def clusters_among(sums_by_client: dict[str, Arrays]) -> list[int]:
    """In the order of names."""
    shapes = {name: array.shape for name, array in next(iter(sums_by_client.values())).items()}
    latest = Received([Sends("sums", shapes, remember="latest")])
    latest.take(
        [ClientReply(ClientKey(name, NODE), 9, sums) for name, sums in sums_by_client.items()]
    )
    facts = {ClientKey(name, NODE): ClientFacts(9, "", 0.0) for name in sums_by_client}
    groups = ClassGroups(1.0)
    groups.find(latest, latest.totals(), Round(1, facts))
    [labels] = groups.findings(facts)["clusters"]["labels"].tolist()
    return list(labels)


TWO_NAMINGS = {f"c{number:02}": separated_sums(number % 2 == 0, number, 1) for number in range(20)}


def test_a_liar_of_many_samples_does_not_part_the_others() -> None:
    """Its samples are all alike, so that with all of them the others' differences look large."""
    middle = torch.full((1, 2, WIDTH), 3.0)
    liar = class_sums(LabelledVectors(middle, torch.tensor([[0, 1]]), torch.ones(1, 2)), 2)
    sums = {name: 20_000 * value[0].float().numpy() for name, value in packed(liar).items()}
    assert clusters_among({**TWO_NAMINGS, "liar": sums})[:20] == [0, 1] * 10


def test_clients_without_samples_hide_nobodys_cluster() -> None:
    zeros = {name: 0 * array for name, array in TWO_NAMINGS["c00"].items()}
    empty = {f"none-{number}": zeros for number in range(30)}
    assert clusters_among({**TWO_NAMINGS, **empty})[:20] == [0, 1] * 10
    assert clusters_among(empty) == [0] * 30


def test_too_much_work_is_not_begun(
    server: AnalyticClassesStrategy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(class_groups, "MOST_WORK", 10)
    strategy = clustered(server)
    report(strategy, **{name: separated_sums(name < "c", 0) for name in ("a", "b", "c", "late")})
    assert answers(strategy)[0].clients == []
    assert "no clusters are looked for among 4 clients of 2 classes" in caplog.text


@pytest.mark.parametrize(
    "invariant",
    [
        "1 node with 8 clients equals 8 nodes with 1",
        "a run that is killed and resumed ends the same",
    ],
)
def test_clusters_hold_the_invariants(invariant: str, tmp_path: Path) -> None:
    task = "sequence-classification"
    runs = SmallRuns(task, "analytic", tmp_path, **RENAMED, **{"analytic.sharing": "clustered"})
    deviation = invariants_of(task, "analytic")[invariant](runs)
    assert deviation.held, deviation
    for folder in (tmp_path / "runs").iterdir():
        with np.load(folder / "clusters.npz") as artefact:
            assert artefact["labels"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]


def test_where_clusters_name_the_classes_otherwise_it_finds_them_and_gains(tmp_path: Path) -> None:
    accuracy = {}
    for sharing in ("shrunk", "clustered"):
        changes = {**RENAMED, "analytic.sharing": sharing}
        runs = SmallRuns("sequence-classification", "analytic", tmp_path / sharing, **changes)
        summary = read_run(runs.run("once", 2)).summary
        accuracy[sharing] = summary["accuracy"]
        assert summary["rand_index"] == (1.0 if sharing == "clustered" else None)
    assert accuracy["clustered"] > accuracy["shrunk"] + 0.05


def test_a_guess_may_be_another_one_every_round() -> None:
    settings = settings_from(
        {
            "task": "sequence-classification",
            "method": "analytic",
            "keep": "last",
            "analytic.features": WIDTH // 2,
            "analytic.guess-rounds": 1,
        }
    )
    strategy = strategy_of(settings, DataShape((2,), CLASSES))
    report(strategy, a=sums_of(0))
    assert not report(strategy, a=sums_of(1, classes=[0, 0, 0, 1]))
    np.testing.assert_allclose(totals(strategy)["counts"], [3, 1])
    refused = report(strategy, a=sums_of(0, samples=2))
    assert "fewer samples than its earlier sums" in refused["a"]


@pytest.mark.parametrize(
    "invariant",
    [
        "1 node with 8 clients equals 8 nodes with 1",
        "a run that is killed and resumed ends the same",
    ],
)
def test_guesses_hold_the_invariants(invariant: str, tmp_path: Path) -> None:
    task = "sequence-classification"
    runs = SmallRuns(task, "analytic", tmp_path, **GUESSED)
    deviation = invariants_of(task, "analytic")[invariant](runs)
    assert deviation.held, deviation
    for folder in (tmp_path / "runs").iterdir():
        assert len(read_rounds(folder)) == 1 + GUESSED["analytic.guess-rounds"]


def test_sequences_without_a_label_help_where_labels_are_few(tmp_path: Path) -> None:
    few_labels = {
        **GUESSED,
        "analytic.features": 60,
        "data.clusters.clients": 4,
        "data.clusters.labels": 8,
    }
    accuracy = dict.fromkeys((0, 2), 0.0)
    for rounds, seed in product(accuracy, range(3)):
        changes = {**few_labels, "analytic.guess-rounds": rounds, "seed": seed}
        folder = tmp_path / f"{rounds}-{seed}"
        runs = SmallRuns("sequence-classification", "analytic", folder, **changes)
        accuracy[rounds] += read_run(runs.run("once", 2)).summary["accuracy"] / 3
    assert accuracy[2] > accuracy[0] + 0.02
