from __future__ import annotations

import numpy as np

from fedproto_app.maths.even_choice import evenly


def test_of_many_clients_every_group_is_shown_by_its_share() -> None:
    groups = np.array(["a", "b"] * 500 + ["c"] * 1000)
    shown = evenly(groups, 100)
    assert len(set(shown)) == 100
    assert (np.diff(shown) > 0).all()
    assert {g: int((groups[shown] == g).sum()) for g in "abc"} == {"a": 25, "b": 25, "c": 50}
    np.testing.assert_array_equal(evenly(np.array([""] * 7), 100), range(7))
    assert len(evenly(np.array([], dtype=np.str_), 100)) == 0
