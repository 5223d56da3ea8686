"""Charts before they are drawn."""

from __future__ import annotations

import numpy as np

from fedproto_app.core.charts import is_wide, number


def test_numbers() -> None:
    written = [number(value) for value in (0.01234, -2.5, 999, 1234, 54339, 3.7e6, 2e9)]
    assert written == ["0.0123", "−2.5", "999", "1.23k", "54.3k", "3.7M", "2G"]


def test_a_wide_span_asks_for_a_logarithm() -> None:
    assert is_wide(np.array([0, 1, 21]))
    assert not is_wide(np.array([0, 1, 20]))
    assert not is_wide(np.zeros(3))
