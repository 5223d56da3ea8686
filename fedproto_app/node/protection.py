"""What leaves a node under differential privacy: clipped, noised, entered in the site's ledger.

Each client is protected by itself, before the node's mean or any sum is formed: against the server,
against other nodes, and against whoever reads what they get. Its node, which has its data, is
trusted.

Noise is a function of the node's secret, of what was asked, and of the very values to hide. So an
order that comes again after a crash gets the same answer, which tells nothing more. A server that
asks the same round twice with another model gets noise that has nothing to do with the first. One
key without the values would let it subtract the two; one without the order would tell it that two
different questions had the same answer. In a simulation the noise is a function of seed, client and
round: the same on any number of nodes, and no protection.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Order
from fedproto_app.core.sends import Sends
from fedproto_app.settings import PrivacyPlan
from fedproto_app.settings.privacy import FACTOR
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import AnyLearner, Contribution
from fedproto_app.trust.privacy_ledger import BudgetSpentError, PrivacyLedger
from fedproto_app.trust.privacy_loss import (
    Values,
    clipped_rows,
    clipped_together,
    finite,
    gaussian_noise,
)


@dataclass(frozen=True)
class _Hidden:
    """A client's values of one release, clipped; its noise has this deviation on every entry."""

    release: Sends
    values: Mapping[str, Values]
    deviation: float


@dataclass
class Leaving:
    """What may leave of a cohort: its shared parameters [K, …] each, its contribution, and whose
    rows may not, with the reason."""

    models: dict[str, Tensor]
    sent: Contribution
    refused: dict[int, str]


class Unprotected:
    """The stage of a run without noise: everything leaves as it is."""

    def applied(
        self,
        learner: AnyLearner,
        cohort: Cohort,
        order: Order,
        rows: Sequence[int],
        models: Mapping[str, Tensor],
        sent: Contribution,
    ) -> Leaving:
        """The same models and contribution."""
        return Leaving(dict(models), sent, {})


UNPROTECTED = Unprotected()


class Protection:
    """The stage that clips and noises what the clients of one order send.

    ledger: the site's, None in a simulation.
    """

    def __init__(self, plan: PrivacyPlan, secret: bytes, ledger: PrivacyLedger | None) -> None:
        self._plan, self._secret, self._ledger = plan, secret, ledger

    def applied(
        self,
        learner: AnyLearner,
        cohort: Cohort,
        order: Order,
        rows: Sequence[int],
        models: Mapping[str, Tensor],
        sent: Contribution,
    ) -> Leaving:
        """What these rows of the cohort may send in place of this.

        models: shared parameters. Raises `SettingsError` for arrays that the learner did not say it
        sends.
        """
        releases = _complete(learner, models, sent)
        # Each over once: all that follows is client by client, here.
        models = {name: value.detach().cpu() for name, value in models.items()}
        sent = replace(sent, present=None if sent.present is None else sent.present.cpu())
        asked = b"" if self._ledger is None else _digest(order)
        leaving = Leaving(
            {name: value.clone() for name, value in models.items()},
            Contribution({n: array.copy() for n, array in sent.arrays.items()}, sent.present),
            {},
        )
        for row in rows:
            hidden = [
                self._hidden(one, learner, cohort, order, row, models, sent) for one in releases
            ]
            client = cohort.names[row]
            keys = [self._key(one, client, order.server_round, asked) for one in hidden]
            if self._ledger is not None:
                tags = [hashlib.sha256(key).hexdigest() for key in keys]
                try:
                    self._ledger.enter(client, self._plan.settings, self._plan.loss, tags)
                except BudgetSpentError as spent:
                    leaving.refused[row] = str(spent)
                    continue
            for one, key in zip(hidden, keys, strict=True):
                _put(leaving, row, order, one, _noised(one, key))
        return leaving

    def _hidden(
        self,
        release: Sends,
        learner: AnyLearner,
        cohort: Cohort,
        order: Order,
        row: int,
        models: Mapping[str, Tensor],
        sent: Contribution,
    ) -> _Hidden:
        settings = self._plan.settings
        noise = self._plan.noise_multiplier * FACTOR[settings.neighbours]
        if release.clip == "step":
            step = {
                name: value[row].numpy().astype(np.float64) - order.arrays[name]
                for name, value in models.items()
            }
            clipped = clipped_together(step, settings.step_clip)
            return _Hidden(release, clipped, noise * settings.step_clip)
        own = {name: _present(sent, name, row) for name in release.arrays}
        if release.clip == "rows":
            rows = {name: clipped_rows(array, settings.clip) for name, array in own.items()}
            count = sum(array[..., 0].size for array in rows.values())
            return _Hidden(release, rows, noise * settings.clip * math.sqrt(count))
        bound, counts = learner.sums_bound(cohort)
        most = bound * (counts[row] if settings.unit == "client" else 1)
        return _Hidden(release, {n: finite(array) for n, array in own.items()}, noise * most)

    def _key(self, hidden: _Hidden, client: str, server_round: int, asked: bytes) -> bytes:
        """Of the noise: nobody without the secret can tell it, and nothing else has it."""
        told = (client, str(server_round), hidden.release.clip, *hidden.values)
        parts = [text.encode() for text in told]
        if self._ledger is not None:
            parts += [asked, repr(hidden.deviation).encode()]
            parts += [np.ascontiguousarray(value).tobytes() for value in hidden.values.values()]
        mac = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in parts:
            mac.update(len(part).to_bytes(8, "little") + part)
        return mac.digest()


