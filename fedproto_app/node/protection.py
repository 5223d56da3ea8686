"""Make the values that leave a node differentially private: clip, add noise, enter in the ledger.

Each client's values are protected separately, before the node forms a mean or a sum. They are
protected from the server, from other nodes, and from everyone who reads their results. The client's
own node has the client's data and is trusted.

In a masked sum the node adds no noise to a single client's values. Instead it adds its share of the
noise that the total of all clients needs, drawn from the system's randomness
(`trust/discrete_noise.py`). A sum that is formed again gets new noise and is entered again.

Otherwise the noise depends on the node's secret, on the order, and on the values to hide. An order
that is repeated after a crash thus gets the same reply, which reveals nothing more. A server that
repeats a round with another model gets independent noise. If the noise did not depend on the
values, the server could remove it by subtracting the two replies. If it did not depend on the
order, the server would see that two different orders had the same result. In a simulation the noise
depends on seed, client and round, so it is the same on any number of nodes and protects nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Order, limited_samples
from fedproto_app.core.sends import Sends
from fedproto_app.settings import PrivacyPlan
from fedproto_app.settings.aggregation import FACTOR
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, Contribution
from fedproto_app.trust.discrete_noise import Noise
from fedproto_app.trust.privacy_ledger import BudgetSpentError, PrivacyLedger
from fedproto_app.trust.privacy_loss import (
    Values,
    clipped_rows,
    clipped_together,
    finite,
    gaussian_noise,
)


@runtime_checkable
class _BoundsSums(Protocol):
    """A learner whose clients send sums of samples of bounded length (``clip = "sums"``)."""

    def sums_bound(self, cohort: Cohort) -> tuple[float, list[int]]:
        """Return the largest norm that one sample can add to all sums together, and the number of
        samples in each client's sums. Called if `Training.sample_clip` is set."""


@dataclass(frozen=True)
class _Hidden:
    """A client's clipped values in one release, and the noise that they need.

    kind: how the values were clipped (`Sends.clip`), or "errors". noise: the noise for each entry
    of all arrays.
    """

    kind: str
    values: Mapping[str, Values]
    noise: Noise


class Protection:
    """The stage that clips the values that the clients of one order send, and adds noise to them.

    learner: declares how far one client can change the values. ledger: the site's privacy ledger,
    None in a simulation. session: the session of the masked sum that the values become part of, ""
    if they leave openly.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        secret: bytes,
        ledger: PrivacyLedger | None,
        learner: AnyLearner,
        session: str = "",
    ) -> None:
        self._plan, self._secret, self._ledger, self._learner = plan, secret, ledger, learner
        self._session = session

    def applied(self, outgoing: Contribution, cohort: Cohort, order: Order) -> Contribution:
        """Return the clipped values, with noise, of the clients that are not refused yet.

        For a masked sum the values are only clipped, in double precision, and the noise that the
        sum needs is returned beside them. Raises `SettingsError` for arrays that the learner does
        not declare.
        """
        declared = _complete(self._learner, outgoing)
        releases = [release for release in declared if release.clip != "public"]
        # Copy everything to this machine's memory at once, as the rest is done client by client.
        outgoing = replace(
            outgoing,
            model={name: value.detach().cpu() for name, value in outgoing.model.items()},
            present=None if outgoing.present is None else outgoing.present.cpu(),
        )
        order_digest = b"" if self._ledger is None else _digest(order)
        in_sum = bool(self._session)
        noised = replace(
            outgoing,
            arrays={
                n: a.astype(np.float64 if in_sum else a.dtype) for n, a in outgoing.arrays.items()
            },
            model={n: v.double() if in_sum else v.clone() for n, v in outgoing.model.items()},
        )
        refused = dict(outgoing.refused)
        noises: dict[str, Noise | None] = dict.fromkeys(outgoing.arrays)
        for row, client in enumerate(cohort.names):
            if row in outgoing.refused:
                continue
            hidden = [self._hidden(release, outgoing, cohort, order, row) for release in releases]
            keys = [
                self._key(clipped, client, order.server_round, order_digest) for clipped in hidden
            ]
            if reason := self._refusal(client, keys):
                refused[row] = reason
                continue
            for clipped, key in zip(hidden, keys, strict=True):
                values = clipped.values if in_sum else _noised(clipped, key)
                _put(noised, row, order, clipped, values)
                noises |= dict.fromkeys(clipped.values, clipped.noise)
        return replace(noised, refused=refused, noise=noises if in_sum else {})

    def errors(
        self, client: str, offsets: Values, order: Order, deviation: float
    ) -> tuple[Values, str]:
        """Return a client's errors [M] with noise, and "" or the reason why they must not leave.

        offsets: the errors minus the middle of their range. If the client has spent its budget,
        noise alone is returned, which does not depend on the client's data.
        """
        order_digest = b"" if self._ledger is None else _digest(order)

        def hidden(values: Values) -> tuple[_Hidden, bytes]:
            errors = _Hidden("errors", {"errors": values}, Noise(1.0, deviation, values.size))
            return errors, self._key(errors, client, order.server_round, order_digest)

        errors, key = hidden(offsets)
        if reason := self._refusal(client, [key]):
            errors, key = hidden(np.zeros_like(offsets))
        return _noised(errors, key)["errors"], reason

    def _refusal(self, client: str, keys: Sequence[bytes]) -> str:
        """Enter the releases with these keys in the ledger. Return why it refuses them, or ""."""
        if self._ledger is None:
            return ""
        tags = [hashlib.sha256(key).hexdigest() for key in keys]
        try:
            self._ledger.enter(client, self._plan.settings, self._plan.loss, tags)
        except BudgetSpentError as spent:
            return str(spent)
        return ""

    def _hidden(
        self, release: Sends, outgoing: Contribution, cohort: Cohort, order: Order, row: int
    ) -> _Hidden:
        settings = self._plan.settings
        multiplier = self._plan.noise_multiplier * FACTOR[settings.neighbours]

        def hidden(values: Mapping[str, Values], length: float) -> _Hidden:
            entries = sum(outgoing.arrays[n][row].size for n in release.arrays) or sum(
                value.size for value in values.values()
            )
            return _Hidden(release.clip, values, Noise(multiplier, length, entries))

        if release.clip == "step":
            step = {
                name: value[row].numpy().astype(np.float64) - order.guidance.arrays[name]
                for name, value in outgoing.model.items()
            }
            return hidden(clipped_together(step, settings.step_clip), settings.step_clip)
        client_values = {name: _present(outgoing, name, row) for name in release.arrays}
        if release.clip == "rows":
            rows = {
                name: clipped_rows(array, settings.clip) for name, array in client_values.items()
            }
            # In a masked sum all clients need the same noise, whichever classes they have.
            sent_rows = {n: outgoing.arrays[n][row] for n in rows} if self._session else rows
            count = sum(array[..., 0].size for array in sent_rows.values())
            return hidden(rows, settings.clip * math.sqrt(count))
        if not isinstance(self._learner, _BoundsSums):
            raise SettingsError(
                f"{type(self._learner).__name__} declares clip = 'sums', so it needs "
                "sums_bound(cohort): how far one sample can move them"
            )
        bound, counts = self._learner.sums_bound(cohort)
        samples = order.most_samples if self._session else counts[row]
        moved = limited_samples(samples, order.most_samples) if settings.unit == "client" else 1
        return hidden({n: finite(array) for n, array in client_values.items()}, bound * moved)

    def _key(self, hidden: _Hidden, client: str, server_round: int, order_digest: bytes) -> bytes:
        """Return the noise's secret key. Any other values or order have a different key."""
        texts = (client, str(server_round), hidden.kind, *hidden.values)
        parts = [text.encode() for text in texts]
        if self._ledger is not None:
            deviation = hidden.noise.multiplier * hidden.noise.length
            parts += [order_digest, self._session.encode(), repr(deviation).encode()]
            parts += [np.ascontiguousarray(value).tobytes() for value in hidden.values.values()]
        mac = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in parts:
            mac.update(len(part).to_bytes(8, "little") + part)
        return mac.digest()


