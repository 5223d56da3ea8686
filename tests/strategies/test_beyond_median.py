"""Who is refused for a size far beyond the others': nodes count, not clients."""

from __future__ import annotations

import pytest

from fedproto_app.core.clients import ClientKey
from fedproto_app.trust.outliers import largest


@pytest.mark.parametrize(
    ("bad", "refused"),
    [
        ({"x": 11.0}, {"x"}),
        ({"x": 10.0}, set()),
        ({f"x{n}": 1e-6 for n in range(50)}, set()),  # many small ones blame no honest client
        ({f"x{n}": 50.0 for n in range(50)}, {f"x{n}" for n in range(50)}),
    ],
)
def test_by_hand(bad: dict[str, float], refused: set[str]) -> None:
    sizes = {ClientKey(f"c{n}", f"node-{n}"): 1.0 for n in range(4)}
    sizes |= {ClientKey(name, "bad"): size for name, size in bad.items()}
    assert {key.client for key in largest(sizes, "its size is")} == refused


def test_of_two_nobody_is_refused() -> None:
    sizes = {ClientKey("a", "n"): 1.0, ClientKey("b", "m"): 1e9}
    assert largest(sizes, "its size is") == {}
