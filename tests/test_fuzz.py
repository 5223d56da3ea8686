"""Fuzz the decoders: briefly in each run of the tests, a minute in CI, ten minutes by
`make fuzz`."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import strategies as st

from fedproto_app.core.wire import Unusable, read_order
from tests.helpers.fuzz import TARGETS, fuzz
from tests.helpers.messages import order_message
from tests.helpers.reported import fields_of
from tests.helpers.spoilt import spoilt_content

SECONDS = float(os.environ.get("FUZZ_SECONDS", "2.5"))  # of all targets together


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_refusals_comes_out(name: str) -> None:
    """Short runs always try the same inputs; longer runs try new inputs and print the seed."""
    seed = 0 if SECONDS < 10 else int(time.time())
    tried = fuzz(TARGETS[name], SECONDS / len(TARGETS), seed)
    print(f"{name}: {tried} inputs from seed {seed} on")
    assert tried > 0


def test_an_escaping_exception_is_found() -> None:
    """A target that raises the reader's exception fails, here with a refusal."""

    def careless(data: st.DataObject) -> None:
        message = order_message()
        message.content = data.draw(spoilt_content(message.content, fields_of(message)))
        read_order(message)

    with pytest.raises((Unusable, ExceptionGroup)):  # a group of several that it found
        fuzz(careless, 5, 0)
