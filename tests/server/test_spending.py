"""ε in every round and summary, a limit that stops the run, and nothing counted twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.clients import ClientKey
from fedproto_app.experiments.invariants import (
    SmallRuns,
    kills_change_nothing,
    one_node_equals_eight,
)
from fedproto_app.report.charts import draw
from fedproto_app.report.page.document import report_of
from fedproto_app.report.runs import read_clients, read_rounds, read_run
from fedproto_app.report.table import run_table
from fedproto_app.report.task_report import report_for
from fedproto_app.server.listeners import Spending
from fedproto_app.settings import PrivacyPlan, PrivacySettings
from fedproto_app.trust.privacy_loss import epsilon_of
from tests.helpers.local_grid import run_locally, run_small, small_settings, synthetic_nodes

SIGMA, DELTA = 5.0, 1e-5
NOISED: Mapping[str, Any] = {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": SIGMA}


def epsilon(releases: int) -> float:
    return epsilon_of(releases / SIGMA**2, DELTA)


def between(releases: int, more: int) -> float:
    """A limit of ε that so many releases keep to, and so many more do not."""
    return (epsilon(releases) + epsilon(more)) / 2


def spending(limit: float = 0.0) -> Spending:
    settings = PrivacySettings(mechanism="gaussian", noise_multiplier=SIGMA, max_epsilon=limit)
    return Spending(PrivacyPlan(settings, SIGMA, 2, ((1, 1),)))


A, B = ClientKey("a", "n"), ClientKey("b", "n")


def test_each_client_is_counted_by_itself_and_the_most_is_told() -> None:
    """One release in the encoder's round, two in each of the others. A trains in 1 and 3."""
    ledger = spending()
    ledger.count([A, B], 1)
    ledger.count([B], 2)
    ledger.count([A], 3)
    assert ledger.memory() == {"spent": [["a", "n", 3], ["b", "n", 3]]}
    assert (ledger.report()["releases"], ledger.report()["epsilon"]) == (3, epsilon(3))
    later = spending()
    later.recall(ledger.memory())
    assert later.report() == ledger.report()


def test_a_limit_is_never_exceeded_and_the_last_round_is_known_before_it() -> None:
    ledger = spending(between(3, 4))  # three releases
    assert [ledger.stops(1), ledger.ends_with(1)] == ["", False]
    ledger.count([A], 1)
    assert [ledger.stops(2), ledger.ends_with(2)] == ["", True]
    ledger.count([A], 2)
    assert [ledger.stops(3), ledger.ends_with(2)] == ["privacy", True]


def test_evaluations_with_noise_count_and_never_exceed_the_limit() -> None:
    """A release for training and one for an evaluation. Three rounds of both fit, not a fourth."""
    settings = PrivacySettings(
        mechanism="gaussian", noise_multiplier=SIGMA, max_epsilon=between(6, 7), metrics="noised"
    )
    ledger = Spending(PrivacyPlan(settings, SIGMA, 1, evaluation=1))
    ends = []
    for number in (1, 2, 3):
        assert ledger.stops(number) == ""
        ledger.count([A], number)
        ends.append(ledger.ends_with(number))  # decides whether the round is evaluated
        ledger.count_evaluation([A])
    assert ends == [False, False, True]
    assert (ledger.stops(4), ledger.report()["releases"]) == ("privacy", 6)
    assert ledger.report()["metrics"] == "noised"


def test_without_a_plan_nothing_is_counted() -> None:
    ledger = Spending(None)
    ledger.count([A], 1)
    assert (ledger.memory(), ledger.stops(9)) == ({"spent": []}, "")
    assert ledger.report() == {"mechanism": "none"}


NOISED_RUN = {"method": "fedavg", **NOISED}
EXACT = {"privacy.metrics": "exact"}


