"""Which methods go with masked sums: the table, its page, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedproto_app.errors import SettingsError
from fedproto_app.methods import METHODS
from fedproto_app.only_sums import NEEDS_MORE, NEEDS_SUMS
from fedproto_app.settings import settings_from

PAGE = Path(__file__).parents[1] / "docs" / "secure-sum.md"
MASKED = {"aggregation.secure": True}


def test_every_method_can_or_cannot() -> None:
    assert not NEEDS_SUMS.keys() & NEEDS_MORE.keys()
    assert NEEDS_SUMS.keys() | NEEDS_MORE.keys() == METHODS.keys()


def test_the_page_has_the_same_table() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (yes|no) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    told = [(name, can == "yes", why) for name, can, why in rows]
    assert told == [
        *((name, True, what) for name, what in NEEDS_SUMS.items()),
        *((name, False, why) for name, why in NEEDS_MORE.items()),
    ]


def first_task(method: str) -> str:
    return (*METHODS[method].tasks, "forecasting")[0]


@pytest.mark.parametrize("method", NEEDS_MORE)
def test_a_method_that_cannot_is_refused_with_the_reason(method: str) -> None:
    needed = {"fed-react.clusters": 2} if METHODS[method].encoder_first else {}
    with pytest.raises(SettingsError) as caught:
        settings_from({"method": method, "task": first_task(method), **needed, **MASKED})
    assert f"aggregation.secure = true: method = {method!r} {NEEDS_MORE[method]}; " in str(
        caught.value
    )


@pytest.mark.parametrize("method", NEEDS_SUMS)
def test_a_method_that_can_is_taken(method: str) -> None:
    assert settings_from({"method": method, "task": first_task(method), "keep": "last", **MASKED})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"aggregation.rule": "median"},
            "looks at each client's model, of which a masked sum show",
        ),
        ({"method": "analytic", "analytic.sharing": "none"}, "sends nothing that could be masked"),
        ({"aggregation.secure-minimum": 1}, "secure-minimum = 1: input should be greater than or"),
        ({"aggregation.secure-share": 0.4}, "secure-share = 0.4: input should be greater than or "),
        ({"aggregation.secure-share": 1.0}, "secure-share = 1.0: input should be less than 1"),
        ({"aggregation.secure-bits": 60}, "secure-bits = 60: input should be less than or equal"),
    ],
)
def test_what_does_not_go_with_it_is_told(changes: dict[str, object], why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from({"method": "fedavg", **MASKED, **changes})
    assert why in str(caught.value)
