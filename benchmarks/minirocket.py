"""MiniRocket beside the closed forms on the ten sets of a section of docs/results/sequences.md.

    python -m benchmarks.minirocket [--section drawn] [--seeds 2 3 4]    # needs the package aeon

MiniRocket with 10,000 kernels and a ridge classifier whose penalty is chosen by leaving one
sequence out: for each client alone, and for all clients' sequences in one place. Both learn from
the train and validation sequences of the app's own runs, as closed forms do. The sequences are
scaled as the clients scale them and drawn out to the longest of the set. Each cell is the mean of
the clients' accuracies and of the seeds.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import ROOT, data_root, print_table
from benchmarks.parts import parser_of
from benchmarks.results.declared import Table, page
from fedproto_app.data.sequences.clients import ClientSequences, LabelledSequences
from fedproto_app.settings import settings_from
from fedproto_app.settings.reading import flat
from fedproto_app.tasks.sequences.clients import load_shard

SHORTEST = 16  # steps. MiniRocket needs nine
PENALTIES = np.logspace(-3, 3, 10)

Labelled = tuple[NDArray[np.float32], NDArray[np.int64]]  # [n, d, T], [n]


def clients_of(table: Table, seed: int) -> list[ClientSequences]:
    """Return the clients of the table's first row."""
    [row, *_] = table.rows.values()
    job = row.job(table, seed, Path())
    config = flat(tomllib.loads((ROOT / "configs" / job.config).read_text(encoding="utf-8")))
    path = str(job.changes["data.path"])
    shard = load_shard(settings_from({**config, **job.changes, "data.path": path}), 0, 1)
    clients = list(shard.clients.values())
    assert all(isinstance(client, ClientSequences) for client in clients)
    return clients  # type: ignore[return-value]


def drawn_out(parts: Iterable[LabelledSequences], length: int) -> Labelled:
    """Return all sequences of the parts, interpolated to this length."""
    places = np.linspace(0, 1, length)
    values = [
        [np.interp(places, np.linspace(0, 1, len(steps)), column) for column in steps.T]
        for part in parts
        for steps in part.values
    ]
    targets = np.concatenate([part.targets for part in parts])
    return np.array(values, dtype=np.float32), targets.astype(np.int64)


def accuracies(train: Labelled, tests: Sequence[Labelled], seed: int) -> list[float]:
    """Return the accuracy on each test part of MiniRocket that learned from the train part."""
    from aeon.transformations.collection.convolution_based import MiniRocket
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    values, targets = train
    if len(set(targets)) == 1:
        return [float((labels == targets[0]).mean()) for _, labels in tests]
    model = make_pipeline(
        MiniRocket(random_state=seed), StandardScaler(), RidgeClassifierCV(alphas=PENALTIES)
    )
    model.fit(values, targets)
    return [float(model.score(*test)) for test in tests]


def mean_accuracies(table: Table, seed: int) -> tuple[float, float]:
    """Return the mean accuracy of local models, and of the model of all in one place."""
    clients = clients_of(table, seed)
    everything = [part for c in clients for part in (c.train, c.validation, c.test)]
    length = max(SHORTEST, *(len(steps) for part in everything for steps in part.values))
    learned = [drawn_out((client.train, client.validation), length) for client in clients]
    tests = [drawn_out((client.test,), length) for client in clients]
    local = [accuracies(train, [test], seed)[0] for train, test in zip(learned, tests, strict=True)]
    values, targets = (np.concatenate(parts) for parts in zip(*learned, strict=True))
    return float(np.mean(local)), float(np.mean(accuracies((values, targets), tests, seed)))


def main() -> None:
    """Print a line for each set, and the means."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[2], metavar="SEED")
    parser.add_argument("--section", choices=["archive", "drawn"], default="archive")
    options = parser.parse_args()
    if not data_root().is_dir():
        parser.error(f"FEDPROTO_DATA: no folder {data_root()}")
    sequences = page("sequences")
    lines, figures = [["set", "local", "all in one place"]], []
    for title, (_, name) in sequences.sections[options.section].tables.items():
        table = sequences.tables[name]
        cells = np.mean([mean_accuracies(table, seed) for seed in options.seeds], axis=0)
        figures.append(cells)
        lines.append([title, *(f"{100 * cell:.1f}" for cell in cells)])
        print(*lines[-1], file=sys.stderr, flush=True)
    lines.append(["mean", *(f"{100 * cell:.1f}" for cell in np.mean(figures, axis=0))])
    print_table(lines)


if __name__ == "__main__":
    main()