def test_a_run_stops_at_its_limit_and_goes_on_with_a_higher_one(tmp_path: Path) -> None:
    changes = {**NOISED_RUN, **EXACT, "rounds": 5, "evaluate-every": 4}
    folder, _ = run_small(tmp_path, **changes, **{"privacy.max-epsilon": between(2, 3)})
    summary, lines = read_run(folder.path).summary, read_rounds(folder.path)
    assert (summary["stopped"], summary["rounds"]) == ("privacy", 2)
    assert [line["privacy"]["epsilon"] for line in lines] == [epsilon(1), epsilon(2)]
    privacy = summary["privacy"]
    assert (privacy["epsilon"], privacy["delta"], privacy["unit"]) == (epsilon(2), DELTA, "client")
    assert privacy["neighbours"] == "remove"
    assert lines[-1]["validation_mse"] is not None  # of its last round, however rare
    [*_, row, _] = run_table(read_run(folder.path)).columns[1].cells
    assert row == f"ε = {epsilon(2):.3g}, δ = 1e-05 (remove a client)"

    more = {"privacy.max-epsilon": between(4, 5), "output.resume": True}
    folder, _ = run_small(tmp_path, **changes, **more)
    summary = read_run(folder.path).summary
    assert (summary["stopped"], summary["rounds"]) == ("privacy", 4)
    assert read_rounds(folder.path)[-1]["privacy"]["releases"] == 4


def test_a_run_with_noised_errors_has_their_means_and_counts_them(tmp_path: Path) -> None:
    """Personal models are evaluated as they train, shared models afterwards, in rounds 2 and 3."""
    for method in ("fuels", "fedavg"):
        noised = {"privacy.metrics": "noised", "patience": 9, "output.name": method}
        changes = {**NOISED, **noised, "method": method, "rounds": 3, "evaluate-every": 2}
        folder, _ = run_small(tmp_path / method, **changes)
        lines, summary = read_rounds(folder.path), read_run(folder.path).summary
        assert [line["refused"] for line in lines] == [[]] * 3
        assert [line["validation_mse"] is None for line in lines] == [True, False, False]
        assert summary["mse"] is not None
        assert (summary["mse_median"], summary["rmse_units"]) == (None, None)
        assert summary["privacy"]["releases"] == 5
        assert accounts(tmp_path / method / "state") == [5] * 8
        clients = read_clients(folder.path)
        assert all(np.isnan(clients[name]).all() for name in ("samples", "mse", "kept_round"))


@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("forecasting", "fedavg"),
        ("classification", "gldp"),
        ("sequence-classification", "fed-react"),
    ],
)
def test_a_run_without_errors_has_a_report(tmp_path: Path, task: str, method: str) -> None:
    folder, _ = run_small(tmp_path, task, **{**NOISED_RUN, "method": method})
    lines, summary = read_rounds(folder.path), read_run(folder.path).summary
    metrics = report_for(task).metrics
    for line in lines:
        assert (line["loss"], line["clients"], line["refused"]) == ({}, 8, [])
        assert line[metrics.validation.round.name] is None
    assert (summary["clients"], summary[metrics.kept.summary[0].name]) == (8, None)
    draw(folder.path)
    report_of(folder.path)
    page = (folder.path / "report.html").read_text()
    assert "The clients&#39; errors stayed at their nodes" in page


def accounts(state: Path) -> list[int]:
    return [
        json.loads(account.read_text())["releases"]
        for account in state.glob("privacy/spent/*.json")
    ]


def site_with(tmp_path: Path, privacy: str, node: dict[str, Any]) -> dict[str, Any]:
    """The node with a site's file that demands this."""
    file = tmp_path / "site.toml"
    file.write_text(f"[privacy]\n{privacy}\n")
    return {**node, "site": str(file)}


