"""Compare FedProto in this app and in PFLlib on the same split of the digits.

    python -m benchmarks.fedproto_beside_pfllib CHECKOUT [--seeds 0,1,2,3,4] [--page]

CHECKOUT is a clone of https://github.com/TsingZ0/PFLlib. Nothing of it is part of this app. It runs
in its own process, with this Python, which then needs h5py, scikit-learn and matplotlib.

Both sides have the same train and test images of every client, the same first parameters of the
same small CNN, plain SGD, and the same number of full batches: PFLlib leaves out a last batch that
is not full, so every client has as many images as fill its batches. What is left to chance is the
order of the images. PFLlib makes a client's prototypes of all epochs of a round while it trains.
The app makes them of the trained model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedproto_app
from benchmarks.cross_check import split
from benchmarks.cross_check.comparison import paired
from benchmarks.pages import (
    ROOT,
    UNKNOWN,
    Shown,
    made_today,
    publish,
    table_texts,
    with_origin,
)
from benchmarks.parts import parser_of

PAGE = ROOT / "docs" / "results" / "cross-check.md"
MAKER = "benchmarks.fedproto_beside_pfllib"
PEER = "benchmarks.peers.pfllib_fedproto"
NETWORK = "benchmarks.cross_check.network:SmallCnn"
CLIENTS, IMAGES, BATCH = 20, 70, 10  # images of a client, and of a step
ROUNDS, EPOCHS, RATE, WEIGHT = 20, 5, 0.05, 1.0
RULES = ("prototypes", "head")

# One seed's figures: the mean accuracy over the clients by rule, and the seconds.
Figures = Mapping[str, float]


def main() -> None:
    arguments = _arguments()
    lines = [["seed", "rule", "ours %", "PFLlib %", "difference", "ours, s", "PFLlib, s"]]
    pairs: dict[str, list[tuple[float, float]]] = {rule: [] for rule in RULES}
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as folder:
            job = made_job(seed, Path(folder))
            ours, peers = our_figures(job, Path(folder)), peer_figures(job, arguments.checkout)
        for rule in RULES:
            pairs[rule].append((ours[rule], peers[rule]))
            accuracies = (ours[rule], peers[rule], ours[rule] - peers[rule])
            seconds = [f"{side['seconds']:.0f}" for side in (ours, peers)]
            lines.append([str(seed), rule, *(f"{100 * a:.1f}" for a in accuracies), *seconds])
            print(*lines[-1], flush=True)
    lines += [mean_line(rule, pairs[rule]) for rule in RULES]
    runs = origin(arguments)
    print(*table_texts(lines, texts=2), runs, sep="\n")
    if arguments.page:
        table = with_origin(lines, runs, made_today())
        publish(PAGE, "pfllib", MAKER, table, Shown(columns=(), keys=2))


def made_job(seed: int, folder: Path) -> dict[str, Any]:
    """Write the archives of a seed, and return the job for both sides."""
    shard = split.deal(CLIENTS, seed, alpha=0.3, samples=IMAGES, test_ratio=0.25)
    images, start = folder / "images.npz", folder / "start.npz"
    split.write(split.archive(shard, seed, fewest=1.0), images)
    split.write(split.start(images, seed, NETWORK), start)
    return {
        "split": str(images),
        "start": str(start),
        "seed": seed,
        "rounds": ROUNDS,
        "local_epochs": EPOCHS,
        "batch_size": BATCH,
        "learning_rate": RATE,
        "weight": WEIGHT,
    }


def our_figures(job: Mapping[str, Any], folder: Path) -> Figures:
    """Return this app's figures for the job."""
    settings = split.training_settings(job, folder, NETWORK)
    settings |= {"method": "fedproto", "fedproto.prototype-weight": job["weight"]}
    summary = fedproto_app.run(settings, nodes=1, workers=1, progress=False).summary
    return {
        "prototypes": summary["accuracy_local"],
        "head": summary["by_inference"]["head"]["local"],
        "seconds": summary["seconds"],
    }


def peer_figures(job: Mapping[str, Any], checkout: Path) -> Figures:
    """Return PFLlib's figures for the job."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "system"
        work.mkdir()
        job_file, answered = work / "job.json", work / "result.json"
        job_file.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", PEER, str(checkout), str(job_file), str(answered)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
        result = json.loads(answered.read_text(encoding="utf-8"))
    means = {rule: statistics.fmean(result[rule]) for rule in RULES}
    return {**means, "seconds": result["seconds"]}


def mean_line(rule: str, pairs: Sequence[tuple[float, float]]) -> list[str]:
    """Return the means over the seeds, and the mean difference with its 95% interval."""
    ours, peers = zip(*pairs, strict=True)
    difference = paired(ours, peers)
    means = [f"{100 * statistics.fmean(side):.1f}" for side in (ours, peers)]
    limit = f"{100 * difference.mean:+.1f} ± {100 * difference.limit:.1f}"
    return ["mean", rule, *means, limit, UNKNOWN, UNKNOWN]


def origin(arguments: argparse.Namespace) -> str:
    """Return which runs the table summarises."""
    seeds = ",".join(map(str, arguments.seeds))
    return (
        f"`python -m {MAKER} CHECKOUT --seeds {seeds}`, {CLIENTS} clients of {IMAGES} train "
        f"images, Dirichlet α = 0.3, {ROUNDS} rounds, {EPOCHS} local epochs, batches of {BATCH}, "
        f"SGD {RATE:g}, λ = {WEIGHT:g}, PFLlib {_commit(arguments.checkout)}, fedproto-app "
        f"{fedproto_app.__version__}"
    )


def _commit(checkout: Path) -> str:
    """Return the commit of the checkout, or its folder's name without git."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or checkout.name.removeprefix("PFLlib-")


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("checkout", type=Path, help="a clone of PFLlib")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="between commas")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    arguments.checkout = arguments.checkout.resolve()
    if not (arguments.checkout / "system/flcore/servers/serverproto.py").is_file():
        parser.error(f"{arguments.checkout}: no checkout of PFLlib")
    arguments.seeds = [int(part) for part in arguments.seeds.split(",")]
    return arguments


if __name__ == "__main__":
    main()
