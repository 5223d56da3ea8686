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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROGRAM = "from fedproto_app.cli.main import main; main()"
ALL_TASKS = ("solo", "fedavg", "fedprox", "fedrep", "apfl", "ditto")
METHODS = {
    "forecasting": ("fuels", "fedproto", *ALL_TASKS),
    "classification": ("gldp", *ALL_TASKS),
    "sequence-classification": ("fed-react", "ifca", "flsc", *ALL_TASKS),
    "sequence-regression": ("fed-react", "ifca", "flsc", *ALL_TASKS),
}
SMALL: dict[str, Any] = {
    "rounds": 3,
    "model.representation-dim": 16,
    "data.synthetic.clients": 8,
    "data.synthetic.days": 14,
    "fuels.prototype-dim": 4,
    "output.pictures": False,
}
SEQUENCES = {
    **SMALL,
    "rounds": 4,
    "model.embedding-dim": 6,
    "model.hidden-dim": 8,
    "sequence.batch-size": 10,
    "encoder.rounds": 2,
    "encoder.steps": 3,
    "encoder.blocks": 3,
    "encoder.channels": 6,
    "encoder.reduced-dim": 8,
    "encoder.output-dim": 10,
    "fed-react.clusters": 2,
    "fed-react.samples": 16,
}
SETTINGS: dict[str, Mapping[str, Any]] = {
    "forecasting": SMALL,
    "classification": {
        **SMALL,
        "keep": "last",
        "rounds": 4,
        "local-epochs": 2,
        "data.source": "digits",
        "data.partition.clients": 8,
        "data.partition.classes": 3,
        "data.partition.stages": 2,
        "data.partition.imbalance-factor": 4.0,
        "data.partition.samples": 12,
        "model.width": 4,
        "optimizer.name": "sgd",
        "optimizer.learning-rate": 0.05,
        "classification.batch-size": 5,
        "classification.flip": False,
        "gldp.encoder-epochs": 2,
        "gldp.head-epochs": 2,
    },
    "sequence-classification": {
        **SEQUENCES,
        "data.source": "synthetic-air-writing",
        "data.synthetic.sequences": 320,
        "data.sequences.steps": 16,
        "data.clusters.clients": 8,
        "data.clusters.clusters": 2,
    },
    "sequence-regression": {
        **SEQUENCES,
        "data.source": "synthetic-ev",
        "data.sequences.window": 20,
        "data.sequences.scaling": "client",
        "data.sequences.target-scale": 100.0,
        "data.clusters.scheme": "given",
    },
}
PAIRS = [f"{method}@{task}" for task, methods in METHODS.items() for method in methods]


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
        settings = {**SETTINGS[task], "task": task, "method": method}
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