def _complete(learner: AnyLearner, outgoing: Contribution) -> list[Sends]:
    """Return the releases of these arrays. An array without a clip raises `SettingsError`."""
    releases = [
        release
        for release in learner.releases
        if release.clip and (release.parameters or outgoing.arrays)
    ]
    protected = {name for release in releases for name in release.arrays}
    unprotected = sorted(outgoing.arrays.keys() - protected)
    if outgoing.model and not any(release.parameters for release in releases):
        unprotected.append("its model")
    if unprotected:
        raise SettingsError(
            f"privacy: {type(learner).__name__} sends {', '.join(unprotected)}, but does not "
            "declare how far one client can change it; nothing leaves the node"
        )
    return releases


def _present(outgoing: Contribution, name: str, row: int) -> Values:
    """Return a client's values. Of arrays with a row per class, only its classes' rows are kept."""
    array = outgoing.arrays[name][row]
    return np.asarray(array if outgoing.present is None else array[outgoing.present[row].numpy()])


def _noised(hidden: _Hidden, key: bytes) -> dict[str, Values]:
    """Return the values plus independent noise on every entry of all arrays of a release."""
    noise = gaussian_noise(key, sum(value.size for value in hidden.values.values()))
    noised, start = dict[str, Values](), 0
    for name, value in hidden.values.items():
        block = noise[start : start + value.size].reshape(value.shape)
        noised[name] = value + hidden.noise.multiplier * hidden.noise.length * block
        start += value.size
    return noised


def _put(
    outgoing: Contribution, row: int, order: Order, hidden: _Hidden, noised: Mapping[str, Values]
) -> None:
    """Replace true values by noised ones. Outside of masked sums these are rounded to float32."""
    for name, value in noised.items():
        if hidden.kind == "step":
            outgoing.model[name][row] = torch.from_numpy(order.guidance.arrays[name] + value)
        elif outgoing.present is None:
            outgoing.arrays[name][row] = value
        else:
            outgoing.arrays[name][row][outgoing.present[row].numpy()] = value


def _digest(order: Order) -> bytes:
    """Return a digest of everything in the order that a client's reply may depend on."""
    digest, guidance = hashlib.sha256(), order.guidance
    parts = [
        order.run,
        order.token,
        order.server_round,
        guidance.clients,
        guidance.classes,
        sorted(guidance.options.items()),
    ]
    digest.update(repr(parts).encode())
    for name, array in sorted(guidance.arrays.items()):
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
