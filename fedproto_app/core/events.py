"""Events of a run as log lines for people and programs (logfmt).

    event=refused round=7 node=harbour reason="no reply within 600 s"

Servers and nodes log events through Flower's logger, so they stand in order in Flower's log.
"""

from __future__ import annotations

import json
import re
from logging import INFO

MOST_TEXT = 500  # how many characters of a text from another machine are shown

Value = str | int | float | bool | None

_PAIR = re.compile(r'([\w-]+)=("(?:[^"\\]|\\.)*"|\S*)')
_BARE = re.compile(r"[^\s\"=\\]+")


def tell(event: str, level: int = INFO, **fields: Value) -> None:
    """Log one event with its fields. Fields that are None are left out."""
    from flwr.common.logger import log  # slow to import, and readers of events do not need it

    log(level, "%s", event_line(event, **fields))


def event_line(event: str, **fields: Value) -> str:
    """Return ``event=… key=value …``. Texts with blanks, quotes or "=" are quoted as in JSON."""
    pairs = {"event": event, **fields}
    return " ".join(f"{key}={_text(value)}" for key, value in pairs.items() if value is not None)


def shown(text: str, length: int = MOST_TEXT) -> str:
    """Return a text from another machine as one printable line of at most `length` characters."""
    line = "".join(
        character if character.isprintable() else ascii(character)[1:-1]
        for character in text[: length + 1]
    )
    return line if len(line) <= length else line[:length] + " …"


def parse_event(line: str) -> dict[str, str]:
    """Return the fields of an event line, with or without a prefix, or {} for any other line."""
    start = line.find("event=")
    if start < 0:
        return {}
    pairs = _PAIR.findall(line[start:])
    return {key: json.loads(value) if value.startswith('"') else value for key, value in pairs}


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if not text.isprintable():
        return json.dumps(text)  # in ASCII, so that no control code reaches a terminal
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
