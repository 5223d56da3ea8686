from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from fedproto_app.tasks.partition_picture import draw_partition_picture


def test_areas_are_images_and_places_are_clients_classes_and_stages() -> None:
    figure = draw_partition_picture(
        {"a": np.array([[40, 0], [0, 10]]), "b": np.array([[0, 40]])}, ["cat", "dog"]
    )
    top, main = figure.axes
    first, second = main.collections
    assert first.get_offsets()[:, 1].tolist() == [0, 1]
    assert np.round(first.get_offsets()[:, 0]).tolist() == [0, 1]
    assert second.get_offsets()[:, 1].tolist() == [0]
    assert first.get_offsets()[1, 0] < second.get_offsets()[0, 0] < 1.5  # in the same column
    large, small = first.get_sizes()[0], second.get_sizes()[0]
    assert large / small == pytest.approx(4)
    assert [bar.get_height() for bar in top.patches] == [40, 50]
    assert [label.get_text() for label in main.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in main.get_xticklabels()] == ["cat", "dog"]


def test_the_legend_names_stages_and_round_numbers() -> None:
    figure = draw_partition_picture({"a": np.array([[184], [3]])}, ["cat"])
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["stage 1", "stage 2", "1 image", "10 images", "40 images", "100 images"]


@pytest.mark.parametrize(("clients", "stages", "classes"), [(1, 1, 1), (400, 9, 3), (30, 2, 120)])
def test_pictures_of_all_sizes(clients: int, stages: int, classes: int) -> None:
    counts = np.random.default_rng(0).integers(0, 3, (clients, stages, classes))
    figure = draw_partition_picture(
        {f"client-{i}": table for i, table in enumerate(counts)},
        [f"class {i}" for i in range(classes)],
    )
    file = BytesIO()
    figure.savefig(file, dpi=40)
    assert file.getvalue().startswith(b"\x89PNG")
    assert max(figure.get_size_inches()) < 20
    of = "300 of 400" if clients == 400 else f"{clients}"
    assert figure.get_suptitle() == f"train images of {of} clients"


def test_a_client_without_images_is_an_empty_row() -> None:
    figure = draw_partition_picture({"a": np.zeros((1, 2), dtype=np.int64)}, ["x", "y"])
    assert len(figure.axes[1].collections[0].get_offsets()) == 0