def _complete(learner: AnyLearner, models: Mapping[str, Tensor], sent: Contribution) -> list[Sends]:
    """The learner's releases of what is there, if they can protect all of it."""
    there = [one for one in learner.releases if one.clip and (one.parameters or sent.arrays)]
    protected = {name for one in there for name in one.arrays}
    unprotected = sorted(sent.arrays.keys() - protected)
    if models and not any(one.parameters for one in there):
        unprotected.append("its model")
    if unprotected:
        raise SettingsError(
            f"privacy: {type(learner).__name__} sends {', '.join(unprotected)}, and does not "
            "declare how far one client can change it; nothing leaves"
        )
    return there


def _present(sent: Contribution, name: str, row: int) -> Values:
    """A client's values, of rows by class those of the classes that it has."""
    array = sent.arrays[name][row]
    kept = array if sent.present is None else array[sent.present[row].numpy()]
    return np.asarray(kept)


def _noised(hidden: _Hidden, key: bytes) -> dict[str, Values]:
    """The values with independent noise over all arrays of a release."""
    noise = gaussian_noise(key, sum(value.size for value in hidden.values.values()))
    found, start = dict[str, Values](), 0
    for name, value in hidden.values.items():
        its = noise[start : start + value.size].reshape(value.shape)
        found[name] = value + hidden.deviation * its
        start += value.size
    return found


def _put(
    leaving: Leaving, row: int, order: Order, hidden: _Hidden, noised: Mapping[str, Values]
) -> None:
    """In place of what it hides, rounded to what travels."""
    for name, value in noised.items():
        if hidden.release.clip == "step":
            model = (order.arrays[name] + value).astype(np.float32)
            leaving.models[name][row] = torch.from_numpy(model)
        elif leaving.sent.present is None:
            leaving.sent.arrays[name][row] = value
        else:
            leaving.sent.arrays[name][row][leaving.sent.present[row].numpy()] = value


def _digest(order: Order) -> bytes:
    """Of all that a client's answer may depend on, besides its own state."""
    found = hashlib.sha256()
    parts = [
        order.run,
        order.token,
        order.server_round,
        order.guided,
        order.classes,
        sorted(order.options.items()),
    ]
    found.update(repr(parts).encode())
    for name, array in sorted(order.arrays.items()):
        found.update(f"{name}{array.shape}{array.dtype}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()
