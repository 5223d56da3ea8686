"""``fedproto``: the command line."""

from __future__ import annotations

import sys
from typing import NoReturn

from fedproto_app.core.endings import WhenStopped, end_on_signals, imports_first
from fedproto_app.core.errors import FederationError, FedProtoError, system_fault
from fedproto_app.core.loading import look_here_for_users_code


def main() -> NoReturn:
    """Run the command line.

    Errors are printed on stderr, without a traceback. Exit code: 1 if the federation failed, 2 for
    a mistake in settings, data or arguments.
    """
    end_on_signals()
    look_here_for_users_code()  # settings and stored models may need the user's modules
    try:
        with WhenStopped(), imports_first():
            from fedproto_app.cli.commands import app  # slow to import

            with WhenStopped(lambda: "stopped"):
                app(prog_name="fedproto")  # also for shell completion
    except FedProtoError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, FederationError) else 2)
    except OSError as error:  # the machine's fault, such as a full or read-only disk
        remedy = "; TMPDIR names another" if "temporary directory" in str(error) else ""
        print(f"error: {system_fault(error)}{remedy}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise  # torch raises a plain RuntimeError when the CPU's memory is exhausted
        print("error: there is not enough memory for this on this machine", file=sys.stderr)
        sys.exit(2)
    sys.exit()
