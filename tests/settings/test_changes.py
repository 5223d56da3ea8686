"""What a command line says of a value, and how a value is said to one."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from fedproto_app.settings.changes import flags, parsed, written


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("my data.csv", "my data.csv"),
        (7, "7"),
        (0.1, "0.1"),
        (False, "false"),
        (["a", "b  c"], '["a", "b  c"]'),
        ({"clients": 3, "of all": ["a"]}, '{"clients" = 3, "of all" = ["a"]}'),
        ('"a  b"', '"\\"a  b\\""'),
        ("[" * 5000, "[" * 5000),
        ("", ""),
        (" a", '" a"'),
        *((text, f'"{text}"') for text in ("2024", "1e3", "true", "0x10", "2024-01-01", "inf")),
        ("'quoted'", "\"'quoted'\""),
        ("a\nb = 1", "a\nb = 1"),
    ],
)
def test_a_value_comes_back_from_its_text(value: Any, text: str) -> None:
    assert written(value) == text
    assert (parsed(text), type(parsed(text))) == (value, type(value))


def test_flags_are_words_of_a_shell() -> None:
    line = flags({"data.path": "2024", "seed": 3, "data.columns": "it's a"})
    assert shlex.split(line) == [
        *("--set", 'data.path="2024"', "--set", "seed=3", "--set", "data.columns=it's a")
    ]
