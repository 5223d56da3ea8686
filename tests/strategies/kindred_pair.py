"""Both halves of Kindred on the four clients of `one_node`, and the same in NumPy by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.halves import make_learner
from fedproto_app.learners.cohort import Cohort, new_cohort
from fedproto_app.learners.kindred import KindredLearner
from fedproto_app.messages import Arrays, Order, Reply
from fedproto_app.models.linear_forecaster import COEFFICIENTS
from fedproto_app.randomness import torch_stream
from fedproto_app.server.roster import ClientKey
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.kindred import KindredStrategy
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.wire import read_order
from tests.strategies.one_node import NAMES, NODE, SAMPLES, one_node

Floats = NDArray[np.float64]

CLIENTS = [*NAMES, "late"]
PERIOD, CLOSE, FEATURES = 4, 2, 6


def tiny_series() -> dict[str, Floats]:
    """Waves of one period with noise, two early and two late in the day; of one a value lacks."""
    rng, hours = np.random.default_rng(0), np.arange(100)
    made = {
        name: np.sin(hours * np.pi / 2 + (number > 1) * 1.5) + rng.normal(0, 0.4, len(hours))
        for number, name in enumerate(CLIENTS)
    }
    made["b"][30] = np.nan
    return made


class KindredPair:
    """A server and the clients of its one node. sent: what each client sent."""

    def __init__(self, **changes: Any) -> None:
        self.settings: Settings = settings_from(
            {
                "method": "kindred",
                "data.period": PERIOD,
                "data.close-window": CLOSE,
                "data.periodic-window": 2,
                "data.calendar": "phase",
                "kindred.features": FEATURES,
                **changes,
            }
        )
        learner = make_learner(self.settings, ForecastingTask(self.settings))
        assert isinstance(learner, KindredLearner)
        self.learner = learner
        self.strategy = KindredStrategy(
            self.settings, self.settings.kindred, one_node(self.settings)
        )
        self.strategy.federation.log.server_round = 1

    def windows(self, series: dict[str, Floats]) -> list[ClientWindows]:
        return [make_windows(ClientSeries(n, v), self.settings.data) for n, v in series.items()]

    def cohort(self, series: dict[str, Floats]) -> Cohort:
        """These clients, fitted alone."""
        initial = self.learner.initial_parameters()
        copies = {n: v.expand(len(series), *v.shape).clone() for n, v in initial.items()}
        samples = self.learner.task.gather(self.windows(series), 1)
        cohort = new_cohort(self.learner, copies, samples, server_round=1)
        self.learner.conclude(cohort, self.learner.context(self.order(), cohort))
        return cohort

    def order(self) -> Order:
        return Order("run", "token", 1, CLIENTS)

    def message(self, cohort: Cohort) -> Arrays:
        """What the clients send."""
        context = self.learner.context(self.order(), cohort)
        return self.learner.contribution(cohort, context, 1).arrays

    def report(self, names: list[str], arrays: Arrays) -> None:
        """It arrives at the server."""
        reply = Reply(names, [SAMPLES] * len(names), arrays=arrays)
        message = Message(RecordDict(), dst_node_id=1, message_type="train")
        self.strategy.federation.trained |= {ClientKey(name, NODE) for name in names}
        self.strategy.absorb([NodeReply(NODE, reply, message)])

    def priors(self) -> Order:
        """What the server then sends to the node, as the node reads it."""
        [message] = self.strategy.configure_evaluate(1, None, None, None)  # type: ignore[arg-type]
        return read_order(message)

    def fitted(self, series: dict[str, Floats]) -> Tensor:
        """[K, H, D] the clients' coefficients in the end."""
        cohort = self.cohort(series)
        self.report(list(series), self.message(cohort))
        order = self.priors()
        if order.guided:
            self.learner.receive(cohort, order)
        return cohort.parameters[COEFFICIENTS]


# --- by hand ----------------------------------------------------------------------------------


