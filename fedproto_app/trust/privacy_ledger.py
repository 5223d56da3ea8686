"""Keep account of the privacy loss of a site's clients over all runs, and of the site's limits.

A server can start run after run, and each run counts from 0. A site therefore keeps its own account
in its state directory. For every client it holds the sum of the µ² of the client's releases
(`trust/privacy_loss.py`), and it is written before a release leaves. A repeated order gets the same
reply (`protection.py`) and costs nothing more.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypedDict

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.core.section import NonNegative, Share
from fedproto_app.core.whole_file import make_private, write_whole
from fedproto_app.settings import PrivacySettings, Section
from fedproto_app.settings.aggregation import FACTOR
from fedproto_app.trust.privacy_loss import epsilon_of

FOLDER = "privacy"  # in a site's state directory
_REPORTED = ("none", "noised", "exact")  # values of privacy.metrics, the most private first
_TAGS = 1000  # releases that are remembered for each client, so that each is counted once


class SitePrivacy(Section):
    """``[privacy]`` of a site's file: the protection that a run must give the site's clients.

    max_epsilon: the limit on ε over all runs together, at `delta`, 0 for none. min_noise: the
    smallest σ, 0 if no noise is required. unit, neighbours: what both limits refer to, as in a
    run's settings. metrics: the most that a run may learn about losses and errors. "auto" means
    "noised" if one of the limits is set, else "exact".
    """

    max_epsilon: NonNegative = 0.0
    delta: Share = 1e-5
    min_noise: NonNegative = 0.0
    unit: Literal["client", "sample"] = "client"
    neighbours: Literal["remove", "replace"] = "remove"
    metrics: Literal["auto", "none", "noised", "exact"] = "auto"

    @property
    def demands(self) -> bool:
        """Whether a run without noise is refused."""
        return self.max_epsilon > 0 or self.min_noise > 0

    def require(self, run: PrivacySettings, noise_multiplier: float | None) -> None:
        """Raise `SettingsError` for a run that protects clients less than the site demands.

        noise_multiplier: the run's σ, None in a run without noise.
        """
        if self.demands and noise_multiplier is None:
            raise SettingsError(
                "privacy.mechanism = 'none': this site's file demands noise on what its clients "
                "send (privacy.max-epsilon or privacy.min-noise)"
            )
        allowed = self.metrics
        if allowed == "auto":
            allowed = "noised" if self.demands else "exact"
        if _REPORTED.index(run.reported) > _REPORTED.index(allowed):
            raise SettingsError(
                f"privacy.metrics = {run.metrics!r}: this site's file allows {allowed!r} at most "
                "(its privacy.metrics)"
            )
        if noise_multiplier is None or not self.demands:
            return
        if run.unit != self.unit:
            raise SettingsError(
                f"privacy.unit = {run.unit!r}: this site's file demands {self.unit!r}"
            )
        noise = noise_multiplier * FACTOR[run.neighbours] / FACTOR[self.neighbours]
        if noise < self.min_noise:
            raise SettingsError(
                f"privacy.noise-multiplier = {noise_multiplier:g}: this is {noise:g} with this "
                f"site's privacy.neighbours = {self.neighbours!r}; its file demands "
                f"privacy.min-noise = {self.min_noise:g}"
            )


class BudgetSpentError(FedProtoError):
    """The site does not allow another release by this client."""


class _Account(TypedDict):
    """What a client has spent. spent: Σ µ² by unit. tags: the ids of its last releases."""

    client: str
    spent: dict[str, float]
    releases: int
    tags: list[str]


class PrivacyLedger:
    """The accounts of a site's clients, one file per client. The site's processes share them."""

    def __init__(self, folder: Path, site: SitePrivacy) -> None:
        self._folder, self._site = folder / "spent", site

    def enter(self, client: str, run: PrivacySettings, loss: float, tags: Sequence[str]) -> None:
        """Count these releases, each with µ² = `loss`. Return when the count is on the disk.

        tags: an id for each release. A repeated tag means the same reply again and is not counted.
        If the releases would exceed the site's ε, nothing is counted and `BudgetSpentError` is
        raised.
        """
        path = self._folder / f"{hashlib.sha256(client.encode()).hexdigest()[:32]}.json"
        with self._alone():
            account = self._read(path, client)
            new = [tag for tag in tags if tag not in account["tags"]]
            if not new:
                return
            spent = account["spent"][run.unit]
            # Stored for neighbours = "remove", whatever the site's file says.
            spent += len(new) * loss / FACTOR[run.neighbours] ** 2
            self._require_within(client, spent, account["releases"] + len(new))
            account["spent"][run.unit] = spent
            account["releases"] += len(new)
            account["tags"] = [*account["tags"], *new][-_TAGS:]
            write_whole(path, json.dumps(account).encode(), durable=True, private=True)

    def _require_within(self, client: str, spent: float, releases: int) -> None:
        site = self._site
        if not site.max_epsilon:
            return
        epsilon = epsilon_of(spent * FACTOR[site.neighbours] ** 2, site.delta)
        if epsilon > site.max_epsilon:
            raise BudgetSpentError(
                f"this site's privacy.max-epsilon = {site.max_epsilon:g}: with this, {client!r} "
                f"would have spent {epsilon:.3g} in {releases} releases over all runs"
            )

    @staticmethod
    def _read(path: Path, client: str) -> _Account:
        if not path.exists():
            spent = {"client": 0.0, "sample": 0.0}
            return {"client": client, "spent": spent, "releases": 0, "tags": []}
        try:
            account: _Account = json.loads(path.read_bytes())
            account["releases"] += 0
            return account
        except (ValueError, KeyError, TypeError):
            raise SettingsError(
                f"{path}: not a valid account of client {client!r}; until it is repaired, nothing "
                "leaves"
            ) from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        make_private(self._folder)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
