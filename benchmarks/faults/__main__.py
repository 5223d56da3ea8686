"""What a federation survives: each fault in real processes, and its outcome.

    python -m benchmarks.faults [FAULT ...] [--list] [--table FILE]

Each fault has a new SuperLink and three SuperNodes on loopback, with TLS and registered keys. They
run FUELS, or FedAvg where the row says so, on six synthetic clients. Prints what happened and
enters it into docs/faults.csv, in the columns of the installed version of Flower. Without names all
faults are run, one after the other: about half an hour on two cores.

Exit code: 0 if everything went as expected, else 1. The full disk is skipped without root.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults import nodes, server, untrusted  # they enter their faults
from benchmarks.faults.rows import reference
from benchmarks.faults.table import FAULTS, Row, enter_rows, line_of, say
from benchmarks.pages import ROOT
from benchmarks.parts import parser_of, require_names

TABLE = ROOT / "docs" / "faults.csv"
DEADLINE = 600.0  # seconds for one fault
MAKERS = (nodes, server, untrusted)


def main() -> None:
    arguments = _arguments()
    if arguments.list:
        print("\n".join(FAULTS))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that blocks end their processes
    signal.signal(signal.SIGALRM, _too_late)
    good = True
    for name in arguments.faults or FAULTS:
        start = time.monotonic()
        say(f"{name} …")
        rows = _done(name)
        enter_rows(arguments.table, rows)
        for row in rows:
            say(line_of(row))
        say(f"{name}: {time.monotonic() - start:.0f} s")
        good = good and bool(rows) and all(row.good for row in rows)
    sys.exit(0 if good else 1)


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(FAULTS))
    parser.add_argument("--list", action="store_true", help="print the faults' names")
    parser.add_argument("--table", type=Path, default=TABLE, help="instead of docs/faults.csv")
    arguments = parser.parse_args()
    require_names(parser, arguments.faults, FAULTS, "fault")
    return arguments


def _done(name: str) -> list[Row]:
    """Run one fault in its own folder, within the deadline. Return [] if it had no outcome."""
    if FAULTS[name].method:
        reference(FAULTS[name].method)
    with tempfile.TemporaryDirectory(prefix="fedproto-faults-") as folder:
        signal.setitimer(signal.ITIMER_REAL, DEADLINE)
        try:
            return list(FAULTS[name].action(Path(folder) / "trial"))
        except Exception as error:
            say(f"{name}: {error}")
            return []
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


class TooLateError(Exception):
    """Not a TimeoutError: that is an OSError, which is ignored when a process ends."""


def _too_late(*_: object) -> None:
    raise TooLateError(f"no outcome within {DEADLINE:g} s")


if __name__ == "__main__":
    main()
