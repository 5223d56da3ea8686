"""FedPCL: the terms of its loss, the head of a client, and the prototypes that the server sends.

What it has in common with FedProto is in test_prototypes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import Round
from fedproto_app.core.sends import Sizes, unmaskable
from fedproto_app.node.orders import require_allowed
from fedproto_app.node.site import read_site
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import AnyLearner
from fedproto_app.strategies.common.prototypes import PROTOTYPES as CLASS_PROTOTYPES
from fedproto_app.strategies.common.prototypes import class_prototypes
from fedproto_app.strategies.fedpcl import (
    GLOBAL_PROTOTYPES,
    PROTOTYPES,
    FedPclSettings,
    prototype_contrast,
)
from fedproto_app.tasks.table import small_run
from tests.strategies.server_half import (
    accept,
    class_replies,
    class_server,
    guidance,
    refusals,
    replies,
    restored,
    server_of,
)
from tests.strategies.tiny_cohort import (
    PERIOD,
    WIDTH,
    tiny_batches,
    tiny_cohort,
    tiny_learner,
    train,
)
from tests.strategies.tiny_images import CLASSES, image_cohort, image_learner
from tests.strategies.tiny_images import WIDTH as IMAGE_WIDTH

MULTIPLE = {"fedpcl.prototypes": "multiple"}

# --- series --------------------------------------------------------------------------------------

GLOBAL = np.random.default_rng(0).normal(size=(2, PERIOD, WIDTH)).astype(np.float32)
FIRST = Guidance()
LATER = Guidance({GLOBAL_PROTOTYPES: GLOBAL})


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


@pytest.mark.parametrize(("received", "moves"), [(FIRST, False), (LATER, True)])
def test_without_supervision_the_contrast_alone_moves_the_encoder(
    received: Guidance, moves: bool
) -> None:
    learner = tiny_learner("fedpcl", **{"fedpcl.supervised": False})
    losses, _, cohort = train(learner, received)
    assert set(losses) == {"contrast", "total"}
    for name, start in learner.initial_parameters().items():
        changed = not torch.equal(cohort.parameters[name][0], start)
        assert changed == (moves and name.startswith(learner.task.encoder)), name


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


def test_the_server_sends_the_mean_or_all_in_the_order_of_names_and_refuses_the_longest() -> None:
    """With an evaluation it sends nothing: clients fit their heads by their targets."""
    a, b, huge = np.float32([[1, 2], [3, 4]]), np.float32([[3, 2], [1, 0]]), np.full((2, 2), 1e37)
    for prototypes, expected in (("single", [(a + b) / 2]), ("multiple", [a, b])):
        small = {"data.period": 2, "model.representation-dim": 2, "fedpcl.prototypes": prototypes}
        strategy = server_of("fedpcl", **small)
        sent = {"b": b, "a": a, "c": huge}
        round_ = accept(strategy, replies(**{n: {PROTOTYPES: value} for n, value in sent.items()}))
        reason = "its prototype is not used: its length is 2e+37, more than"
        assert refusals(round_)["c"].startswith(reason)
        for server in (strategy, restored(strategy)):
            sent_prototypes = guidance(server).arrays[GLOBAL_PROTOTYPES]
            np.testing.assert_array_equal(sent_prototypes, expected)
            assert server.guide_evaluation(server.received, [], Round(2)) == Guidance()


# --- classes --------------------------------------------------------------------------------------


def guidance_with(prototypes: dict[int, list[float]]) -> Guidance:
    """With a global prototype for some classes."""
    arrays = {CLASS_PROTOTYPES: rows(*prototypes.values())} if prototypes else {}
    return Guidance(arrays, classes=list(prototypes))


def guidance_of_clients(*clients: dict[int, list[float]]) -> Guidance:
    """With these prototypes of each of some clients."""
    arrays = np.zeros((len(clients), len(CLASSES), IMAGE_WIDTH), np.float32)
    for number, prototypes in enumerate(clients):
        for label, values in prototypes.items():
            arrays[number, label, : len(values)] = values
    return Guidance({GLOBAL_PROTOTYPES: arrays})


def rows(*values: list[float]) -> Any:
    """[n, IMAGE_WIDTH], zeros after the values."""
    return np.array([row + [0.0] * (IMAGE_WIDTH - len(row)) for row in values], np.float32)


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
    received = guidance_with({0: [1.0], 1: [0.0, 7.0]})
    loss = contrast(learner, received, [[1.0], [0.0, 1.0]])
    aligned = weight * math.log(1 + math.exp(-2))
    torch.testing.assert_close(loss, torch.tensor([aligned, aligned]))


def test_a_class_without_a_prototype_adds_nothing() -> None:
    learner = image_learner("fedpcl", **{"classification.batch-size": 3})
    loss = contrast(learner, guidance_with({0: [1.0], 2: [0.0, 1.0]}), [[1.0], [0.0, 1.0]])
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


def test_clients_are_judged_with_a_head_of_their_own() -> None:
    learner = image_learner("fedpcl")
    cohort = image_cohort(learner)
    personalised: Any = learner.personalised(cohort, guidance_with({}))
    for name, value in cohort.parameters.items():
        assert torch.equal(personalised[name], value) == name.startswith(learner.task.encoder), name
    plain = image_learner("fedpcl", **{"fedpcl.fine-tune-epochs": 0})
    assert plain.personalised(cohort, guidance_with({})) is None
    assert learner.personalises
    assert not plain.personalises


def test_clients_answer_by_the_most_similar_of_all_clients_prototypes() -> None:
    """All images are said to be of class 1; a is tested on classes 0 and 1, b on class 1."""
    learner = image_learner("fedpcl", **{"fedpcl.inference": "prototypes"})
    received = guidance_of_clients({1: [1.0]}, {1: [0.0, 1.0]})
    metrics = learner.evaluate(image_cohort(learner), received)
    assert metrics[Metric("accuracy")] == [0.5, 1.0]


def test_a_class_that_nobody_has_now_keeps_its_last_mean() -> None:
    strategy = class_server("fedpcl", {})
    accept(strategy, class_replies(CLASS_PROTOTYPES, {"a": {0: [1, 0], 2: [4, 0]}}))
    accept(strategy, class_replies(CLASS_PROTOTYPES, {"c": {0: [5, 0]}}))
    sent = guidance(strategy)
    assert sent.classes == [0, 2]
    np.testing.assert_array_equal(sent.arrays[CLASS_PROTOTYPES], [[5, 0], [4, 0]])


def test_or_everyone_gets_those_of_every_client_of_the_round_in_the_order_of_names() -> None:
    strategy = class_server("fedpcl", {}, **MULTIPLE)
    sent = {"b": {2: [0, 2]}, "a": {0: [1, 0], 2: [4, 0]}}
    accept(strategy, class_replies(CLASS_PROTOTYPES, sent))
    expected = [[[1, 0], [0, 0], [4, 0]], [[0, 0], [0, 0], [0, 2]]]
    for server in (strategy, restored(strategy)):
        np.testing.assert_array_equal(guidance(server).arrays[GLOBAL_PROTOTYPES], expected)


@pytest.mark.parametrize("inference", ["head", "prototypes"])
def test_prototypes_come_to_an_evaluation_that_needs_them(inference: str) -> None:
    strategy = class_server("fedpcl", **{"fedpcl.inference": inference})
    accept(strategy, class_replies(CLASS_PROTOTYPES, {"a": {0: [1, 0]}}))
    sent = strategy.guide_evaluation(strategy.received, [], Round(1))
    assert (CLASS_PROTOTYPES in sent.arrays) == (inference == "prototypes")


def test_what_the_declaration_says() -> None:
    sizes = Sizes(width=IMAGE_WIDTH, classes=3)
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
