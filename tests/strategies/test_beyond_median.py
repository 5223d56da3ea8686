"""Who is refused for being far larger than the others of a round."""

from __future__ import annotations

from fedproto_app.server.roster import ClientKey
from fedproto_app.settings import settings_from
from fedproto_app.strategies.beyond_median import refuse_largest
from tests.strategies.one_node import NODE, one_node


def refused(*sizes: float) -> list[str]:
    federation = one_node(settings_from({}))
    keys = [ClientKey(name, NODE) for name in "abcdefg"]
    named = dict(zip(keys, sizes, strict=False))
    beyond = refuse_largest(federation, named, "its size is")
    assert beyond == {ClientKey(one.client, one.node) for one in federation.log.refused}
    return [one.reason for one in federation.log.refused]


def test_ten_times_the_median_is_the_limit() -> None:
    assert refused(1, 2, 10, 3, 20) == []
    assert refused(1, 2, 20.1, 3, 1) == [
        "its size is 20.1, more than 20, 10 times the median client's"
    ]


def test_nobody_is_refused_where_nothing_can_be_told() -> None:
    assert refused() == refused(5) == refused(0, 0, 9) == []
    assert len(refused(1, 1, float("inf"))) == 1
