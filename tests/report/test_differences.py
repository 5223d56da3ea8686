"""The picture of clients' differences."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from fedproto_app.report.differences import draw_differences
from matplotlib.axes import Axes

from fedproto_app.errors import FedProtoError
from fedproto_app.report.pairs import pairs
from fedproto_app.report.runs import group_runs, read_run
from tests.report.made_runs import make_run

ALONE = {"method": "solo", "parameters_up": 0, "parameters_down": 0}


def test_a_line_has_the_sorted_differences_of_errors_averaged_over_seeds(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", [0.25, 0.5, 0.75], seed=0),
        make_run(tmp_path / "b", [0.75, 0.5, 0.25], seed=1),  # means 0.5, 0.5, 0.5
        make_run(tmp_path / "c", [0.75, 0.25, 0.5], **ALONE),
    ]
    (pair,) = pairs(group_runs(map(read_run, runs))[0])
    assert pair.by_client == (-0.25, 0.25, 0.0)
    drawn = []

    def plot(self: Axes, x: object, y: object, **looks: object) -> None:
        drawn.append((x, y, looks["label"]))

    with patch.object(Axes, "plot", plot), patch.object(Axes, "legend"):
        draw_differences([pair], tmp_path / "new" / "out.png")
    ((x, y, label),) = drawn
    assert (list(x), list(y)) == ([1, 2, 3], [-0.25, 0.0, 0.25])
    assert label == "fuels: 1 of 3 gain"


def test_outliers_and_strange_names(tmp_path: Path) -> None:
    errors = np.array([0.1, 0.2, 0.3, 1000.0])
    runs = [
        make_run(tmp_path / "a", errors.tolist(), dataset="$x_{"),
        make_run(tmp_path / "b", (errors / 2).tolist(), dataset="$x_{", **ALONE),
    ]
    draw_differences(pairs(group_runs(map(read_run, runs))[0]), tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_no_pairs(tmp_path: Path) -> None:
    with pytest.raises(FedProtoError, match="no two runs"):
        draw_differences([], tmp_path / "out.png")
