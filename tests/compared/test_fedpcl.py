"""FedPCL: the terms of its loss, the head of a client, and the prototypes that the server sends.

Prototypes as in FedProto are tested in test_prototypes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

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
from fedproto_app.tasks.table import small_run
from fedproto_compared.fedpcl import (
    GLOBAL_PROTOTYPES,
    PROTOTYPES,
    FedPclSettings,
    class_contrast,
    class_likeness,
    prototype_contrast,
)
from tests.helpers.tiny_cohort import PERIOD, WIDTH, tiny_batches, tiny_cohort, tiny_learner, train
from tests.helpers.tiny_images import CLASSES, image_cohort, image_learner
from tests.helpers.tiny_images import WIDTH as IMAGE_WIDTH
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
    assert learner.personalises
    assert not plain.personalises


def test_the_server_sends_the_mean_or_all_in_the_order_of_names_and_refuses_the_longest() -> None:
    """With an evaluation it sends nothing: clients fit their heads by their targets."""
    a, b, huge = np.float32([[1, 2], [3, 4]]), np.float32([[3, 2], [1, 0]]), np.full((2, 2), 1e37)
    for prototypes, expected in (("single", [(a + b) / 2]), ("multiple", [a, b])):
        small = {"data.period": 2, "model.representation-dim": 2, "fedpcl.prototypes": prototypes}
        strategy = server_of("fedpcl", **small)
        arrays = {"b": b, "a": a, "c": huge}
        clients = {name: {PROTOTYPES: array} for name, array in arrays.items()}
        round_ = accept(strategy, replies(**clients))
        reason = "its prototype is not used: its length is 2e+37, more than"
        assert refusals(round_)["c"].startswith(reason)
        for server in (strategy, restored(strategy)):
            sent_prototypes = guidance(server).arrays[GLOBAL_PROTOTYPES]
            np.testing.assert_array_equal(sent_prototypes, expected)
            assert server.guide_evaluation([], Round(2)) == Guidance()


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
        np.stack([rows(*(representation[label] for label in labels)) for labels in batch.targets])
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


def test_clients_answer_by_the_most_similar_of_all_clients_prototypes() -> None:
    """All images are said to be of class 1, while a is tested on classes 0 and 1, b on class 1."""
    learner = image_learner("fedpcl", **{"fedpcl.inference": "prototypes"})
    received = guidance_of_clients({1: [1.0]}, {1: [0.0, 1.0]})
    metrics = learner.evaluate(image_cohort(learner), received)
    assert metrics[Metric("accuracy")] == [0.5, 1.0]


def test_a_class_that_nobody_has_now_keeps_its_last_mean() -> None:
    strategy = class_server("fedpcl", {})
    accept(strategy, class_replies(CLASS_PROTOTYPES, {"a": {0: [1, 0], 2: [4, 0]}}))
    accept(strategy, class_replies(CLASS_PROTOTYPES, {"c": {0: [5, 0]}}))
    advice = guidance(strategy)
    assert advice.classes == [0, 2]
    np.testing.assert_array_equal(advice.arrays[CLASS_PROTOTYPES], [[5, 0], [4, 0]])


def test_or_everyone_gets_those_of_every_client_of_the_round_in_the_order_of_names() -> None:
    strategy = class_server("fedpcl", {}, **MULTIPLE)
    prototypes = {"b": {2: [0, 2]}, "a": {0: [1, 0], 2: [4, 0]}}
    accept(strategy, class_replies(CLASS_PROTOTYPES, prototypes))
    expected = [[[1, 0], [0, 0], [4, 0]], [[0, 0], [0, 0], [0, 2]]]
    for server in (strategy, restored(strategy)):
        np.testing.assert_array_equal(guidance(server).arrays[GLOBAL_PROTOTYPES], expected)


@pytest.mark.parametrize("inference", ["head", "prototypes"])
def test_prototypes_come_to_an_evaluation_that_needs_them(inference: str) -> None:
    strategy = class_server("fedpcl", **{"fedpcl.inference": inference})
    accept(strategy, class_replies(CLASS_PROTOTYPES, {"a": {0: [1, 0]}}))
    advice = strategy.guide_evaluation([], Round(1))
    assert (CLASS_PROTOTYPES in advice.arrays) == (inference == "prototypes")


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


# --- the contrast ---------------------------------------------------------------------------------


# Two rows at right angles: cos is the identity matrix.
EYE = torch.eye(2).unsqueeze(0)


def test_prototype_contrast_by_hand() -> None:
    """Two phases at right angles, τ = 1: −log(e / (e + 1)), with the rows swapped 1 more."""
    swapped = EYE.flip(1)
    aligned, crossed = math.log(1 + math.e) - 1, math.log(1 + math.e)
    assert prototype_contrast(EYE, EYE, 1.0).item() == pytest.approx(aligned)  # 0.31326
    assert prototype_contrast(EYE, swapped, 1.0).item() == pytest.approx(crossed)  # 1.31326
    two_sets = prototype_contrast(EYE, torch.cat([5 * EYE, swapped]), 1.0)  # only directions count
    assert two_sets.item() == pytest.approx((aligned + crossed) / 2)


def test_prototype_contrast_is_cross_entropy_of_cosines() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    prototypes = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    expected = torch.zeros(3, dtype=torch.float64)
    for client in range(3):
        for prototype in prototypes:
            cosines = functional.cosine_similarity(rows[client][:, None], prototype[None], dim=2)
            expected[client] += functional.cross_entropy(cosines / 0.07, torch.arange(4)) / 2
    torch.testing.assert_close(prototype_contrast(rows, prototypes, 0.07), expected)
    zero_loss = prototype_contrast(torch.zeros(1, 4, 5), torch.zeros(1, 4, 5), 1e-3)
    assert zero_loss.item() == pytest.approx(math.log(4))


def test_class_contrast_by_hand() -> None:
    """Samples e₁, e₂ and e₁ of classes 0, 1 and 2. The prototypes of classes 0 and 1 are e₁ and e₂.
    For client 0 both exist, so its samples of classes 0 and 1 have log(1 + e⁻¹) each. Client 1
    has a single class and no other to contrast with, log 1 = 0. No set has class 2: 0."""
    representation = torch.stack([torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])] * 2)
    labels, present = torch.tensor([[0, 1, 2], [0, 1, 2]]), torch.tensor([[1.0] * 3, [1.0, 0, 0]])
    first = torch.tensor([[1.0, 0.0], [0.0, 5.0], [0.0, 0.0]])
    second = torch.tensor([[4.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    aligned = math.log(1 + math.exp(-1))  # 0.31326
    first_two, only_first = torch.tensor([True, True, False]), torch.tensor([True, False, False])

    single = class_contrast(representation, labels, present, first[None], first_two[None], 1.0)
    torch.testing.assert_close(single, torch.tensor([2 * aligned / 3, aligned]))
    # Both sets have class 0, and their mean counts. Only the first has class 1.
    sets, has_prototype = torch.stack([first, second]), torch.stack([first_two, only_first])
    multiple = class_contrast(representation, labels, present, sets, has_prototype, 1.0)
    torch.testing.assert_close(multiple, torch.tensor([1.5 * aligned / 3, aligned / 2]))


def test_class_contrast_of_phases_is_the_contrast_of_series() -> None:
    rng = torch.Generator().manual_seed(0)
    rows, sets = torch.randn(3, 4, 5, generator=rng), torch.randn(2, 4, 5, generator=rng)
    labels = torch.arange(4).expand(3, 4)
    actual = class_contrast(rows, labels, torch.ones(3, 4), sets, torch.ones(2, 4).bool(), 0.07)
    torch.testing.assert_close(actual, prototype_contrast(rows, sets, 0.07))


def test_class_contrast_has_finite_gradients_where_a_class_is_unknown() -> None:
    rows = torch.ones(1, 2, 3, requires_grad=True)
    has_prototype = torch.tensor([[True, False], [False, True]])
    loss = class_contrast(
        rows, torch.zeros(1, 2).long(), torch.ones(1, 2), torch.ones(2, 2, 3), has_prototype, 1e-3
    )
    (slope,) = torch.autograd.grad(loss.sum(), rows)
    assert loss.tolist() == [0]
    assert slope.isfinite().all()


def test_the_most_similar_prototype_of_a_class_counts() -> None:
    sets = torch.tensor(
        [[[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]], [[9.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]
    )
    has_prototype = torch.tensor([[True, True, False], [True, False, False]])
    actual = class_likeness(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), sets, has_prototype)
    torch.testing.assert_close(
        actual, torch.tensor([[[1.0, 0.0, -math.inf], [0.8, 1.0, -math.inf]]])
    )
