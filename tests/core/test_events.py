"""Event lines can be read back."""

from __future__ import annotations

import json

import pytest

from fedproto_app.core.events import event_line, parse_event, shown


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "event=x"),
        ({"node": "south", "round": 3}, "event=x node=south round=3"),
        ({"client": None, "ok": True}, "event=x ok=true"),
        ({"seconds": 0.1 + 0.2}, "event=x seconds=0.3"),
        ({"reason": "no reply within 5 s"}, 'event=x reason="no reply within 5 s"'),
        ({"reason": 'says "no"'}, r'event=x reason="says \"no\""'),
        ({"reason": "a=b"}, 'event=x reason="a=b"'),
        ({"reason": ""}, 'event=x reason=""'),
        ({"node": "Köln"}, "event=x node=Köln"),
    ],
)
def test_a_line_by_hand(fields: dict[str, str], line: str) -> None:
    assert event_line("x", **fields) == line
    before = f"\x1b[92mINFO \x1b[0m:      {line}"
    assert set(parse_event(before)) == {"event", *(k for k, v in fields.items() if v is not None)}


def test_the_fields_of_an_event_are_read_back() -> None:
    fields = {"node": "a b", "reason": 'says "x=1" \\ no', "round": "3"}
    assert parse_event("12:00 INFO " + event_line("y", **fields)) == {"event": "y", **fields}
    assert parse_event("a line of Flower's") == {}


def test_a_text_cannot_forge_another_event() -> None:
    line = event_line("refused", reason="x\nevent=joined node=y")
    assert "\n" not in line
    assert json.loads(line.split("reason=")[1]) == "x\nevent=joined node=y"


def test_no_code_of_a_terminal_gets_through() -> None:
    line = event_line("refused", reason="\x1b[2J\x9b2J\u202e")
    assert line.isprintable()
    assert parse_event(line)["reason"] == "\x1b[2J\x9b2J\u202e"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Köln 1", "Köln 1"),
        ("a\nb\x1b[0m\x9b", r"a\nb\x1b[0m\x9b"),
        ("\u202e", r"\u202e"),
        ("x" * 501, "x" * 500 + " …"),
        ("x" * 500, "x" * 500),
    ],
)
def test_a_strangers_text_by_hand(text: str, line: str) -> None:
    assert shown(text) == line
