"""The errors in the tables of sequences, and the table by β and labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.rand_curves import rand_curve
from benchmarks.sequence_results import PAGE, by_beta_and_labels, standard_error
from fedproto_app.report.runs import Group, Run


def group_of(folder: Path, *seeds: tuple[float, ...], **summary: float) -> Group:
    """Return a group with a run for each seed, with these accuracies of its clients."""
    runs = []
    for seed, accuracies in enumerate(seeds):
        run_folder = folder / str(seed)
        run_folder.mkdir(parents=True)
        lines = [f"c{place},{accuracy}" for place, accuracy in enumerate(accuracies)]
        (run_folder / "clients.csv").write_text("\n".join(["client,accuracy", *lines]) + "\n")
        runs.append(Run(run_folder, summary, {}))
    return Group(tuple(runs))


def test_the_standard_error_pools_clients_and_seeds(tmp_path: Path) -> None:
    """0, 1, 1 and 0 around ½: sample variance 4·¼/3, over four clients 1/12."""
    two = group_of(tmp_path / "two", (0, 1), (1, 0))
    assert standard_error(two, "accuracy") == pytest.approx((1 / 12) ** 0.5)
    assert standard_error(group_of(tmp_path / "one", (0.7,)), "accuracy") == 0


def test_a_line_for_every_beta_and_number_of_labels(tmp_path: Path) -> None:
    groups = {
        name: group_of(tmp_path / name, (0, 1), accuracy_rounds=accuracy, rand_index_rounds=0.5)
        for name, accuracy in (("0.5/8 in all/sc", 0.25), ("0.5/8 a round/a1", 0.75))
    }
    head, *lines = by_beta_and_labels(groups)
    table = [dict(zip(head, line, strict=True)) for line in lines]
    assert [(line["β"], line["labels"]) for line in table] == [
        ("0.5", "8 in all"),
        ("0.5", "8 a round"),
    ]
    assert [line["SC"] for line in table] == ["25.0", "-"]
    assert [line["A1"] for line in table] == ["-", "75.0"]
    assert [line["Rand index, SC"] for line in table] == ["0.50", "-"]
    assert {line["standard error"] for line in table} == {"50.0"}


def test_all_rows_of_labels_fit_the_table() -> None:
    rows = PAGE.experiments["labels"].rows
    assert {len(name.split("/")) for name in rows} == {3}
    assert all(row.changes["encoder.rounds"] == 0 for row in rows.values())


def test_a_curve_is_the_mean_over_seeds_of_the_rounds_that_all_have(tmp_path: Path) -> None:
    group = group_of(tmp_path, (0,), (1,))
    for run, curve in zip(group.runs, ([0.0, 0.5, 1.0], [1.0, 0.75]), strict=True):
        np.savez(run.folder / "clusters.npz", rand_index=curve)
    assert rand_curve(group).tolist() == [0.5, 0.625]
