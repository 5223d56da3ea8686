"""What honest clients pay for `aggregation.weight-limit` and `aggregation.step-limit`.

The rows that honest.toml names, shortened to a few rounds, with three seeds. A run whose
clients were neither shortened nor weighed less is the run without limits, so only others are
repeated without them.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import fedproto_app
from benchmarks.pages import ROOT, data_root, table_texts
from benchmarks.results.declared import page
from fedproto_app.report.comparison import client_errors
from fedproto_app.report.runs import Run, read_rounds, read_run
from fedproto_app.report.task_report import report_for
from fedproto_app.settings import AggregationSettings
from fedproto_app.settings.reading import flat

SEEDS = (0, 1, 2)
NO_LIMITS: Mapping[str, Any] = {"aggregation.weight-limit": 0.0, "aggregation.step-limit": 0.0}
SKEWED = 20  # clients of the digits with sizes that differ much
NOTE = (
    "Mean error over clients (MSE, or the share of wrong answers) without the limits, and its "
    "change with them: mean and standard deviation over three seeds, of the result pages' "
    "experiments in fewer rounds. {command}, {machine}."
)
Job = tuple["Case", int]  # and a seed


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    title: str
    method: str
    settings: Mapping[str, Any] = field(hash=False)


class Cost(NamedTuple):
    """What the limits did to a run.

    shortened, updates: how many updates were shortened, of how many. lighter, clients: how many
    clients counted with less than their samples. limited, free: the mean error with the limits and
    without.
    """

    shortened: int
    updates: int
    lighter: int
    clients: int
    limited: float
    free: float


def cases() -> Iterator[Case]:
    """Yield the rows of the table, without those whose data are absent."""
    declared = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for part in declared["parts"]:
        page_name, _, name = part["table"].partition("/")
        shown = page(page_name).tables[name]
        if not shown.is_possible:
            continue
        config = tomllib.loads((ROOT / "configs" / shown.config).read_text(encoding="utf-8"))
        path = {"data.path": str(data_root() / shown.data)} if shown.data else {}
        for row in part["rows"]:
            settings = {**flat(config), **path, **shown.rows[row].changes, **flat(part["settings"])}
            settings["patience"] = 0
            yield Case(part["title"], row.removeprefix("lstm-"), settings)


def skewed_digits(folder: Path, seed: int) -> Path:
    """Write the digits, dealt to clients of log-normal sizes with other mixes of classes."""
    rng = np.random.default_rng([seed, SKEWED])
    sizes = rng.lognormal(size=(SKEWED, 1)) * rng.dirichlet(np.full(10, 0.5), SKEWED)
    shares = 0.97 * sizes / sizes.sum(axis=0) + 0.03 / SKEWED
    images, labels = load_digits(return_X_y=True)
    owners = np.array([rng.choice(SKEWED, p=shares[:, label]) for label in labels])
    arrays: dict[str, NDArray[Any]] = {}
    is_test = rng.random(len(labels)) < 0.2
    for split, rows in (("train", ~is_test), ("test", is_test)):
        pixels = np.rint(images[rows] * 255 / 16).astype(np.uint8).reshape(-1, 1, 8, 8)
        arrays[f"x_{split}"], arrays[f"y_{split}"] = pixels, labels[rows]
        arrays[f"client_{split}"] = np.array([f"client-{owner:02d}" for owner in owners[rows]])
    np.savez(folder / "digits.npz", allow_pickle=False, **arrays)
    return folder / "digits.npz"


def jobs() -> list[Job]:
    return [(case, seed) for case in cases() for seed in SEEDS]


def cost_of(job: Job) -> Cost:
    """Run a case and a seed with the limits, and without if they did anything."""
    case, seed = job
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        more = {"seed": seed, "output.dir": place, "output.pictures": False}
        if case.settings["data.source"] == "image-npz":
            more["data.path"] = str(skewed_digits(Path(place), seed))

        def error_of(name: str, limits: Mapping[str, Any]) -> tuple[float, Run]:
            settings = {**case.settings, **more, **limits, "output.name": name}
            done = fedproto_app.run(settings, progress=False, workers=1)
            run = read_run(done.path)
            metrics = report_for(run.task).metrics
            errors = client_errors(run, metrics, metrics.kept)
            return fmean(error.test for error in errors.values()), run

        limited, run = error_of("limited", {})
        rounds = read_rounds(run.folder)
        samples = run.clients["samples"].astype(int).tolist()
        limit = AggregationSettings().most_samples(samples)
        shortened = sum(line["shortened"] for line in rounds)
        lighter = sum(count > limit for count in samples)
        free = error_of("free", NO_LIMITS)[0] if shortened or lighter else limited
    return Cost(
        shortened, sum(line["clients"] for line in rounds), lighter, len(samples), limited, free
    )


def table(costs: Mapping[Job, Cost]) -> list[str]:
    """Return a line for each case, of its costs with the seeds."""
    by_case: dict[Case, list[Cost]] = {}
    for (case, _), cost in costs.items():
        by_case.setdefault(case, []).append(cost)
    titles = ["data", "method", "updates shortened", "clients weighed less", "error", "with limits"]
    lines = [titles]
    last = ""
    for case, by_seed in by_case.items():
        updates = 100 * sum(c.shortened for c in by_seed) / sum(c.updates for c in by_seed)
        clients = 100 * sum(c.lighter for c in by_seed) / sum(c.clients for c in by_seed)
        changes = [100 * (c.limited / c.free - 1) for c in by_seed]
        spread = f" ± {stdev(changes):.1f}" if any(changes) else ""
        change = f"{fmean(changes):+.1f}%{spread}" if any(changes) else "the same"
        title = case.title if case.title != last else ""
        error = f"{fmean(c.free for c in by_seed):.3g}"
        cells = [title, f"`{case.method}`", f"{updates:.1f}%", f"{clients:.1f}%", error, change]
        lines.append(cells)
        last = case.title
    return table_texts(lines, texts=2)
