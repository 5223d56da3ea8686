"""FedPCL on classes: its loss, what it sends, how it is judged, and what its server sends back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import ClientReply, Received, Round
from fedproto_app.core.sends import Sizes, unmaskable
from fedproto_app.core.tasks import small_run
from fedproto_app.experiments.invariants import SmallRuns
from fedproto_app.node.orders import require_allowed
from fedproto_app.node.site import read_site
from fedproto_app.report.runs import read_rounds
from fedproto_app.server.federation import Federation
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import AnyLearner, train_cohort
from fedproto_app.strategies.common.prototypes import PROTOTYPES, class_prototypes
from fedproto_app.strategies.fedpcl import (
    GLOBAL_PROTOTYPES,
    FedPclClassesStrategy,
    FedPclSettings,
)
from tests.learners.tiny_images import CLASSES, SHAPE, image_cohort, image_learner, shared_model

WIDTH = 6
MULTIPLE = {"fedpcl.prototypes": "multiple"}
NOISED = {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0}
ROUND = Round(1, class_names=CLASSES)


def guidance(prototypes: dict[int, list[float]]) -> Guidance:
    """With a global prototype for some classes."""
    arrays = {PROTOTYPES: rows(*prototypes.values())} if prototypes else {}
    return Guidance(arrays, classes=list(prototypes))


def guidance_of_clients(*clients: dict[int, list[float]]) -> Guidance:
    """With these prototypes of each of some clients."""
    arrays = np.zeros((len(clients), len(CLASSES), WIDTH), np.float32)
    for number, prototypes in enumerate(clients):
        for label, values in prototypes.items():
            arrays[number, label, : len(values)] = values
    return Guidance({GLOBAL_PROTOTYPES: arrays})


def rows(*values: list[float]) -> Any:
    """[n, WIDTH], zeros after the values."""
    return np.array([row + [0.0] * (WIDTH - len(row)) for row in values], np.float32)


def contrast(learner: AnyLearner, received: Guidance, representation: list[list[float]]) -> Any:
    """The weighted contrast of client a's images, whose representations these are, of classes
    0, 0 and 1, and of b's, of class 1 alone."""
    cohort = image_cohort(learner)
    generators = [torch.Generator().manual_seed(0) for _ in cohort.names]
    (batch,) = learner.batches(cohort.samples, generators)
    learner.task.represent = lambda *_: torch.from_numpy(
        np.stack([rows(*(representation[label] for label in labels)) for labels in batch.labels])
    )
    context = learner.context(received, cohort)
    return learner.loss(cohort.parameters, batch, context)["contrast"]


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_the_loss_by_hand(weight: float) -> None:
    """Representations are e₁ of class 0 and e₂ of class 1, as their prototypes are: log(1 + e⁻²)
    for each at τ = ½. Class 2, which no client has, is not contrasted with."""
    changes = {"classification.batch-size": 3, "fedpcl.temperature": 0.5}
    learner = image_learner("fedpcl", **changes, **{"fedpcl.contrast-weight": weight})
    received = guidance({0: [1.0], 1: [0.0, 7.0]})
    loss = contrast(learner, received, [[1.0], [0.0, 1.0]])
    aligned = weight * math.log(1 + math.exp(-2))
    torch.testing.assert_close(loss, torch.tensor([aligned, aligned]))


def test_a_class_without_a_prototype_adds_nothing() -> None:
    learner = image_learner("fedpcl", **{"classification.batch-size": 3})
    loss = contrast(learner, guidance({0: [1.0], 2: [0.0, 1.0]}), [[1.0], [0.0, 1.0]])
    matching_loss = math.log(1 + math.exp(-1 / 0.07))
    torch.testing.assert_close(loss, torch.tensor([2 * matching_loss / 3, 0.0]))


def test_a_client_with_one_class_contrasts_with_nothing() -> None:
    """Of "multiple": the first client has class 1 alone, so it adds 0; the second adds log 2, as
    both its prototypes are alike, and the mean is half of that."""
    learner = image_learner("fedpcl", **MULTIPLE, **{"classification.batch-size": 3})
    received = guidance_of_clients({1: [0.0, 1.0]}, {0: [1.0, 1.0], 1: [1.0, 1.0]})
    loss = contrast(learner, received, [[1.0], [0.0, 1.0]])
    of_a = (2 * math.log(2) + math.log(2) / 2) / 3
    torch.testing.assert_close(loss, torch.tensor([of_a, math.log(2) / 2]))


