"""Whether this tree's runs end with the same bytes as an earlier commit's.

    python -m benchmarks.same_results 6016738                      # the quick set
    python -m benchmarks.same_results 6016738 --set full --engines process:1 process:2 flower

Each task with each of its methods runs small, by ``fedproto run``: once with the code of the
commit, in a work tree of its own, and once with this tree. It compares ``clients.csv``,
``rounds.jsonl`` and ``summary.json``, without times, versions and digests of settings. Besides the
plain run on two nodes there are variants: on one node, with masked sums, with noise, with a trimmed
mean, and killed after its first round and resumed (compared with the run that was not killed). A
variant that the earlier commit refuses is no difference when this tree runs it.

The quick set has every method once, and a few pairs in all variants. The full set has every pair in
all variants. Runs already in ``--folder`` are not repeated, so a later call costs this
tree's runs alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pages import ROOT
from benchmarks.parts import PROGRAM, changes_of, parser_of, wait_until
from fedproto_app.core.methods import METHODS, methods_of
from fedproto_app.core.tasks import TASKS
from fedproto_app.tasks.table import small_run

DEADLINE = 600  # seconds of a run
PAIRS = [f"{method}@{task}" for task in TASKS for method in methods_of(task)]
SEVERAL_VARIANTS = [
    "fedavg@forecasting",
    "fedprox@classification",
    "fedrep@sequence-regression",
    "fuels@forecasting",
    "fedproto@forecasting",
    "fedpcl@forecasting",
    "analytic@forecasting",
    "kindred@forecasting",
    "cnfgnn@forecasting",
    "gldp@classification",
    "fedpcl@classification",
    "census@classification",
    "analytic@classification",
    "fed-react@sequence-classification",
    "ifca@sequence-classification",
]
VARIANTS: dict[str, Mapping[str, Any]] = {
    "plain": {},
    "one-node": {},
    "masked": {"aggregation.secure": True, "aggregation.secure-minimum": 2},
    "noised": {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0},
    "trimmed": {"aggregation.rule": "trimmed-mean", "aggregation.hostile-share": 0.2},
    "resumed": {},
}
# Fields that differ between two runs of the same code, or that name the code.
UNEQUAL = {"seconds", "node_seconds", "settings_digest", "versions"}


class Case(NamedTuple):
    """One run: a pair of method and task, a variant, and what computes it ("process:2")."""

    pair: str
    variant: str = "plain"
    engine: str = "process:1"

    @property
    def expected(self) -> Case:
        """Return the earlier commit's run with the same result: engines and resuming change
        nothing, so these are compared with the plain run."""
        variant = "plain" if self.variant == "resumed" else self.variant
        return Case(self.pair, variant)


def main() -> None:
    """Make the missing runs, and print a row for each compared run."""
    parser = parser_of(__doc__)
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--set", choices=("quick", "full"), default="quick", dest="chosen")
    parser.add_argument("--engines", nargs="+", default=["process:1"])
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, metavar="METHOD@TASK")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--folder", type=Path, help="where runs are kept; default: temporary")
    parser.add_argument("--at-once", type=int, default=2, help="runs at the same time")
    arguments = parser.parse_args()
    cases = _cases(arguments.chosen, arguments.pairs)
    cases = [case for case in cases if case.variant in arguments.variants]
    with tempfile.TemporaryDirectory(prefix="fedproto-same-") as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        tree = Path(temporary) / "before"
        _git("worktree", "add", "--detach", str(tree), arguments.commit)
        try:
            equal = _compare(list(_on(arguments.engines, cases)), folder, tree, arguments.at_once)
        finally:
            _git("worktree", "remove", "--force", str(tree))
    differing = [case for case, is_same in equal.items() if not is_same]
    print(f"{len(equal)} runs, {len(differing)} differ from {arguments.commit}")
    sys.exit(bool(differing))


def _cases(chosen: str, pairs: list[str] | None) -> list[Case]:
    """Return the runs of a set, or all runs of these pairs if any are given."""
    complete = pairs or (PAIRS if chosen == "full" else SEVERAL_VARIANTS)
    cases = [Case(pair, variant) for pair in complete for variant in VARIANTS]
    if chosen == "quick" and not pairs:  # every other method once
        first = {pair.split("@")[0]: pair for pair in reversed([*SEVERAL_VARIANTS, *PAIRS])}
        cases += [Case(pair) for pair in first.values() if pair not in SEVERAL_VARIANTS]
    return cases


def _on(engines: Iterable[str], cases: Iterable[Case]) -> Iterator[Case]:
    """Yield all runs on the first engine, the plain runs on the others too."""
    for number, engine in enumerate(engines):
        for case in cases:
            if number == 0 or case.variant == "plain":
                yield case._replace(engine=engine)


def _compare(cases: list[Case], folder: Path, before: Path, at_once: int) -> dict[Case, bool]:
    expected = dict.fromkeys(case.expected for case in cases)
    equal = {}
    with ThreadPoolExecutor(at_once) as pool:
        earlier = dict(
            zip(expected, pool.map(partial(_end, before, folder / "before"), expected), strict=True)
        )
        later = pool.map(partial(_end, ROOT, folder / "now"), cases)
        for case, end in zip(cases, later, strict=True):
            # A method may refuse these settings, but a refused plain run is a fault.
            settings = bool(VARIANTS[case.variant])
            verdict = _verdict(earlier[case.expected], end, may_be_refused=settings)
            equal[case] = not verdict.startswith("DIFFERS")
            print(f"{case.pair:40} {case.variant:9} {case.engine:10} {verdict}", flush=True)
    return equal


def _verdict(expected: Mapping[str, Any], end: Mapping[str, Any], *, may_be_refused: bool) -> str:
    if "refused" in expected and "refused" in end:
        return "same: refused" if may_be_refused else f"DIFFERS: failed: {end['refused']}"
    if "refused" in expected:
        return "new: the earlier commit refused it"
    if "refused" in end:
        return f"DIFFERS: {end['refused']}"
    names = [name for name in expected if expected[name] != end.get(name)]
    return f"DIFFERS in {', '.join(names)}" if names else "same"


def _end(tree: Path, folder: Path, case: Case) -> dict[str, Any]:
    """Return the run's lasting content, or why it was refused. A missing run is made."""
    folder = folder / case.engine.replace(":", "-") / case.pair / case.variant
    refused, run = folder / "refused.txt", folder / "run"
    if not refused.exists() and not (run / "summary.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        start = time.perf_counter()
        failure = _run(tree, folder, case)
        if failure:
            refused.write_text(failure)
        print(f"  {tree.name} {case}: {time.perf_counter() - start:.1f} s", flush=True)
    if refused.exists():
        return {"refused": refused.read_text().strip()}
    return {
        "clients.csv": (run / "clients.csv").read_bytes(),
        "rounds.jsonl": [
            _lasting(json.loads(line)) for line in (run / "rounds.jsonl").read_text().splitlines()
        ],
        "summary.json": _lasting(json.loads((run / "summary.json").read_text())),
    }


def _lasting(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in UNEQUAL}


def _run(tree: Path, folder: Path, case: Case) -> str:
    """Make the run. Return why it was refused, or ""."""
    method, task = case.pair.split("@")
    settings = {**small_run(task), **METHODS[method].small, "method": method}
    if task == "forecasting":
        settings["data.lags"] = ""  # earlier commits have no other default
    settings |= {**VARIANTS[case.variant], "output.dir": str(folder), "output.name": "run"}
    changes = changes_of(settings)
    engine, _, workers = case.engine.partition(":")
    options = ["--engine", engine, *(["--workers", workers] if workers else [])]
    nodes = "1" if case.variant == "one-node" else "2"
    command = [sys.executable, "-c", PROGRAM, "run", "--quiet"]
    if case.variant == "resumed":
        _killed(tree, folder, [*command, "--nodes", nodes, *options, *changes])
        command += ["--resume", str(folder / "run")]
        changes = []
        options += [] if (folder / "run" / "checkpoint").exists() else ["--nodes", nodes]
    else:
        options += ["--nodes", nodes]
    done = subprocess.run(
        [*command, *options, *changes],
        **_in(tree),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()[-2000:] or "?"


def _killed(tree: Path, folder: Path, command: list[str]) -> None:
    """Start a run, and kill all its processes when its first checkpoint is written."""
    run = subprocess.Popen(
        command,
        **_in(tree),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    checkpoint = folder / "run" / "checkpoint"
    with suppress(TimeoutError):
        wait_until(
            lambda: run.poll() is not None or any(checkpoint.glob("round-*/digests.json")),
            "the first checkpoint",
            DEADLINE,
            interval=0.01,
        )
    if run.poll() is None:
        os.killpg(run.pid, 9)
    run.wait()
    # A run of few rounds may have ended first, and then there is nothing to resume.
    (folder / "run" / "summary.json").unlink(missing_ok=True)


def _in(tree: Path) -> dict[str, Any]:
    return {"cwd": tree, "env": {**os.environ, "PYTHONPATH": str(tree)}}


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True)


if __name__ == "__main__":
    main()