def by_hand(pair: KindredPair, series: dict[str, Floats]) -> list[Floats]:
    """Each client's coefficients [D, H], from the formulas in Kindred's docstrings."""
    clients = pair.windows(series)
    features = [_features(one.inputs.astype(np.float64), pair.settings) for one in clients]
    rests = [one.targets - one.inputs[:, [CLOSE - 1]].astype(np.float64) for one in clients]
    means, days = [], []
    for one, phi, rest in zip(clients, features, rests, strict=True):
        used = one.batches.ravel()
        some = used[one.present[used].any(axis=1)]
        columns = []
        for step in range(rest.shape[1]):
            of_step = used[one.present[used, step]]
            columns.append(phi[of_step].T @ rest[of_step, step] / len(of_step))
        means.append((phi[some].T @ phi[some] / len(some), np.stack(columns, axis=1)))
        there = one.present[one.batches, 0]
        days.append((one.targets[one.batches, 0] * there).sum(axis=0) / there.sum(axis=0))
    near, alike = _nearness(np.stack(days)), 1 - np.eye(len(clients))
    plain = features[0].shape[1] - 2 * FEATURES
    made = []
    for number, (one, phi, rest) in enumerate(zip(clients, features, rests, strict=True)):
        mixes = [weights[number] / weights[number].sum() for weights in (near, alike)]
        priors = [
            [sum(w * mean[part] for w, mean in zip(mix, means, strict=True)) for part in (0, 1)]
            for mix in mixes
        ]
        fits = _candidates(means[number], priors, [plain, phi.shape[1]])
        seen, there = one.validation, one.present[one.validation]
        errors = np.array(
            [(((phi[seen] @ fit - rest[seen]) ** 2) * there).sum() / there.sum() for fit in fits]
        )
        steps = rest.shape[1]
        excess = errors / errors.min() - 1
        shares = np.exp(-0.3 * there.sum() / steps / 2 * excess)
        made.append(np.tensordot(shares / shares.sum(), np.stack(fits), axes=1))
    return made


def _features(inputs: Floats, settings: Settings) -> Floats:
    times = inputs[:, -1].astype(int)
    newest, values = inputs[:, [CLOSE - 1]], inputs[:, :-1]
    others = np.delete(values, CLOSE - 1, axis=1)
    plain = np.concatenate([others - newest, newest, np.eye(PERIOD)[times % PERIOD]], axis=1)
    draws = torch_stream(settings.seed, "random features")
    directions = torch.randn(plain.shape[1], 2, FEATURES, generator=draws).double().numpy()
    shifts = 2 * np.pi * torch.rand(2, FEATURES, generator=draws).double().numpy()
    blocks = [plain]
    for scale, shift, direction in zip((1.0, 0.5), shifts, directions.swapaxes(0, 1), strict=True):
        direction[: values.shape[1]] *= scale / np.sqrt(values.shape[1])
        blocks.append(np.sqrt(2) * np.cos(plain @ direction + shift) / np.sqrt(FEATURES))
    return np.concatenate(blocks, axis=1)


def _nearness(days: Floats) -> Floats:
    """exp(−JS / (0.5 · median)), 0 for itself."""
    rows = np.exp(days) / np.exp(days).sum(axis=1, keepdims=True)

    def entropy(p: Floats) -> Any:
        return -(p * np.log(p)).sum(axis=-1)

    apart = entropy((rows[:, None] + rows) / 2) - (entropy(rows)[:, None] + entropy(rows)) / 2
    others = ~np.eye(len(days), dtype=bool)
    return np.exp(-apart / (0.5 * np.median(apart[others]))) * others


def _candidates(own: Any, priors: Any, widths: list[int]) -> list[Floats]:
    """(A + s·A' + λ·I)⁻¹ (B + s·B') for all, 0 outside the first `width` features."""
    made = []
    for width in widths:
        problems = [(own[0], own[1], penalty) for penalty in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)]
        problems += [
            (own[0] + strength * prior[0], own[1] + strength * prior[1], penalty)
            for prior in priors
            for strength in (0.1, 0.5, 2.0, 10.0)
            for penalty in (1e-4, 1e-2)
        ]
        for gram, moment, penalty in problems:
            fit = np.zeros_like(own[1])
            ridge = gram[:width, :width] + penalty * np.eye(width)
            fit[:width] = np.linalg.solve(ridge, moment[:width])
            made.append(fit)
    return made
