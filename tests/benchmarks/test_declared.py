"""The attack of a node that declares 10⁹ samples, against FedAvg."""

from __future__ import annotations

import pytest

from benchmarks.attacks.declared import CASES, Trial, error_of, far_model


@pytest.mark.parametrize(("guarded", "most"), [(True, 1.05), (False, None)])
def test_a_node_that_declares_a_billion_samples(guarded: bool, most: float | None) -> None:
    """Where the limits do not hold, the same model of −5 is the clients' model."""
    settings, metric = CASES["`fedavg`"]
    small = {**settings, "rounds": 2, "evaluate-every": 2}
    clean = error_of(Trial(small, metric, None, guarded))
    attacked = error_of(Trial(small, metric, far_model, guarded))
    assert clean is not None
    assert attacked is not None
    assert attacked < most * clean if most else attacked > 100 * clean
