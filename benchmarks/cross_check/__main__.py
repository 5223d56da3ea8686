"""Compare this app's methods with fluke's on the same split of images, table by table.

    python -m benchmarks.cross_check --python PATH [batches] [full] [--page]

fluke lives in an environment of its own, whose Python --python names. It is no dependency. To make
one, with the torch that this app has:

    python3.11 -m venv cross && . cross/bin/activate
    pip install torch==2.13.0             # or the file of a build for the CPU
    pip install --no-deps fluke-fl==0.8.1
    pip install numpy rich omegaconf pandas psutil torchmetrics diskcache cerberus scikit-learn \\
        matplotlib seaborn

fluke's other dependencies (torchvision, wandb, clearml, opacus, datasets) belong to parts of it
that nothing here uses.

Both sides read one archive of images for each seed, start from the same parameters, and train the
same module with plain SGD. `batches`: both draw their own batches, so only means can agree. `full`:
a batch is all that a client has, so nothing is drawn and every client must have the same accuracy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedproto_app
from benchmarks.cross_check import split
from benchmarks.cross_check.comparison import Figures, equality_table, spread_table
from benchmarks.cross_check.methods import METHODS, OUR_COLUMNS, Changes, Judged, Method, filled
from benchmarks.pages import ROOT, Shown, made_today, publish, table_texts, with_origin
from benchmarks.parts import parser_of, require_names

PAGE = ROOT / "docs" / "results" / "cross-check.md"
MAKER = "benchmarks.cross_check"
PEER = "benchmarks.cross_check.fluke_peer"
NODES = 2

# A seed's accuracies by method and model, one per client in the order of their names.
Accuracies = Mapping[str, Mapping[Judged, Sequence[float]]]


@dataclass(frozen=True)
class Experiment:
    """One table. batch_size: 0 for all images of a client."""

    seeds: tuple[int, ...]
    rounds: int
    local_epochs: int
    batch_size: int
    learning_rate: float
    clients: int = 10

    @property
    def methods(self) -> list[Method]:
        """Return the methods, only those without randomness if the experiment has none."""
        return [method for method in METHODS if self.batch_size or not method.draws]

    def filled(self, changes: Changes) -> dict[str, Any]:
        return filled(changes, self.local_epochs, self.learning_rate)


EXPERIMENTS = {
    "batches": Experiment(tuple(range(20)), 6, 2, batch_size=32, learning_rate=0.1),
    "full": Experiment((0, 1, 2), 4, 10, batch_size=0, learning_rate=0.1),
}


SHOWN = {
    "batches": Shown(
        rows=[
            "FedAvg, averaged model",
            "APFL, mixture, mended",
            "Per-FedAvg, after a step, mended",
            "pFedMe, personal model, mended",
            "APFL, mixture, as it is",
            "pFedMe, personal model, as it is",
        ],
        columns=("ours %", "fluke 0.8.1 %", "difference", "95% interval"),
    ),
    "full": Shown(columns=()),
}


def main() -> None:
    arguments = _arguments()
    for name in arguments.experiments:
        experiment = EXPERIMENTS[name]
        with tempfile.TemporaryDirectory() as folder:
            jobs = [job(experiment, seed, Path(folder)) for seed in experiment.seeds]
            peer = peer_results(jobs, arguments.python, Path(folder))
            peer_figures = _by_row(peer["results"])
            ours = _by_row([our_results(experiment, job, Path(folder)) for job in jobs])
        table = spread_table if experiment.batch_size else equality_table
        lines = table(ours, peer_figures, peer["peer"])
        print(*table_texts(lines), footnote(name, experiment, peer), sep="\n")
        if arguments.page:
            origin = footnote(name, experiment, peer), made_today()
            publish(PAGE, name, MAKER, with_origin(lines, *origin), SHOWN[name])


def job(experiment: Experiment, seed: int, folder: Path) -> dict[str, Any]:
    """Write the archives of a seed, and return the job for both sides."""
    archive = split.archive(split.deal(experiment.clients, seed), seed)
    images, start = folder / f"images-s{seed}.npz", folder / f"start-s{seed}.npz"
    split.write(archive, images)
    split.write(split.start(images, seed), start)
    methods = [
        {
            "name": method.name,
            "algorithm": method.algorithm,
            "client": experiment.filled(method.client),
            "server": dict(method.server),
        }
        for method in experiment.methods
    ]
    return {
        "split": str(images),
        "start": str(start),
        "seed": seed,
        "rounds": experiment.rounds,
        "local_epochs": experiment.local_epochs,
        "batch_size": experiment.batch_size or split.largest_client(archive),
        "learning_rate": experiment.learning_rate,
        "methods": methods,
    }


def peer_results(jobs: Sequence[Mapping[str, Any]], python: Path, folder: Path) -> dict[str, Any]:
    """Run fluke, and return its version, and for each job the clients' accuracies by method."""
    jobs_file, answered = folder / "jobs.json", folder / "results.json"
    jobs_file.write_text(json.dumps(jobs), encoding="utf-8")
    command = [str(python), "-m", PEER, str(jobs_file), str(answered)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    results: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    return results


def our_results(experiment: Experiment, job: Mapping[str, Any], folder: Path) -> Accuracies:
    """Run this app's methods on the job, and return the clients' accuracies by method."""
    trained: dict[str, dict[Judged, list[float]]] = {}
    results = {}
    for method in experiment.methods:
        changes = experiment.filled(method.ours)
        key = json.dumps(changes)  # two rows may have one run of ours
        if key not in trained:
            trained[key] = _our_run(method.name, changes, job, folder)
        results[method.name] = trained[key]
    return results


def _our_run(
    name: str, changes: Changes, job: Mapping[str, Any], folder: Path
) -> dict[Judged, list[float]]:
    settings = split.training_settings(job, folder)
    settings |= {"output.name": f"{name}-s{job['seed']}", **changes}
    run = fedproto_app.run(settings, nodes=NODES, workers=1, progress=False)
    clients = run.clients.sort_values("client")
    return {judged: clients[column].tolist() for judged, column in OUR_COLUMNS.items()}


def _by_row(results: Sequence[Accuracies]) -> Figures:
    """Return the seeds' results by method and model, each a list over the seeds."""
    return {
        (method, judged): [seed[method][judged] for seed in results]
        for method, by_judged in results[0].items()
        for judged in by_judged
    }


def footnote(name: str, experiment: Experiment, peer: Mapping[str, Any]) -> str:
    """Return the note on how the table was made."""
    batch = f"of {experiment.batch_size}" if experiment.batch_size else "of all images of a client"
    return (
        f"`python -m {MAKER} --python PATH {name}`, {experiment.clients} clients, "
        f"{experiment.rounds} rounds, {experiment.local_epochs} local epochs, batches {batch}, "
        f"learning rate {experiment.learning_rate:g}, seeds "
        f"{min(experiment.seeds)} to {max(experiment.seeds)}, {peer['peer']}, torch {peer['torch']}"
    )


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("experiments", nargs="*", metavar="TABLE", help=", ".join(EXPERIMENTS))
    parser.add_argument("--python", type=Path, required=True, help="of fluke's environment")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    require_names(parser, arguments.experiments, EXPERIMENTS, "table")
    if not arguments.python.is_file():
        parser.error(f"--python {arguments.python}: no file")
    arguments.python = arguments.python.absolute()  # not resolved: a link makes the environment
    arguments.experiments = arguments.experiments or list(EXPERIMENTS)
    return arguments


if __name__ == "__main__":
    main()
