"""The protection of a run's clients: the noised messages, their noise and their number."""

from __future__ import annotations

from functools import lru_cache

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.methods import method_named, methods_of
from fedproto_app.core.sends import Sends
from fedproto_app.settings import PrivacyPlan, Settings
from fedproto_app.settings.fit import pretraining_releases, releases_of
from fedproto_app.trust.privacy_loss import epsilon_of, multiplier_for


@lru_cache(maxsize=64)
def privacy_plan(settings: Settings) -> PrivacyPlan | None:
    """Return the privacy plan of the settings; None without a mechanism.

    Raises `SettingsError` for a method whose messages cannot be protected, and for an ε that the
    first rounds exceed.
    """
    privacy = settings.privacy
    if not privacy.is_on:
        return None
    method = method_named(settings.method)
    learnt = _require(settings, pretraining_releases(method, settings))
    releases = _require(settings, releases_of(method, settings))
    if settings.aggregation.rule != "mean" and any(release.clip == "sums" for release in releases):
        raise SettingsError(
            f"aggregation.rule = {settings.aggregation.rule!r}: judges a client's sums, but with "
            f"privacy.mechanism = {privacy.mechanism!r} noise hides them; method = "
            f"{settings.method!r} then takes 'mean' alone"
        )
    counts, rounds = (len(learnt), len(releases)), settings.pretraining_rounds
    planned = rounds * counts[0] + settings.rounds * counts[1]
    noise = privacy.noise_multiplier
    if not noise:
        noise = multiplier_for(privacy.epsilon, privacy.delta, max(planned, 1))
    plan = PrivacyPlan(privacy, noise, counts, rounds)
    first = rounds * counts[0] + counts[1]
    spent = epsilon_of(first * plan.loss, privacy.delta)
    if privacy.max_epsilon and spent > privacy.max_epsilon:
        upto = "the first round" if not rounds else "the rounds of phase 1 and one more"
        raise SettingsError(
            f"privacy.max-epsilon = {privacy.max_epsilon:g}: {upto} alone spend{'s' * (not rounds)}"
            f" {spent:.3g}; raise it or privacy.noise-multiplier"
        )
    return plan


def _require(settings: Settings, releases: tuple[Sends, ...]) -> tuple[Sends, ...]:
    """Return the releases; raise `SettingsError` if one cannot be protected."""
    method = method_named(settings.method)
    on = f"privacy.mechanism = {settings.privacy.mechanism!r}"
    unbounded = [release.name for release in releases if not release.clip]
    if unbounded or method.joined_clients:
        why = (
            "its clients see each other's values"
            if method.joined_clients
            else f"how far one client can change the {unbounded[0]} that it sends is not known"
        )
        able = [name for name in methods_of(settings.task) if _is_able(name, settings)]
        raise SettingsError(
            f"{on}: method = {settings.method!r}: {why}; of task = {settings.task!r} these can be "
            f"protected: {', '.join(able)}"
        )
    if settings.privacy.unit == "sample" and any(release.clip != "sums" for release in releases):
        raise SettingsError(
            f"privacy.unit = 'sample': method = {settings.method!r} trains on all samples together "
            "before it sends; only sums over samples ('analytic') can hide one of them"
        )
    return releases


def _is_able(name: str, settings: Settings) -> bool:
    method = method_named(name)
    return not method.joined_clients and all(
        release.clip for release in releases_of(method, settings)
    )