def test_the_first_round_is_fedavgs() -> None:
    models = []
    for method in ("fedavg", "fedpcl"):
        learner = image_learner(method)
        cohort = image_cohort(learner)
        losses = train_cohort(learner, cohort, learner.context(guidance({}), cohort))
        models.append(cohort.parameters)
    assert losses["contrast"].tolist() == [0, 0]
    assert all(torch.equal(models[1][name], value) for name, value in models[0].items())
    assert shared_model(learner).keys() == models[1].keys()


def test_the_clients_send_the_means_of_their_classes() -> None:
    learner = image_learner("fedpcl")
    cohort = image_cohort(learner)
    contribution = learner.contribution(cohort, learner.context(guidance({}), cohort), 1)
    assert contribution.present is not None
    assert contribution.present.tolist() == [[True, True, False], [False, True, False]]
    features, _, _ = learner.task.train_vectors(cohort.parameters, cohort.samples)
    expected = features[0, :2].mean(dim=0)  # a's images of class 0
    torch.testing.assert_close(torch.from_numpy(contribution.arrays[PROTOTYPES][0, 0]), expected)


@pytest.mark.parametrize(
    "received",
    [guidance({1: [1.0]}), guidance_of_clients({1: [1.0]}, {1: [0.0, 1.0]})],
    ids=["single", "multiple"],
)
def test_clients_answer_by_the_most_similar_prototype_or_by_the_head(received: Guidance) -> None:
    """All images are said to be of class 1; a is tested on classes 0 and 1, b on class 1."""
    learner = image_learner("fedpcl", **{"fedpcl.inference": "prototypes"})
    metrics = learner.evaluate(image_cohort(learner), received)
    assert metrics[Metric("accuracy")] == [0.5, 1.0]
    by_head = image_learner("fedpcl")
    expected = by_head.evaluate(image_cohort(by_head), received)[Metric("accuracy")]
    assert metrics[Metric("accuracy", rule="head")] == expected
    before = learner.evaluate(image_cohort(learner), guidance({}))  # any prototype came
    assert before[Metric("accuracy")] == expected


def test_clients_are_judged_with_a_head_of_their_own() -> None:
    learner = image_learner("fedpcl")
    cohort = image_cohort(learner)
    personalised: Any = learner.personalised(cohort, guidance({}))
    for name, value in cohort.parameters.items():
        assert torch.equal(personalised[name], value) == name.startswith(learner.task.encoder), name
    plain = image_learner("fedpcl", **{"fedpcl.fine-tune-epochs": 0})
    assert plain.personalised(cohort, guidance({})) is None
    assert learner.personalises()
    assert not plain.personalises()


# --- the server half ------------------------------------------------------------------------------


def server(**changes: Any) -> FedPclClassesStrategy:
    small = {"task": "classification", "method": "fedpcl", "keep": "last"}
    settings = settings_from({**small, "model.representation-dim": WIDTH, **changes})
    federation = Federation(settings, "run", "token")
    federation.members.expect([], SHAPE)
    return FedPclClassesStrategy(settings, settings.method_settings, federation)


def received_of(strategy: FedPclClassesStrategy, **clients: dict[int, list[float]]) -> Received:
    """What these clients sent in a round, the last of them first."""
    received = strategy.received
    received.take(
        [
            ClientReply(
                ClientKey(name, "n"), 3, {PROTOTYPES: rows(*prototypes.values())}, tuple(prototypes)
            )
            for name, prototypes in sorted(clients.items(), reverse=True)
        ]
    )
    return received