def test_a_site_counts_over_runs_and_stops_a_server_that_begins_anew(tmp_path: Path) -> None:
    """It allows three releases: two runs of two rounds are one too many."""
    [node] = synthetic_nodes(1, tmp_path / "state")
    site = site_with(tmp_path, f"max-epsilon = {between(3, 4)}", node)
    refused = []
    for name in ("first", "second"):
        changes = {**NOISED_RUN, "output.name": name, "rounds": 2}
        settings = small_settings(tmp_path, **changes, **{"nodes.maximum-failed-share": 1.0})
        folder, _ = run_locally(settings, [site])
        lines = read_rounds(folder.path)
        refused.append([len(line["refused"]) for line in lines])
    assert refused == [[0, 0], [0, 8]]
    reasons = [refusal["reason"] for refusal in lines[1]["refused"]]
    assert any("this site's privacy.max-epsilon" in reason for reason in reasons)
    assert accounts(tmp_path / "state") == [3] * 8


def test_a_site_that_demands_noise_takes_no_part_without_it(tmp_path: Path) -> None:
    [bold, careful] = synthetic_nodes(2, tmp_path / "state")
    plain = small_settings(tmp_path, method="fedavg", rounds=1)
    folder, _ = run_locally(plain, [bold, site_with(tmp_path, "min-noise = 1.0", careful)])
    [refusal] = read_rounds(folder.path)[0]["refused"]
    assert "this site's file demands noise" in refusal["reason"]


def test_two_deployed_runs_have_other_noise_and_a_simulation_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clients(name: str) -> str:
        changes = {**NOISED, **EXACT, "rounds": 2, "output.name": name}
        return (run_small(tmp_path / name, nodes=1, **changes)[0].path / "clients.csv").read_text()

    assert clients("site") != clients("another-site")
    monkeypatch.setattr("fedproto_app.node.process.in_simulation", lambda: True)
    assert clients("simulated") == clients("again")
    assert not (tmp_path / "again" / "state" / "privacy").exists()


def test_a_simulation_with_noise_resumes_bit_for_bit_on_any_number_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedproto_app.node.process.in_simulation", lambda: True)
    runs = SmallRuns("forecasting", "fuels", tmp_path, **NOISED, **EXACT)
    assert (deviation := kills_change_nothing(runs)).held, deviation
    assert (deviation := one_node_equals_eight(runs)).held, deviation


def test_a_server_that_is_killed_and_resumed_gets_no_second_draw(tmp_path: Path) -> None:
    """The sites' accounts: what was released before the kill and after it was the same."""
    runs = SmallRuns("forecasting", "fuels", tmp_path, **NOISED)
    folder = runs.run("killed", 2, deaths=(6, 3), rounds=4)
    releases = read_rounds(folder)[-1]["privacy"]["releases"]
    assert releases == 4
    assert accounts(runs.state("killed")) == [4] * 8


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("forecasting", {"method": "analytic", "analytic.sharing": "federated"}),
        ("classification", {"method": "gldp"}),
        ("classification", {"method": "fedpcl", "fedpcl.prototypes": "multiple"}),
        pytest.param("forecasting", {"aggregation.rule": "median"}, marks=pytest.mark.exhaustive),
        pytest.param("classification", {"method": "analytic"}, marks=pytest.mark.exhaustive),
        ("sequence-classification", {"method": "fed-react"}),
    ],
)
def test_whatever_is_released_a_server_can_use_it(
    tmp_path: Path, task: str, changes: dict[str, Any]
) -> None:
    """Nothing is refused, not the sums that no samples have. Every client's error is a number."""
    folder, _ = run_small(tmp_path, task, **{**NOISED_RUN, **EXACT, **changes})
    lines = read_rounds(folder.path)
    assert [line["refused"] for line in lines] == [[]] * len(lines)
    releases = len(lines) * (2 if changes.get("method") in ("gldp", "fedpcl") else 1)
    assert read_run(folder.path).summary["privacy"]["releases"] == releases
    assert accounts(tmp_path / "state") == [releases] * 8
    assert "nan" not in (folder.path / "clients.csv").read_text()
