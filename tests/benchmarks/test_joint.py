"""Sums that no samples have, against one solution of `analytic` for all."""

from __future__ import annotations

from benchmarks.attacks.joint import ATTACKS, Trial, error_of


def test_the_worst_sums_that_pass_raise_the_error_by_a_limited_factor() -> None:
    """One of ten clients is hostile and knows its own samples alone. At seed 0 the factor is 9."""
    clean = error_of(Trial(None, 1, seed=0))
    assert 2 * clean < error_of(Trial(ATTACKS[0], 1, seed=0)) < 15 * clean
