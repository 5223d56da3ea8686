"""``fedproto`` called as a person calls it, in this process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from fedproto_app.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a call printed and its exit code."""

    code: int
    out: str
    err: str


Fedproto = Callable[..., Outcome]


@pytest.fixture
def fedproto(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Fedproto]:
    """Call the command line with these arguments."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["fedproto", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), printed.out, printed.err)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)
