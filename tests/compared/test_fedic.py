"""FEDIC's server: whose models it believes, what it learns of them, what it remembers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import FederationError, FedProtoError
from fedproto_app.core.messages import Arrays, NodeRoster
from fedproto_app.core.round import Round, SentModel
from fedproto_app.data.images.partition import partition_pool
from fedproto_app.data.images.sources import load_pool
from fedproto_app.data.shape import DataShape
from fedproto_app.server.federation import Federation
from fedproto_app.settings import Settings, settings_from
from fedproto_app.settings.paths import OUTPUT_ROOT
from fedproto_app.tasks.table import load_shard
from fedproto_compared.fedic.auxiliary import AUXILIARY, UNLABELLED, server_images
from fedproto_compared.fedic.strategy import (
    GATE,
    GATE_BIAS,
    LARGEST_LOGIT,
    SCALE,
    SCORE,
    SCORE_BIAS,
    SHIFT,
    FedicStrategy,
    Judgement,
    distillation,
    model_weights,
    neutral,
    teacher,
)
from tests.helpers.local_grid import small_settings
from tests.strategies.server_half import NAMES, NODE, one_node

NO_STEPS = {f"fedic.{key}-steps": 0 for key in ("tuning", "calibration", "student")}


def server(**changes: Any) -> FedicStrategy:
    settings = small_settings(Path("none"), "classification", method="fedic", **changes)
    counts = dict.fromkeys(NAMES, ((1,) * 10,))
    federation = one_node(settings, load_shard(settings, 0, 1).shape, counts)
    strategy = FedicStrategy(settings, federation)
    strategy.model = strategy.initial_arrays()
    return strategy


def model(strategy: FedicStrategy, seed: int, size: float = 1.0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        name: (size * (value + 0.1 * rng.normal(size=value.shape))).astype(np.float32)
        for name, value in strategy.initial_arrays().items()
    }


def three(strategy: FedicStrategy) -> list[SentModel]:
    """The models of a, b and c, with 1, 2 and 3 samples."""
    return [
        SentModel(ClientKey(name, NODE), row + 1, 1, model(strategy, row))
        for row, name in enumerate(NAMES)
    ]


def next_model(strategy: FedicStrategy, models: list[SentModel]) -> tuple[Arrays, Round]:
    """Return the next global model, and the round with what was refused."""
    round_ = Round(1)
    mean = strategy.average(models, round_)
    assert mean is not None
    return strategy.renewed(mean, round_), round_


def equal_arrays(first: Arrays, second: Arrays) -> bool:
    return all(np.array_equal(value, second[name]) for name, value in first.items())


def assert_b_is_refused(liar: Arrays, reason: str) -> None:
    """b's model is not used, and the others' count as without it."""
    strategy = server()
    a, b, c = three(strategy)
    with_liar, round_ = next_model(strategy, [a, b._replace(arrays=liar), c])
    assert list(round_.refused) == [b.key]
    assert reason in round_.refused[b.key]
    assert equal_arrays(with_liar, next_model(server(), [a, c])[0])


def test_without_steps_it_is_fedavg_over_clients() -> None:
    strategy = server(**NO_STEPS)
    models = three(strategy)
    averaged, _ = next_model(strategy, models)
    for name, value in averaged.items():
        mean = sum(reply.samples * reply.arrays[name].astype(np.float64) for reply in models) / 6
        np.testing.assert_allclose(value, mean, rtol=1e-5, atol=1e-7)


def test_the_student_is_better_than_the_mean_on_the_servers_images() -> None:
    steps = {f"fedic.{key}-steps": 60 for key in ("tuning", "calibration", "student")}
    strategy = server(**steps, **{"fedic.adam-rate": 1e-2})
    _, round_ = next_model(strategy, three(strategy))
    figures = {key.removeprefix("auxiliary_accuracy_"): v for key, v in round_.figures.items()}
    assert list(figures) == ["mean", "fine_tuned", "teacher", "student"]
    for better in ("fine_tuned", "teacher", "student"):
        assert figures[better] > figures["mean"] + 0.2  # type: ignore[operator]


def test_features_beyond_measure_behind_a_head_of_zeros_do_not_reach_the_gate() -> None:
    """Its logits are 0 and its parameters small enough. Adam would never forget such features."""
    liar = model(server(), 1)
    for name, value in liar.items():
        if "head" in name:
            value[:] = 0
        elif "blocks.2.norm" in name:
            value[:] = 300
    assert_b_is_refused(liar, "the server's images get features of size")


def test_a_model_with_logits_beyond_measure_is_refused_and_the_others_count() -> None:
    liar = model(server(), 1, size=90.0)
    assert_b_is_refused(liar, "its model is not used: the server's images get logits of")


def test_more_models_than_fit_are_refused_before_anybody_trains() -> None:
    strategy = server(
        **{"model.width": 64, "model.representation-dim": 512, "aggregation.most-megabytes": 1}
    )
    with pytest.raises(FederationError, match=r"most-megabytes = 1: .* 3 clients, \d+ values each"):
        strategy.chosen(strategy.federation.members.clients(), Round(1))


def test_what_would_own_every_mean_is_bounded() -> None:
    logits = torch.tensor([[[2.0, float("nan")], [-math.inf, 3e38]]])
    bounded = Judgement(logits, -logits).bounded()
    expected = torch.tensor([[[2.0, 0.0], [-LARGEST_LOGIT, LARGEST_LOGIT]]])
    assert torch.equal(bounded.logits, expected)
    assert torch.equal(bounded.features, -expected)


# --- the maths ------------------------------------------------------------------------------------


LOGITS = torch.tensor([[[2.0, 0.0]], [[0.0, 0.0]]])  # [K, n, C] = [2, 1, 2]
FEATURES = torch.tensor([[[1.0, 3.0, 0.0]], [[3.0, 1.0, 0.0]]])
FINE_TUNED = torch.tensor([[0.0, 1.0]])


def net(**changes: list[float]) -> dict[str, torch.Tensor]:
    """a = (1, 1), a₀ = 0, g = 1, h = 0, v = 0, v₀ = 0."""
    letters = {SCORE: "a", SCORE_BIAS: "a0", SCALE: "g", SHIFT: "h", GATE: "v", GATE_BIAS: "v0"}
    values = {"a": [1.0, 1.0], **changes}
    calibration = neutral(2, 3)
    for name, letter in letters.items():
        if letter in values:
            calibration[name] = torch.tensor(values[letter]).reshape(calibration[name].shape)
    return calibration


def test_models_weigh_by_their_scores() -> None:
    """s = (σ(2), σ(0)) = (0.8808, 0.5)."""
    weights = model_weights(net(), LOGITS)[:, 0]
    assert weights.tolist() == pytest.approx([0.6379, 0.3621], abs=1e-4)
    assert model_weights(neutral(2, 3), LOGITS)[:, 0].tolist() == [0.5, 0.5]


def test_scores_too_small_for_their_sum_still_weigh() -> None:
    """σ(−2000) is 0 in any float, and the other model's score is e² times as small."""
    weights = model_weights(net(a=[-1.0, 0.0], a0=[-2000.0]), LOGITS)[:, 0]
    assert weights.tolist() == pytest.approx([0.1192, 0.8808], abs=1e-4)


