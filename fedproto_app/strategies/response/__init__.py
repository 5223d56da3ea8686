"""The response: what weather, prices or holidays do to a client, learned from all clients' sums.

    y_t = θ · φ(x_t) + η_t

x_t is what we know in advance about time t, θ · φ is the client's response, and η is the rest of
its series. The run's method forecasts η and knows nothing of the response. A forecast of the series
is the method's forecast plus θ · φ. Read `features.py` (φ), then `fit.py` (θ), then `stage.py` (the
messages). `curve.py` turns θ · φ into curves for people to read.

Clients first add up the moments of their columns, which give everybody the same φ. Then they add up
the products A = mean of Δφ Δφᵀ and b = mean of Δφ Δy of seasonal differences. They get the totals.
Where noise protects the sums, the moments are either not sent or public (`protected.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from fedproto_app.core.method import Pretraining, RunSettings
from fedproto_app.settings.data import ResponseSettings


def _rounds(settings: RunSettings) -> int:
    response = getattr(settings, "response", None)
    assert isinstance(response, ResponseSettings)
    return int(response.sharing == "all")


def _rounds_of_moments(settings: RunSettings) -> int:
    return 0 if settings.response.scales else _rounds(settings)  # type: ignore[attr-defined]


def _phase(learner: str, rounds: Callable[[RunSettings], int]) -> Pretraining:
    return Pretraining(
        table="response",
        rounds=rounds,
        check=lambda settings: None,
        model="",
        strategy=f"{__name__}.stage:ResponseStrategy",
        learner=f"{__name__}.stage:{learner}",
        samples=f"{__name__}.stage:without_response",
    )


PHASES = (_phase("MomentsLearner", _rounds_of_moments), _phase("SumsLearner", _rounds))