def test_everyone_gets_the_mean_of_each_class_over_the_clients_that_have_it() -> None:
    strategy = server()
    assert strategy.guide(strategy.received, [], ROUND).arrays == {}
    received = received_of(strategy, a={0: [1.0], 2: [4.0]}, b={2: [0.0, 2.0]})
    strategy.update(received, ROUND)
    received = received_of(strategy, c={0: [5.0]})  # nobody has class 2 now: its last mean stays
    strategy.update(received, ROUND)
    guidance = strategy.guide(received, [], ROUND)
    assert guidance.classes == [0, 2]
    np.testing.assert_array_equal(guidance.arrays[PROTOTYPES], rows([5.0], [2.0, 1.0]))


def test_or_those_of_every_client_of_the_round_in_the_order_of_names() -> None:
    strategy = server(**MULTIPLE)
    received = received_of(strategy, a={0: [1.0], 2: [4.0]}, b={2: [0.0, 2.0]})
    strategy.update(received, ROUND)
    guidance = strategy.guide(received, [], ROUND)
    expected = [rows([1.0], [], [4.0]), rows([], [], [0.0, 2.0])]
    np.testing.assert_array_equal(guidance.arrays[GLOBAL_PROTOTYPES], expected)

    resumed = server(**MULTIPLE)
    resumed.restore(strategy.state())
    restored = resumed.guide(resumed.received, [], ROUND).arrays[GLOBAL_PROTOTYPES]
    np.testing.assert_array_equal(restored, expected)


@pytest.mark.parametrize("inference", ["head", "prototypes"])
def test_prototypes_come_to_an_evaluation_that_needs_them(inference: str) -> None:
    strategy = server(**{"fedpcl.inference": inference})
    strategy.update(received_of(strategy, a={0: [1.0]}), ROUND)
    sent_guidance = strategy.guide_evaluation(strategy.received, [], ROUND)
    assert (PROTOTYPES in sent_guidance.arrays) == (inference == "prototypes")


def test_what_the_declaration_says() -> None:
    sizes = Sizes(width=WIDTH, classes=3)
    learner = image_learner("fedpcl")
    assert learner.sends(FedPclSettings(), sizes)[1] == class_prototypes(sizes, "samples")
    assert unmaskable(learner.releases) == ""
    multiple = image_learner("fedpcl", **MULTIPLE)
    assert unmaskable(multiple.releases) == "looks at each client's prototypes"


def test_a_site_must_allow_that_others_see_its_prototypes(tmp_path: Path) -> None:
    settings = settings_from({**small_run("classification"), "method": "fedpcl", **MULTIPLE})
    file = tmp_path / "site.toml"
    text = 'tells-classes = true\n[data]\nsource = "digits"\n'
    file.write_text(text)
    with pytest.raises(SettingsError, match="shows every client the class prototypes of every"):
        require_allowed(settings, read_site({"site": str(file)}, deployed=True))
    file.write_text("shares-classes = true\n" + text)
    require_allowed(settings, read_site({"site": str(file)}, deployed=True))


@pytest.mark.parametrize("task", ["classification", "sequence-classification"])
@pytest.mark.parametrize(
    ("unchanged", "changes"),
    [
        (True, {"aggregation.secure": True, "aggregation.secure-minimum": 2}),
        (False, NOISED),
        (False, {**NOISED, **MULTIPLE}),
        (False, {"aggregation.rule": "median"}),
    ],
    ids=["masked", "noised", "noised, multiple", "median"],
)
def test_masks_noise_and_robust_rules_come_by_the_declaration(
    tmp_path: Path, task: str, unchanged: bool, changes: dict[str, Any]
) -> None:
    runs = SmallRuns(task, "fedpcl", tmp_path)
    plain, changed = (
        read_rounds(runs.run(label, 2, **more))[-1]["loss"]
        for label, more in (("plain", {}), ("changed", changes))
    )
    assert set(plain) == set(changed) == {"prediction", "contrast", "total"}
    if unchanged:
        assert changed["total"] == pytest.approx(plain["total"], rel=1e-3)
    else:
        assert np.isfinite(changed["total"])
        assert changed["total"] != plain["total"]


def test_a_robust_rule_goes_with_the_mean_alone() -> None:
    small = {**small_run("classification"), "method": "fedpcl"}
    assert settings_from({**small, "aggregation.rule": "median"}).aggregation.rule == "median"
