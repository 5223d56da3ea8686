"""docs/results/sharing.md: how often the verdict's 95% interval holds the true median ratio.

    python -m benchmarks.verdict_coverage        # two minutes of one core

Simulated clients with and without common days, compared by the app's own interval.
"""

from __future__ import annotations

import numpy as np

from benchmarks.pages import ROOT, Shown, made_today, publish, with_origin
from fedproto_app.maths.two_way_bootstrap import Floats, median_ratio_interval

PAGE = ROOT / "docs" / "results" / "sharing.md"
MAKER = "benchmarks.verdict_coverage"
SIZES = ((8, 14), (20, 14), (50, 14), (20, 5), (20, 7), (20, 28))
CORRELATIONS = (0.0, 0.1, 0.3)
SPREAD = 0.1  # standard deviation of a client's log ratio over its test part
TRIALS, DRAWS = 1000, 500


def made_errors(
    rng: np.random.Generator, clients: int, days: int, correlation: float, own_days: float = 0.0
) -> tuple[Floats, Floats]:
    """Return errors and a rival's errors [K, D]. The median ratio of all clients and days is 1.

    correlation: of the clients' log ratios over the test part, which comes from common days.
    own_days: the share of the other spread that comes from days of a single client. The rest is
    lasting differences between clients.
    """

    def normal(share: float, *shape: int) -> Floats:
        return rng.normal(0, SPREAD * np.sqrt(share), shape)

    uncommon = 1 - correlation
    by_day = days * (correlation + uncommon * own_days)  # variance of a day, in units of SPREAD²
    log_ratios = (
        normal(uncommon * (1 - own_days), clients, 1)
        + normal(correlation * days, 1, days)
        + normal(uncommon * own_days * days, clients, days)
    )
    rival = rng.gamma(4, 1 / 4, (1, days)) * rng.lognormal(0, 0.3, (clients, days))
    return rival * np.exp(log_ratios - SPREAD**2 * by_day / 2), rival


def coverage(
    clients: int,
    days: int,
    correlation: float,
    *,
    days_drawn: bool,
    own_days: float = 0.0,
    trials: int = TRIALS,
) -> float:
    """Return the share of simulated comparisons whose interval holds 1."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(trials):
        errors, rival = made_errors(rng, clients, days, correlation, own_days)
        if not days_drawn:
            errors, rival = errors.sum(axis=1, keepdims=True), rival.sum(axis=1, keepdims=True)
        low, high = median_ratio_interval(errors, rival, draws=DRAWS)
        hits += low <= 1 <= high
    return hits / trials


def main() -> None:
    lines = [["correlation", "clients", "days", "clients drawn", "both drawn", "both, own days"]]
    for correlation in CORRELATIONS:
        for clients, days in SIZES:
            of_case = (clients, days, correlation)
            shares = (
                coverage(*of_case, days_drawn=False),
                coverage(*of_case, days_drawn=True),
                coverage(*of_case, days_drawn=True, own_days=0.5),
            )
            row = [f"{correlation:.1f}", str(clients), str(days)]
            lines.append([*row, *(f"{share:.0%}" for share in shares)])
            print(*lines[-1], flush=True)
    runs = f"`python -m {MAKER}`, {TRIALS} comparisons a row, {DRAWS} draws each, seed 1"
    shown = Shown(columns=(), keys=3)
    publish(PAGE, "coverage", MAKER, with_origin(lines, runs, made_today()), shown)


if __name__ == "__main__":
    main()
