"""What FedProto, FedPCL, FedTGP and GLDP have in common: prototypes, their means, their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.messages import Guidance, Reply
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.strategies.common.learner import train_cohort
from fedproto_app.strategies.common.prototypes import (
    PROTOTYPES,
    ConcatenatedPrototype,
    PeriodPrototype,
)
from fedproto_compared.fedpcl import GLOBAL_PROTOTYPES
from fedproto_compared.fedpcl import PROTOTYPES as FEDPCL_PROTOTYPES
from tests.helpers.tiny_cohort import PERIOD, WIDTH, tiny_batches, tiny_learner
from tests.helpers.tiny_cohort import train as train_series
from tests.helpers.tiny_images import class_guidance, image_cohort, image_learner
from tests.strategies.server_half import (
    Rows,
    accept,
    assert_same_state,
    class_replies,
    class_server,
    guidance,
    refusals,
    replies,
    restored,
    server_of,
)

MULTIPLE = {"fedpcl.prototypes": "multiple"}
SENT_ARRAY = {"fedproto": PROTOTYPES, "fedpcl": FEDPCL_PROTOTYPES}  # what clients with series send


def rows(*values: float) -> torch.Tensor:
    """One batch of B = 2 rows, D = 1, per client: value and value + 0.5."""
    return torch.tensor([[[v], [v + 0.5]] for v in values])


def test_periodicity_aware_is_the_mean_over_each_clients_own_batches() -> None:
    prototype = PeriodPrototype(2)
    prototype.add(rows(1, 10), torch.tensor([0, 0]))
    prototype.add(rows(3), torch.tensor([1]))  # the second client has no more batches
    assert prototype.value().tolist() == [[[2.0], [2.5]], [[10.0], [10.5]]]
    prototype.clear()
    prototype.add(rows(7, 8), torch.tensor([0, 0]))
    assert prototype.value().tolist() == [[[7.0], [7.5]], [[8.0], [8.5]]]


def test_concatenated_holds_the_newest_batches_oldest_first() -> None:
    prototype = ConcatenatedPrototype(2, batches=2)
    prototype.add(rows(1, 10), torch.tensor([0, 1]))  # in shuffled order
    prototype.add(rows(2, 20), torch.tensor([2, 0]))  # the first client's oldest is left out
    prototype.add(rows(3), torch.tensor([1]))
    assert prototype.value()[..., 0].tolist() == [[3.0, 3.5, 1.0, 1.5], [10.0, 10.5, 20.0, 20.5]]


# --- the client's half ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", SENT_ARRAY)
def test_a_client_sends_the_mean_representation_over_its_batches(method: str) -> None:
    # At so small a learning rate the parameters stay what they are.
    learner = tiny_learner(method, **{"optimizer.learning-rate": 1e-12})
    received = np.arange(PERIOD * WIDTH, dtype=np.float32).reshape(PERIOD, WIDTH)
    arrays = {"prototype": received, GLOBAL_PROTOTYPES: received[None]}
    _, sent_arrays, cohort = train_series(learner, Guidance(arrays))
    assert set(sent_arrays) == {SENT_ARRAY[method]}
    prototypes = sent_arrays[SENT_ARRAY[method]]
    assert (prototypes.shape, prototypes.dtype) == ((2, PERIOD, WIDTH), np.float32)
    batches = tiny_batches(learner, cohort)
    expected = [learner.task.represent(cohort.parameters, batch) for batch in batches]
    np.testing.assert_allclose(prototypes, torch.stack(expected).mean(dim=0), rtol=1e-5, atol=1e-6)
    assert not np.allclose(prototypes[0], prototypes[1])


@pytest.mark.parametrize("method", ["fedproto", "fedpcl", "fedtgp", "gldp"])
def test_a_client_sends_the_mean_representation_of_each_class_that_it_has(method: str) -> None:
    """By the encoder as training left it, of images without augmentation."""
    learner = image_learner(method)
    cohort = image_cohort(learner)
    context = learner.context(class_guidance({0: 1.0, 1: 0.0}), cohort)
    train_cohort(learner, cohort, context)
    contribution = learner.contribution(cohort, context)
    assert contribution.present.tolist() == [[True, True, False], [False, True, False]]
    vectors = learner.task.encode_all(cohort.parameters, cohort.samples.values)
    for row, label in ((0, 0), (0, 1), (1, 1)):
        mean = vectors[row, :3][cohort.samples.targets[row, :3] == label].mean(dim=0)
        prototype = torch.from_numpy(contribution.arrays[PROTOTYPES][row, label])
        torch.testing.assert_close(prototype, mean)


@pytest.mark.parametrize("method", ["fedproto", "fedtgp"])
def test_the_pull_to_the_prototypes_of_classes_by_hand(method: str) -> None:
    """An encoder of zeros represents everything by 0: of client a's images 0, 0, 1 the mean of
    3², 3² and 0 for class 1, which has no prototype. b has only images of class 1."""
    changes = {"classification.batch-size": 3, f"{method}.prototype-weight": 10.0}
    learner = image_learner(method, **changes)
    cohort = image_cohort(learner)
    for name, value in cohort.parameters.items():
        if name.startswith(learner.task.encoder):
            value.zero_()
    generators = [torch.Generator().manual_seed(0) for _ in cohort.names]
    (batch,) = learner.batches(cohort.samples, generators)
    context = learner.context(class_guidance({0: 3.0}), cohort)
    terms = learner.loss(cohort.parameters, batch, context)
    torch.testing.assert_close(terms["prototypes"], torch.tensor([10 * 6.0, 0.0]))


@pytest.mark.parametrize("method", ["fedproto", "fedpcl"])
@pytest.mark.parametrize(("label", "share"), [(1, [0.5, 1.0]), (0, [0.5, 0.0])])
def test_clients_answer_by_the_nearest_prototype_or_by_the_head(
    method: str, label: int, share: list[float]
) -> None:
    """All images are said to be of this class. a is tested on classes 0 and 1, b on class 1."""
    learner = image_learner(method, **{f"{method}.inference": "prototypes"})
    received = class_guidance({label: 1.0})
    metrics = learner.evaluate(image_cohort(learner), received)
    assert metrics[Metric("accuracy")] == share
    by_head = image_learner(method, **{f"{method}.inference": "head"})
    expected = by_head.evaluate(image_cohort(by_head), received)[Metric("accuracy")]
    assert metrics[Metric("accuracy", rule="head")] == expected
    before = learner.evaluate(image_cohort(learner), class_guidance({}))  # any prototype came
    assert before[Metric("accuracy")] == expected


# --- the server's half, for series ---------------------------------------------------------------

A: Rows = [[1.0, 2.0], [3.0, 4.0]]
B: Rows = [[3.0, 2.0], [1.0, 0.0]]
C: Rows = [[0.0, 0.0], [9.0, 9.0]]


def series_server(method: str, **changes: Any) -> Any:
    return server_of(method, **{"data.period": 2, "model.representation-dim": 2, **changes})


def prototypes_of(method: str, /, **clients: Any) -> list[ClientReply]:
    return replies(**{client: {SENT_ARRAY[method]: value} for client, value in clients.items()})


def sent_prototype(strategy: Any) -> Any:
    """What every client gets, also without having sent anything (None: nothing)."""
    guidance_sent = guidance(strategy, "late")
    assert not guidance_sent.clients
    values = list(guidance_sent.arrays.values())
    return np.squeeze(values[0], 0) if values and values[0].ndim == 3 else (values or [None])[0]


@pytest.mark.parametrize("method", SENT_ARRAY)
def test_everyone_gets_the_mean_of_the_latest_prototypes(method: str) -> None:
    strategy = series_server(method)
    assert sent_prototype(strategy) is None
    assert strategy.state() == {}
    accept(strategy, prototypes_of(method, a=C, b=C, c=C))
    accept(strategy, prototypes_of(method, b=B, a=A))  # a round without c: its prototype stays
    state = strategy.state()
    stored = dict(zip(state["names"], state[SENT_ARRAY[method]].tolist(), strict=True))
    assert stored == {"a": A, "b": B, "c": C}
    accept(strategy)
    for server in (strategy, restored(strategy)):
        np.testing.assert_allclose(sent_prototype(server), np.mean([A, B, C], axis=0), rtol=1e-6)
        assert sent_prototype(server).dtype == np.float32


# --- the server's half, for classes --------------------------------------------------------------


def classes_of(**clients: dict[int, list[float]]) -> list[ClientReply]:
    return class_replies(PROTOTYPES, clients)


def sent_rows(strategy: Any) -> dict[int, list[float]]:
    """The global prototypes that go down, by class."""
    guidance_sent = guidance(strategy, "a")
    rows = guidance_sent.arrays.get(PROTOTYPES, np.empty(0)).tolist()
    return dict(zip(guidance_sent.classes, rows, strict=True))


@pytest.mark.parametrize(
    ("method", "values"), [("fedproto", 2), ("fedpcl", 2), ("fedtgp", 2), ("gldp", 2), ("creff", 3)]
)
def test_a_client_sends_a_row_for_each_class_that_it_has(method: str, values: int) -> None:
    """Representations have two values. CReFF sends a gradient, a row of three for each class."""
    strategy = class_server(method)
    model = sum(value.size for value in strategy.initial_arrays().values())
    rows = 3 * (3 * values if method == "creff" else values)
    reply = Reply(["a", "b"], [9, 9], classes=[[0, 2], [1]])
    assert strategy.expected(Round(1)).values(reply) == 2 * model + rows
    assert (model == 0) == (method in ("fedproto", "fedtgp"))


@pytest.mark.parametrize("method", ["fedproto", "fedpcl", "gldp"])
def test_a_prototype_is_the_mean_of_the_clients_that_have_the_class(method: str) -> None:
    strategy = class_server(method, {})
    assert sent_rows(strategy) == {}
    accept(strategy, classes_of(a={0: [1, 2], 2: [5, 5]}, b={0: [3, 6]}, c={0: [5, 1]}))
    accept(strategy)
    for server in (strategy, restored(strategy)):
        assert sent_rows(server) == {0: [3, 3], 2: [5, 5]}


@pytest.mark.parametrize(
    ("method", "changes"), [("fedproto", {}), ("fedpcl", MULTIPLE), ("fedtgp", {}), ("gldp", {})]
)
def test_the_order_of_replies_does_not_matter_nor_a_round_without_any(
    method: str, changes: dict[str, Any]
) -> None:
    of_clients = classes_of(a={0: [0.1, 1e-8], 1: [1, 1]}, b={0: [0.2, 1e4]}, c={0: [0.3, -1e4]})
    strategies = []
    for ordered in (of_clients, of_clients[::-1]):
        strategies.append(class_server(method, **changes))
        accept(strategies[-1], ordered)
    first, second = (guidance(strategy, "a") for strategy in strategies)
    assert first.classes == second.classes
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, second.arrays[name])
    if method != "fedpcl":
        accept(strategies[0])
        assert_same_state(*strategies)


@pytest.mark.parametrize("method", ["fedtgp", "gldp"])
def test_a_restored_server_goes_on_as_the_first(method: str) -> None:
    first = class_server(method)
    accept(first, classes_of(a={0: [1, 2], 1: [-1, 1]}, b={0: [2, 2]}))
    second = restored(first)
    for strategy in (first, second):
        accept(strategy, classes_of(a={0: [5, 1]}, b={0: [1, 1]}))
    assert_same_state(first, second)


@pytest.mark.parametrize("method", ["fedproto", "fedpcl", "fedtgp", "gldp"])
@pytest.mark.parametrize(
    ("lie", "reason"),
    [({1: [1.0, 1.0]}, "'bee': the client declared no image"), ({0: [1e30, 1.0]}, "is 1e+30, bey")],
    ids=["undeclared", "huge"],
)
def test_a_prototype_that_cannot_be_true_is_refused_and_the_others_count(
    method: str, lie: dict[int, list[float]], reason: str
) -> None:
    honest: Any = {"a": {0: [1, 2], 1: [-1, 1]}, "c": {0: [1, 1]}}
    strategy, expected = class_server(method), class_server(method)
    refused = refusals(accept(strategy, classes_of(**honest, b=lie)))
    assert set(refused) == {"b"}
    assert refused["b"].startswith("its prototypes are not used: ")
    assert reason in refused["b"]
    accept(expected, classes_of(**honest))
    assert_same_state(strategy, expected)