def test_the_teacher_by_hand() -> None:
    """z̄ = (1.2758, 0) and γ = ½."""
    actual = teacher(net(), LOGITS, FEATURES, FINE_TUNED)
    assert actual[0].tolist() == pytest.approx([0.6379, 0.5], abs=1e-4)


def test_the_teacher_scales_shifts_and_gates() -> None:
    """ẑ = (2·1.2758 + 1, −3). The mean feature is (2, 2, 0), so γ = σ(2·½ − 2·1 + 0.5) = 0.3775."""
    changes = {"g": [2.0, 5.0], "h": [1.0, -3.0], "v": [0.5, -1.0, 9.0], "v0": [0.5]}
    actual = teacher(net(**changes), LOGITS, FEATURES, FINE_TUNED)
    share = 0.37754
    expected = [share * 3.5516, -3 * share + (1 - share)]
    assert actual[0].tolist() == pytest.approx(expected, abs=1e-3)


def test_the_student_learns_from_the_teacher_and_not_the_reverse() -> None:
    torch.manual_seed(0)
    target = torch.randn(5, 4, requires_grad=True)
    student = torch.randn(5, 4, requires_grad=True)
    loss = distillation(target, student, 2.0)
    expected = functional.kl_div(
        (student / 2).log_softmax(dim=1), (target / 2).softmax(dim=1), reduction="batchmean"
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()  # type: ignore[no-untyped-call]
    assert target.grad is None
    assert student.grad is not None
    assert distillation(target, target, 2.0).item() == pytest.approx(0, abs=1e-6)


# --- the server's images --------------------------------------------------------------------------


DIGITS = DataShape((1, 8, 8), tuple(map(str, range(10))))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (AUXILIARY, UNLABELLED, OUTPUT_ROOT):
        monkeypatch.delenv(key, raising=False)


def federation_of(
    shape: DataShape = DIGITS, dealt: bool = True, **changes: Any
) -> tuple[Settings, Federation]:
    settings = settings_from(
        {
            "task": "classification",
            "method": "fedic",
            "keep": "last",
            "data.source": "digits",
            "data.partition.reserve-per-class": 3,
            "data.partition.samples": 20,
            **changes,
        }
    )
    federation = Federation(settings, "run", "token")
    federation.members.expect([], shape)
    counts = {"a": ((1,) * len(shape.classes),)} if dealt else {}
    roster = NodeRoster("m", 0, {"a": 9}, {"a": ""}, {"a": 0.0}, {}, class_counts=counts)
    federation.members.roster.admit(0, roster)
    return settings, federation


def write_npz(file: Path, classes: str, size: int = 8) -> str:
    """Two images of each class, whose pixels are the class's number."""
    y = np.array(list(classes) * 2)
    x = np.stack([np.full((size, size), ord(label) % 10, np.uint8) for label in y])
    np.savez(file, allow_pickle=False, x_train=x, y_train=y, x_test=x, y_test=y)
    return str(file)


def test_where_data_are_dealt_it_has_those_that_no_client_gets() -> None:
    settings, federation = federation_of()
    images = server_images(settings, federation)
    assert np.bincount(images.labelled.labels).tolist() == [3] * 10
    assert images.unlabelled is images.labelled.pixels
    pool = load_pool(settings.data)
    stages = [
        s for client in partition_pool(pool, settings.data, settings.seed) for s in client.stages
    ]
    places = np.unique(np.concatenate([part for s in stages for part in (s.train, s.validation)]))
    dealt = {picture.tobytes() for picture in pool.train.load(places).pixels}
    assert not dealt & {picture.tobytes() for picture in images.labelled.pixels}


def test_named_images_get_the_federations_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's classes are sorted, and the federation's come in another order."""
    monkeypatch.setenv(AUXILIARY, write_npz(tmp_path / "own.npz", "123"))
    monkeypatch.setenv(UNLABELLED, write_npz(tmp_path / "more.npz", "79"))
    shape = DataShape((1, 8, 8), ("3", "1", "2"))
    images = server_images(*federation_of(shape, dealt=False))
    assert images.labelled.labels.tolist() == [1, 2, 0, 1, 2, 0]
    assert images.labelled.pixels[:, 0, 0, 0].tolist() == [9, 0, 1, 9, 0, 1]
    assert images.unlabelled[:, 0, 0, 0].tolist() == [5, 7, 5, 7]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.partition.reserve-per-class": 0}, "reserve-per-class = 0 leaves it no images"),
        ({"data.source": "image-npz", "data.path": "/none.npz"}, "/none.npz"),
        ({"shape": DataShape((1, 8, 8), ("3", "1"))}, "holds other classes or sizes"),
        ({"dealt": False}, "the nodes' data are their own, so FEDPROTO_AUXILIARY must name"),
    ],
)
def test_without_images_it_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FedProtoError, match=message):
        server_images(*federation_of(**changes))


def test_a_server_that_runs_for_others_reads_no_source_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUT_ROOT, str(tmp_path))
    with pytest.raises(FedProtoError, match="FEDPROTO_AUXILIARY must name"):
        server_images(*federation_of())


@pytest.mark.parametrize(
    ("classes", "size", "message"),
    [
        ("123", 9, r"images are \(1, 9, 9\), the nodes' \(1, 8, 8\)"),
        ("12", 8, "no train image of class '3'"),
        ("1234", 8, "class '4' is none of the federation's"),
        ("", 8, "FEDPROTO_AUXILIARY = .*nothing.npz"),
    ],
)
def test_named_images_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: str, size: int, message: str
) -> None:
    file = tmp_path / "own.npz"
    where = write_npz(file, classes, size) if classes else str(tmp_path / "nothing.npz")
    monkeypatch.setenv(AUXILIARY, where)
    with pytest.raises(FedProtoError, match=message):
        server_images(*federation_of(DataShape((1, 8, 8), ("1", "2", "3"))))
