"""What a server learns of clients beside their arrays: losses, errors and numbers of samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.messages import Guidance, Order, Reply
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.node.merging import merged
from fedproto_app.node.protection import Protection
from fedproto_app.node.shares import shares_of
from fedproto_app.node.store import ClientStore
from fedproto_app.node.trainer import Node
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.tasks.forecasting.metrics import FORECASTING, MSE, VALIDATION_MSE, of_kept
from fedproto_app.tasks.table import load_shard, make_task, small_run
from fedproto_app.trust.noised_errors import NoisedErrors
from fedproto_app.trust.privacy_ledger import PrivacyLedger, SitePrivacy
from fedproto_app.trust.privacy_loss import privacy_plan

GAUSSIAN = {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0}
CLIENTS = 3


def with_noise(metrics: str, **changes: Any) -> Settings:
    small = {"data.synthetic.clients": CLIENTS, "data.synthetic.days": 8, "method": "fedavg"}
    privacy = {**GAUSSIAN, "privacy.metrics": metrics}
    return settings_from({**small_run("forecasting"), **small, **privacy, **changes})


class Site:
    """A deployed node's trainer, with a ledger."""

    def __init__(self, folder: Path, settings: Settings, limits: SitePrivacy) -> None:
        self.shard = load_shard(settings, 0, 1)
        self.learner = make_learner(settings, make_task(settings, self.shard.shape))
        plan = privacy_plan(settings)
        assert plan is not None
        guard = Protection(plan, b"s" * 32, PrivacyLedger(folder / "privacy", limits), self.learner)
        store = ClientStore(folder)
        self.node = Node(settings, self.shard, store, self.learner, protection=guard)

    def order(self, server_round: int, model: Mapping[str, Any], evaluate: bool = False) -> Order:
        names = list(self.shard.clients)
        guidance = Guidance(dict(model))
        return Order("run", "token", server_round, names, evaluate, guidance)

    def evaluated(self, constant: float) -> Any:
        """The reply for a model of the server's choice, which forecasts a constant."""
        model = {
            name: np.zeros(value.shape, np.float32)
            for name, value in self.learner.initial_parameters().items()
        }
        model["decoder.bias"] += constant
        order = self.order(1, model)
        shares = shares_of(order.clients, 1, self.shard, self.learner.task, CLIENTS)
        return merged(self.node.evaluate(order, shares))

    def stolen_means(self) -> Any:
        """The means of the clients' test targets, from the errors of two constant forecasts.

        A third, of 0, would give their mean squares.
        """
        low, high = (np.array(self.evaluated(p).metrics[MSE]) for p in (-1.0, 1.0))
        return (low - high) / 4  # E(y + 1)² − E(y − 1)² = 4·E(y)

    def true_means(self) -> Any:
        clients = (self.shard.clients[name] for name in self.evaluated(0.0).names)
        return np.array([float(client.targets[client.test].mean()) for client in clients])


def site(folder: Path, metrics: str, **limits: Any) -> Site:
    return Site(folder, with_noise(metrics), SitePrivacy(**limits))


def test_exact_errors_give_away_the_mean_of_a_clients_targets(tmp_path: Path) -> None:
    exact = site(tmp_path, "exact")
    assert exact.stolen_means() == pytest.approx(exact.true_means(), abs=1e-5)
    assert np.abs(exact.true_means()).max() > 0.02


def test_without_errors_a_server_learns_nothing_from_models_of_its_choice(tmp_path: Path) -> None:
    replies = [site(tmp_path, "none").evaluated(constant) for constant in (-1.0, 0.0, 1.0)]
    for reply in replies:
        assert (reply.losses, reply.metrics, reply.kept_rounds) == ({}, {}, [])
        assert reply.samples == [1] * CLIENTS
        assert len(reply.names) == CLIENTS


def test_with_noise_a_server_learns_no_more_than_the_ledger_counts(tmp_path: Path) -> None:
    """The estimate's deviation is √2·σ·√M·(B/2)/4 = 0.7 for σ = 1, M = 4 errors and B = 2."""
    noised = site(tmp_path, "noised")
    reply = noised.evaluated(0.0)
    assert set(reply.metrics) == {MSE, VALIDATION_MSE, of_kept(MSE), of_kept(VALIDATION_MSE)}
    assert (reply.losses, reply.kept_rounds) == ({}, [0] * CLIENTS)
    assert noised.evaluated(0.0).metrics == reply.metrics  # repeated: the same noise
    errors = noised.stolen_means() - noised.true_means()
    assert np.abs(errors).max() > 0.3
    accounts = (tmp_path / "privacy" / "spent").glob("*.json")
    assert [account.read_text().count('"releases": 3') for account in accounts] == [1] * CLIENTS


def test_a_spent_budget_leaves_noise_alone(tmp_path: Path) -> None:
    """With σ = 1 one release fits ε = 5. The second has no data, and says why."""
    noised = site(tmp_path, "noised", max_epsilon=5.0)
    assert noised.evaluated(0.0).failed == {}
    reply = noised.evaluated(1.0)
    assert all("this site's privacy.max-epsilon" in reason for reason in reply.failed.values())
    assert len(reply.failed) == len(reply.names) == CLIENTS
    second = site(tmp_path, "noised", max_epsilon=5.0)
    second.shard.clients.update({n: shifted(client) for n, client in second.shard.clients.items()})
    assert second.evaluated(1.0).metrics == reply.metrics


def shifted(client: Any) -> Any:
    return client.__class__(**{**vars(client), "targets": client.targets + 1})


def spec(neighbours: str = "remove", **changes: Any) -> NoisedErrors:
    settings = with_noise("noised", **{"privacy.neighbours": neighbours, **changes})
    plan = privacy_plan(settings)
    assert plan is not None
    return NoisedErrors.planned(plan, FORECASTING, [MSE, VALIDATION_MSE])


@pytest.mark.parametrize(("neighbours", "deviation"), [("remove", 6.0), ("replace", 12.0)])
def test_noise_is_sized_by_what_one_client_can_change(neighbours: str, deviation: float) -> None:
    """σ·√4·B/2 with σ = 1 and B = 6, and twice where one client's data replace another's."""
    errors = spec(neighbours, **{"privacy.error-clip": 6.0})
    assert errors.deviation == deviation
    extremes = [dict.fromkeys(errors.metrics, value) for value in (0.0, 1e30, np.nan, np.inf)]
    low, *high = map(errors.offsets, extremes)
    assert low.tolist() == [-3.0] * 4
    assert [offsets.tolist() for offsets in high] == [[3.0] * 4] * 3
    assert np.linalg.norm(low) * {"remove": 1, "replace": 2}[neighbours] == deviation


def test_a_server_refuses_errors_that_are_no_noise() -> None:
    errors = spec()
    assert errors.fault({MSE: 1.0 + errors.deviation, of_kept(MSE): -errors.deviation}) is None
    assert "is not reported with noise" in str(errors.fault({Metric("mae"): 1.0}))
    for value in (1e30, -1e30, np.nan):
        assert "beyond what clip and noise allow" in str(errors.fault({MSE: value}))


def test_a_local_models_errors_do_not_leave_with_noise(tmp_path: Path) -> None:
    """They measure no model that clients keep. They cost nothing."""
    noised = site(tmp_path, "noised")
    local = Metric("mse", Model.LOCAL)
    reply = Reply(["a"], [8], losses={"total": [1.0]}, metrics={local: [1.0]})
    reported = noised.node._reporting.applied(reply, noised.order(1, {}))
    assert (reported.metrics, reported.losses, reported.samples) == ({}, {}, [1])
    assert not (tmp_path / "privacy").exists()
