"""Classes drawn for rows, for properties of how images are dealt."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fedproto_app.data.images.partition import draw_classes


@st.composite
def drawn_classes(draw: st.DrawFn, largest: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Return which classes each row has, [R, C], and the images of each class, [C].

    most: images of a class beside one for every row.
    """
    rows, classes = draw(st.integers(2, 9)), draw(st.integers(1, 3))
    counts = np.array(draw(st.lists(st.integers(0, largest), min_size=3, max_size=6))) + rows
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return draw_classes(counts, rows, classes, rng), counts
