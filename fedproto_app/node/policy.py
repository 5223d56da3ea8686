"""Define the limits that a site sets for runs: methods, tasks, amount of work, code.

They are in the site's file (``[limits]``, ``[code]``). A run's settings are checked before any
work. The duration of an order is checked while it is carried out. These checks bind a run only if
the site's own copy of this code is executed: see ``gate``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Literal, NoReturn

from pydantic import AfterValidator, Field

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.core.loading import is_code
from fedproto_app.core.methods import method_named
from fedproto_app.core.section import kebab
from fedproto_app.settings import Count, CountOrZero, Section, Settings

# The limit of a setting, by the end of the setting's name.
_COUNTED = {"epochs": "epochs", "steps": "steps", "iterations": "steps"}
_NO_CODE = ("device", "method-settings")  # settings with texts that may have a colon, but no code

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class CodePolicy(Section):
    """``[code]``: which program does a run's work at this site. `gate` enforces this.

    run: "installed" is the site's own copy, whatever the run brings. "listed" is the app that the
    run brings, if its SHA-256 is among the digests. "any" is whatever app the run brings. own: the
    code that a run may name in its settings as package.module:NAME.
    """

    run: Literal["installed", "listed", "any"] = "installed"
    digests: Annotated[tuple[Digest, ...], Field(strict=False)] = ()
    own: Texts = ()


def _require_public_keys(lines: tuple[str, ...]) -> tuple[str, ...]:
    if lines:
        from fedproto_app.trust.signing import public_keys  # slow, and most sites need none

        public_keys(lines)
    return lines


class SumPolicy(Section):
    """``[masked-sums]``: whether arrays leave only in masked sums, and which sites may share a sum.

    least: the smallest `aggregation.secure-minimum` that a run may have. 0 also allows runs without
    masks. known: the public keys of the other sites. A node's key that none of these has signed is
    refused. If `known` is empty, the keys of all nodes are accepted.
    """

    least: Annotated[int, Field(ge=0)] = 0
    known: Annotated[Texts, AfterValidator(_require_public_keys)] = ()


class Limits(Section):
    """``[limits]``: the most that a run may ask for. None means no limit.

    epochs, steps: the largest value of any setting for their number. seconds: for one order.
    memory_mb: of the process that carries out an order. message_mb: of an order, and of its reply.
    orders_an_hour: over all runs. least_periods: the length, in periods, of the blocks of a series
    on which clients train (`windows.block_of`). With 0 they train on any part of it. least_samples:
    the fewest train images or sequences that a client may have. The last two limits do not apply to
    a partition of data that all nodes hold.
    """

    methods: Annotated[Texts, Field(min_length=1)] | None = None
    tasks: Annotated[Texts, Field(min_length=1)] | None = None
    epochs: Count = 1000
    steps: Count = 100_000
    seconds: Count = 3600
    memory_mb: Count | None = None
    message_mb: Count = 1024
    orders_an_hour: Count = 10_000
    least_periods: CountOrZero = 7
    least_samples: CountOrZero = 10


def require_named_code(config: Mapping[str, object], code: CodePolicy) -> None:
    """Refuse a run that names code which the site has not allowed, before that code is imported.

    config: a run's settings as Flower passes them, with dotted keys.
    """
    for key, value in config.items():
        if not isinstance(value, str) or key in _NO_CODE or not is_code(value):
            continue
        if value not in code.own:
            allowed = ", ".join(code.own) or "none"
            raise SettingsError(
                f"{key} = {value!r}: this site does not run this code; code.own in its file "
                f"allows: {allowed}"
            )


def require_within(settings: Settings, limits: Limits) -> None:
    """Refuse a run whose settings ask for more than the site allows."""
    for key, value, allowed in (
        ("method", settings.method, limits.methods),
        ("task", settings.task, limits.tasks),
    ):
        if allowed is not None and value not in allowed:
            raise SettingsError(
                f"{key} = {value!r}: this site allows {', '.join(allowed)} (limits.{key}s)"
            )
    at_most = {"epochs": limits.epochs, "steps": limits.steps}
    for section, table in _counted_settings(settings):
        for name, value in table:
            limit = next((key for end, key in _COUNTED.items() if name.endswith(end)), None)
            if limit is not None and isinstance(value, int) and value > at_most[limit]:
                raise SettingsError(
                    f"{section}{kebab(name)} = {value}: this site allows 0 … {at_most[limit]} "
                    f"(limits.{limit})"
                )


def require_masks(settings: Settings, least: int) -> None:
    """Refuse a run without masked sums, with sums of fewer than `least` nodes, or with so small a
    required share of nodes that a lying server could split them. If `least` is 0, refuse no run."""
    run = settings.aggregation
    if not least:
        return
    if not run.secure:
        raise SettingsError(
            "aggregation.secure = false: arrays leave this site only in masked sums "
            f"(masked-sums.least = {least})"
        )
    if run.secure_minimum < least:
        raise SettingsError(
            f"aggregation.secure-minimum = {run.secure_minimum}: this site takes part in masked "
            f"sums of at least {least} nodes (masked-sums.least)"
        )
    if run.secure_share < 2 / 3:
        raise SettingsError(
            f"aggregation.secure-share = {run.secure_share:g}: this site demands masked sums "
            "(masked-sums.least), which need at least 2/3 against a server that lies"
        )


def _counted_settings(settings: Settings) -> Iterator[tuple[str, Section]]:
    """Yield the tables of settings that determine a run's amount of work, each with its prefix."""
    method = method_named(settings.method)
    yield "", settings
    yield f"{method.table_name}.", settings.method_settings
    for phase in settings.first_phases:
        yield f"{phase.table}.", phase.section(settings)


class TooLong(FedProtoError):
    """The order took more seconds than the site allows."""


@contextmanager
def within_seconds(limits: Limits) -> Iterator[None]:
    """Raise `TooLong` in the block when the site's time limit has passed.

    This uses a signal, so it works only in the main thread, where Flower runs apps. Malicious code
    can remove the signal, but the gate then ends the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_: int, __: FrameType | None) -> NoReturn:
        raise TooLong(f"the order took longer than limits.seconds = {limits.seconds} of this site")

    before = signal.signal(signal.SIGALRM, end)
    timer = signal.setitimer(signal.ITIMER_REAL, limits.seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
