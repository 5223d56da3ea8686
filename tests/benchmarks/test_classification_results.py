"""The tables of images: GLDP by every inference, and the paper's personal models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.classification_results import ablation_table, methods_table, one_stage_table
from fedproto_app.report.runs import Group, Run


def group(method: str, inference: str = "local-prototypes", **figures: Any) -> Group:
    summary = {"method": method, "seed": 0, **figures}
    return Group((Run(Path("."), summary, {"method": method, "gldp.inference": inference}),))


GLDP = {
    "accuracy_global": 0.5,
    "accuracy_local": 0.25,
    "by_inference.local-prototypes.global": 0.5,
    "by_inference.local-prototypes.local": 0.25,
    "by_inference.global-prototypes.global": 0.625,
    "by_inference.global-prototypes.local": 0.375,
    "by_inference.head.global": 0.75,
    "by_inference.head.local": 0.125,
    "balanced_local": 0.1,
}
FEDAVG = {"accuracy_global": 0.5, "accuracy_local": 0.25, "balanced_local": 0.2}


def cells(lines: Any, row: str, *columns: str) -> list[str]:
    (line,) = [line for line in lines[1:] if line[0] == row]
    return [line[lines[0].index(column)] for column in columns]


def test_the_papers_personal_model_is_gldps_shared_encoder_and_others_trained_model() -> None:
    lines = methods_table({"gldp": group("gldp", **GLDP), "fedavg": group("fedavg", **FEDAVG)})
    columns = ("A_glo", "A_loc", "A_loc, as the paper", "balanced A_loc")
    assert cells(lines, "gldp, local prototypes", *columns) == ["50.0", "25.0", "50.0", "10.0"]
    assert cells(lines, "gldp, head", *columns) == ["75.0", "12.5", "75.0", "-"]
    assert cells(lines, "fedavg", *columns) == ["50.0", "25.0", "25.0", "20.0"]


def test_an_inference_with_a_separate_row_is_shown_once_and_in_full() -> None:
    groups = {"gldp": group("gldp", **GLDP), "gldp-head": group("gldp", "head", **GLDP)}
    lines = methods_table(groups, {"local-prototypes": (65.36, 65.36)})
    titles = [line[0] for line in lines[1:]]
    assert titles == ["gldp, local prototypes", "gldp, global prototypes", "gldp, head"]
    assert cells(lines, "gldp, head", "balanced A_loc", "paper's A_glo") == ["10.0", "-"]
    assert cells(lines, "gldp, local prototypes", "paper's A_loc") == ["65.4"]


def test_own_and_all_classes_share_a_row() -> None:
    groups = {
        "fedavg": group("fedavg", **FEDAVG),
        "fedavg-everybody": group("fedavg", **{**FEDAVG, "accuracy_local": 0.125}),
        "gldp": group("gldp", **GLDP),
    }
    lines = one_stage_table(groups, {"fedavg": (None, 43.1)})
    columns = ("A_loc, own classes", "A_loc, everybody's", "paper's A_loc")
    assert cells(lines, "fedavg", *columns) == ["25.0", "12.5", "43.1"]
    assert cells(lines, "gldp, head", *columns) == ["12.5", "-", "-"]  # not run on everybody's
    assert {len(line) for line in lines} == {len(lines[0])}


def test_an_ablation_tells_of_every_inference() -> None:
    lines = ablation_table(
        {"gldp": group("gldp", **GLDP)}, {"gldp": "gldp"}, {"gldp": (65.2, 64.6)}
    )
    columns = ("A_glo, head", "A_loc, head", "A_glo, global prototypes", "paper's A_sel")
    assert cells(lines, "gldp", *columns) == ["75.0", "12.5", "62.5", "64.6"]
    assert len(lines[1]) == len(lines[0])
