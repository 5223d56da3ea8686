"""Sums that no samples have, against one solution of `analytic` for all."""

from __future__ import annotations

from benchmarks.attacks.joint import ATTACKS, Trial, error_of


def test_sums_that_only_pairs_of_squares_allow_are_refused() -> None:
    """One of ten, who knows its own samples alone; × 1,600 and × 9 at seed 0."""
    clean = error_of(Trial(None, 1, jointly=True, seed=0))
    before, now = (error_of(Trial(ATTACKS[0], 1, jointly, seed=0)) for jointly in (False, True))
    assert before > 100 * clean
    assert now < 15 * clean
