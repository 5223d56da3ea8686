"""What happens in a run, as lines that people read and machines parse (logfmt).

    event=refused round=7 node=harbour reason="no reply within 600 s"

Servers and nodes tell their events through Flower's logger, so they stand in its logs in order.
"""

from __future__ import annotations

import json
import re
from logging import INFO

MOST_TEXT = 500  # characters of a stranger's text that are told

Value = str | int | float | bool | None

_PAIR = re.compile(r'([\w-]+)=("(?:[^"\\]|\\.)*"|\S*)')
_BARE = re.compile(r"[^\s\"=\\]+")


def tell(event: str, level: int = INFO, **fields: Value) -> None:
    """Log one event with what belongs to it; fields that are None are left out."""
    from flwr.common.logger import log  # slow to import for those who only read events

    log(level, "%s", event_line(event, **fields))


def event_line(event: str, **fields: Value) -> str:
    """``event=… key=value …``; texts with blanks, quotes or "=" are quoted as in JSON."""
    told = {"event": event, **fields}
    return " ".join(f"{key}={_text(value)}" for key, value in told.items() if value is not None)


def shown(text: str, most: int = MOST_TEXT) -> str:
    """A stranger's text as one line that can be shown: the rest escaped, and cut at so many."""
    line = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[: most + 1])
    return line if len(line) <= most else line[:most] + " …"


def parse_event(line: str) -> dict[str, str]:
    """The fields of an event line, whatever stands before it; {} for any other line."""
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
        return json.dumps(text)  # ASCII: no code reaches a terminal
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
