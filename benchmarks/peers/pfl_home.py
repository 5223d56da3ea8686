"""The environment of pfl-research: made once, apart from ours, because it needs older packages."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import torch

VERSION = "0.6.0"
_SECONDS = 1200.0  # for pip
_WORKS = "import pfl.algorithm.federated_averaging, pfl.model.pytorch"


def pfl_python(folder: Path) -> tuple[Path | None, str]:
    """Return the environment's Python, or None and the reason. Creates a missing environment.

    ``PIP_ARGS`` reaches pip, as in the Makefile.
    """
    python = folder / "bin" / "python"
    if python.exists() and _runs([str(python), "-c", _WORKS], 60) is None:
        return python, ""
    arguments = shlex.split(os.environ.get("PIP_ARGS", ""))
    requirements = [f"pfl=={VERSION}", f"torch=={torch.__version__.split('+')[0]}"]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *arguments, *requirements],
        [str(python), "-c", _WORKS],
    ):
        if (why := _runs(command, _SECONDS)) is not None:
            return None, why
    return python, ""


def _runs(command: list[str], seconds: float) -> str | None:
    """Return None if the command succeeds, else its last line of output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.strip() or f"code {done.returncode}").splitlines()[-1]
