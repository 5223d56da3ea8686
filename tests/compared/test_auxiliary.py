"""Which images a server that learns may have, and why it has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.messages import NodeRoster
from fedproto_app.data.images.partition import partition_pool
from fedproto_app.data.images.sources import load_pool
from fedproto_app.data.shape import DataShape
from fedproto_app.server.federation import Federation
from fedproto_app.settings import Settings, settings_from
from fedproto_app.settings.paths import OUTPUT_ROOT
from fedproto_compared.fedic.auxiliary import AUXILIARY, UNLABELLED, server_images

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
    """The operator's classes are sorted; the federation's come in another order."""
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
