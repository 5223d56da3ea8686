"""Whether this tree's runs end as those of an earlier commit: ``clients.csv``, byte for byte.

    python -m benchmarks.same_results 6016738 --engines process:1 process:2 process:4 flower

Each task with each of its methods runs small, by ``fedproto run`` on two simulated nodes: once with
the code of the commit, in a work tree of its own, and once with each engine of this tree. Runs that
are there already in ``--folder`` are not made again, so a later call costs this tree's runs alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedproto_app.methods import METHODS, methods_of
from fedproto_app.tasks.table import TASKS, small_run

ROOT = Path(__file__).parents[1]
PROGRAM = "from fedproto_app.cli.main import main; main()"
PAIRS = [f"{method}@{task}" for task in TASKS for method in methods_of(task)]


def main() -> None:
    """Run what is missing, and print a row a pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="of before")
    parser.add_argument("--engines", nargs="+", default=["process:1", "process:2", "process:4"])
    parser.add_argument("--pairs", nargs="+", default=PAIRS, choices=PAIRS, metavar="METHOD@TASK")
    parser.add_argument("--folder", type=Path, help="where runs are kept; default: a temporary one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedproto-same-") as temporary:
        folder = asked.folder or Path(temporary)
        tree = Path(temporary) / "before"
        _git("worktree", "add", "--detach", str(tree), asked.commit)
        try:
            differing = _compare(asked.pairs, asked.engines, folder.resolve(), tree)
        finally:
            _git("worktree", "remove", "--force", str(tree))
    print(f"{len(asked.pairs)} pairs, {differing} of their runs differ from {asked.commit}")
    sys.exit(bool(differing))


def _compare(pairs: list[str], engines: list[str], folder: Path, before: Path) -> int:
    differing = 0
    for pair in pairs:
        expected = _run(before, [], folder / "before" / pair, pair)
        verdicts = []
        for engine in engines:
            name, _, workers = engine.partition(":")
            options = ["--engine", name, *(["--workers", workers] if workers else [])]
            same = _run(ROOT, options, folder / engine.replace(":", "-") / pair, pair) == expected
            differing += not same
            verdicts.append(f"{engine} {'same' if same else 'DIFFERS'}")
        print(f"{pair:40}", *verdicts, sep="  ", flush=True)
    return differing


def _run(tree: Path, options: list[str], folder: Path, pair: str) -> bytes:
    """The run's clients.csv; made now if it is not there."""
    table = folder / "run" / "clients.csv"
    if not (folder / "run" / "summary.json").exists():
        method, task = pair.split("@")
        settings = {**small_run(task), **METHODS[method].small, "method": method}
        settings |= {"output.dir": str(folder), "output.name": "run"}
        changes = [f"--set={key}={_toml(value)}" for key, value in settings.items()]
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", PROGRAM, "run", "--quiet", "--nodes", "2", *options, *changes],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=600,
        )
        print(f"  {folder.parent.name} {pair}: {time.perf_counter() - start:.1f} s", flush=True)
    return table.read_bytes()


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True)


if __name__ == "__main__":
    main()
