from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.format import sources_of
from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages, Positions
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.tasks.table import admission, record_of_source
from tests.data.sequences.made_sequences import pool_of as made_pool

MODULE = __name__  # this module serves as a user's own: "package.module:factory"
IMAGES = {"task": "classification", "method": "gldp", "keep": "last"}


def two_series(settings: DataSettings) -> Iterator[ClientSeries]:
    yield ClientSeries("long", np.arange(600.0) % 7)
    yield ClientSeries("short", np.arange(60.0))


def undecodable(settings: DataSettings) -> ImagePool:
    """Return images of three clients, one without test images. Loading pixels is an error."""

    def load(positions: Positions) -> LoadedImages:
        raise AssertionError("an image was decoded")

    train = ImageSplit(np.array([0, 1, 0]), ["a", "b", "c"], load, np.array(["ann", "bob", "cid"]))
    test = replace(train, clients=np.array(["ann", "cid", "cid"]))
    return ImagePool(("cat", "dog"), (1, 2, 2), train, test)


def settings(source: str, **more: Any) -> Settings:
    return settings_from({"data.source": source, **more})


def test_a_short_series_is_young_and_not_refused() -> None:
    reasons = admission(settings(f"{MODULE}:two_series")).reasons
    assert reasons == {"long": None, "short": None}


def test_images_are_not_decoded() -> None:
    partition = {"data.partition.scheme": "given", "data.partition.validation-share": 0.0}
    reasons = admission(settings(f"{MODULE}:undecodable", **IMAGES, **partition)).reasons
    assert reasons == {"ann": None, "bob": "no test image", "cid": None}


SERIES = {"task": "forecasting"}
SEQUENCES = {"task": "sequence-classification", "method": "solo"}


@pytest.mark.parametrize(
    ("holds", "task", "kind"),
    [
        ("images", SERIES, "images; set task = 'classification', or data.source to series: "),
        ("series", IMAGES, "series; set task = 'forecasting', or data.source to images: class-"),
        ("series", SEQUENCES, "series; set task = 'forecasting', or data.source to labelled"),
        (
            "labelled sequences",
            SERIES,
            "labelled sequences; set task = 'sequence-classification' or 'sequence-regress",
        ),
    ],
)
def test_a_source_of_another_task_is_refused_before_its_path(
    holds: str, task: dict[str, Any], kind: str
) -> None:
    for source in sources_of(holds):
        with pytest.raises(DataError) as caught:
            admission(settings(source, **task))
        assert str(caught.value).startswith(f"data.source = {source!r} holds {kind}")


def kind_of(source: str) -> str:
    return record_of_source(DataSettings(source=source)).holds


def test_the_kind_of_data_in_a_source() -> None:
    for kind in ("series", "images", "labelled sequences"):
        assert {kind_of(source) for source in sources_of(kind)} == {kind}
    assert kind_of(f"{MODULE}:undecodable") == "images"
    assert kind_of(f"{MODULE}:two_series") == "series"
    assert kind_of(f"{MODULE}:few_sequences") == "labelled sequences"
    with pytest.raises(DataError, match=r"unknown source; did you mean .* known are wide-csv, "):
        kind_of("parquet")


def few_sequences(settings: DataSettings) -> SequencePool:
    return made_pool([0, 1] * 6)
