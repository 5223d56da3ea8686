"""Checks of all sources of sequences, and the choice of a source."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.sources import load_sequences
from tests.data.handed_over import FACTORY, load_given
from tests.data.sequences.made_sequences import measured, pool_of

POOL = pool_of([1, 0, 1], clients=["ann", "bob", "ann"], groups={"ann": "left"})
NUMBERS = measured(3)


def test_the_listed_order_of_the_classes() -> None:
    pool = load_given(load_sequences, POOL, classes="cat, dog,bee,ant")
    assert pool.classes == ("cat", "dog", "bee", "ant")
    assert pool.targets.tolist() == [2, 3, 2]
    with pytest.raises(DataError, match=f"^{FACTORY}: class 'cat' is not in data.classes"):
        load_given(load_sequences, POOL, classes="ant,bee")
    with pytest.raises(DataError, match=r"^data\.classes = 'ant,bee': the targets of .* real num"):
        load_given(load_sequences, NUMBERS, classes="ant,bee")


def step(value: Any, dtype: Any = np.float32) -> list[Any]:
    return [*POOL.sequences[:2], np.array(value, dtype)]


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (None, "returned NoneType, expected a SequencePool"),
        (replace(POOL, dimensions=("x", "x")), "dimensions .* none of them twice"),
        (replace(POOL, dimensions=()), "dimensions .*: expected a tuple of names"),
        (replace(POOL, sequences=[]), "no sequence in it"),
        (replace(POOL, classes=("ant", "ant")), "classes .* none of them twice"),
        (replace(POOL, classes=("ant",)), "label 1 is outside 0 … 0"),
        (replace(POOL, targets=np.array([0, -2, 0])), "label -2 is outside 0 … 2"),
        (replace(POOL, targets=np.array([0, 1])), "2 targets for 3 sequences"),
        (replace(POOL, targets=None), "targets are a NoneType, expected an array"),
        (replace(POOL, targets=np.zeros(3)), r"targets are float64 \(3,\), expected int64"),
        (replace(NUMBERS, targets=np.zeros(3, np.int64)), r"targets are int64 .* expected float64"),
        (replace(NUMBERS, targets=np.array([0, np.nan, 1])), "sequence 1 has the target nan"),
        (replace(POOL, clients=np.array(["a", "b"])), "2 clients for 3 sequences"),
        (replace(POOL, clients=np.array(["a", " ", "b"])), "a sequence has a client without a n"),
        (replace(POOL, clients=None), "there are groups of clients, but no sequence has a client"),
        (replace(POOL, groups={"ann": 1}), "groups: expected a mapping"),
        (replace(POOL, is_test=np.array([1, 0, 0])), "is_test are int64 .* expected bool"),
        (replace(POOL, is_test=np.ones(3, np.bool_)), "all sequences are test"),
        (replace(POOL, sequences=step([[1, 2]], np.float64)), "sequence 2 is float64, expected an"),
        (replace(POOL, sequences=[[[1]]] * 3), "sequence 0 is list, expected an array"),
        (replace(POOL, sequences=step([[1, 2, 3]])), r"sequence 2 has shape \(1, 3\), .*T, 2\]"),
        (replace(POOL, sequences=step(np.zeros((0, 2)))), r"sequence 2 has shape \(0, 2\)"),
        (replace(POOL, sequences=step([1, 2])), r"sequence 2 has shape \(2,\)"),
        (replace(POOL, sequences=step([[0, 0], [0, np.nan]])), "sequence 2: y at step 1 is nan"),
    ],
)
def test_invalid_results_of_a_factory_are_refused(pool: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^{FACTORY}: {message}"):
        load_given(load_sequences, pool)


@pytest.mark.parametrize("name", ["?", "unlabelled"])
def test_a_class_that_is_none(name: str) -> None:
    """Its sequences have no label, in any order of the classes."""
    pool = replace(POOL, classes=("ant", name, "cat"), targets=np.array([2, 1, 0]))
    loaded = load_given(load_sequences, pool)
    assert loaded.classes == ("ant", "cat")
    assert loaded.targets.tolist() == [1, -1, 0]
    assert loaded.has_target.tolist() == [True, False, True]
    assert load_given(load_sequences, pool, classes="cat, dog, ant").targets.tolist() == [0, -1, 2]
    with pytest.raises(DataError, match=rf"^data\.classes = .*'{re.escape(name)}' is what seq"):
        load_given(load_sequences, pool, classes=f"ant, cat, {name}")
    loaded = load_given(load_sequences, replace(POOL, targets=np.array([2, -1, 0])))
    assert loaded.targets.tolist() == [2, -1, 0]
    assert load_given(
        load_sequences, replace(NUMBERS, targets=np.array([-1.0, 0, 1]))
    ).has_target.all()


def test_a_source_without_any_label_is_refused() -> None:
    for pool in (
        replace(POOL, targets=np.array([-1, -1, -1])),
        replace(POOL, classes=("?",), targets=np.array([0, 0, 0])),
    ):
        with pytest.raises(DataError, match=f"^{FACTORY}: no sequence has a label"):
            load_given(load_sequences, pool)
