"""Runs behind a page of results: those made with other settings than their row has are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import classification_results, fuels_results, sequence_results
from benchmarks.result_page import Experiment, Page, finished
from tests.benchmarks.made_rows import make_row

SEQUENCES = sequence_results.PAGE.experiments["pendigits-clusters"]
IMAGES = classification_results.PAGE.experiments["digits"]


PAGES = [sequence_results.PAGE, classification_results.PAGE, fuels_results.PAGE]


@pytest.mark.parametrize("page", PAGES)
def test_every_row_is_accepted_as_it_would_be_made_now(tmp_path: Path, page: Page) -> None:
    for name, experiment in page.experiments.items():
        for row in experiment.rows:
            if not (tmp_path / experiment.rows[row].run_name(0)).exists():  # some share a run
                make_row(tmp_path, experiment, row)
        assert list(finished(experiment, tmp_path)) == list(experiment.rows), name


@pytest.mark.parametrize(
    ("experiment", "row", "changes", "said"),
    [
        (SEQUENCES, "a1", {"fed-react.affect-iterations": 9}, "affect-iterations = 9, which is 5"),
        (SEQUENCES, "a1", {"encoder.batch-size": 11}, "encoder.batch-size = 11, which is 10"),
        (SEQUENCES, "a1", {"method": "ifca"}, "method = 'ifca', which is 'fed-react'"),
        (SEQUENCES, "a1", {"encoder.path": ""}, "encoder.path = "),
        (SEQUENCES, "a1", {"fed-react.smoothing": None}, "smoothing = 'kalman', which is 'mean'"),
        (IMAGES, "gldp", {"gldp.memory": 0.25}, "gldp.memory = 0.25, which is 0.5"),
        (IMAGES, "fedavg", {"encoder.path": "a run"}, "encoder.path = "),
    ],
)
def test_a_run_of_other_settings_is_refused_even_where_the_row_leaves_the_default(
    tmp_path: Path, experiment: Experiment, row: str, changes: dict[str, Any], said: str
) -> None:
    make_row(tmp_path, experiment, row, **changes)
    with pytest.raises(SystemExit, match=said):
        finished(experiment, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 3, "device": "cuda", "threads": 2, "cohort-size": 1, "data.path": "/elsewhere"},
        {"output.dir": "/elsewhere", "nodes.minimum": 7},
        {"encoder.negatives": None, "flsc.overlap": None},  # younger than the run
        {"gone.since": 1},
        {"encoder.path": "/elsewhere/pendigits-clusters/encoder-svm-s0"},
    ],
)
def test_what_no_figure_depends_on_may_be_otherwise(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    make_row(tmp_path, SEQUENCES, "a1", **changes)
    assert list(finished(SEQUENCES, tmp_path)) == ["a1"]
