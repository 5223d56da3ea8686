"""The tables of docs/results/forecasting.md: every method, three seeds, real series.

    python -m benchmarks.forecasting_results            # = make results
    python -m benchmarks.forecasting_results milano     # one dataset

Each row is a `fedproto run`; finished runs in the output folder are not repeated, so the command
can be interrupted. FUELS has two rows: as published (ρ = 5, τ = 0.02), and with ρ and τ chosen by
the validation error of seed 0. Test errors choose nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import Progress

from fedproto_app.report.runs import Group, find_runs, read_clients
from fedproto_app.settings import METHOD_NAMES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "forecasting.md"
SEEDS = (0, 1, 2)
FILES = {
    "milano": "milano_internet_hourly.csv.gz",
    "electricity": "electricity_2014_hourly.csv.gz",
    "m4": "m4_hourly.csv.gz",
}
GRID = [
    {"fuels.inter-weight": rho, "fuels.temperature": tau}
    for rho, tau in ((5, 0.02), (5, 0.1), (1, 0.1), (1, 0.5))
]
ABLATIONS = {
    "fuels w/o inter": {"fuels.inter": "false"},
    "fuels w/o intra": {"fuels.intra": "false"},
    "fuels w/o W": {"fuels.learn-filter": "false"},
}

Changes = Mapping[str, object]


@dataclass(frozen=True)
class Job:
    """One run: its row in the table, dataset, seed and settings."""

    row: str
    dataset: str
    seed: int
    changes: Changes = field(default_factory=dict)

    @property
    def name(self) -> str:
        row = re.sub(r"[^a-z0-9]+", "-", self.row)
        return f"{self.dataset}-{row}-s{self.seed}"


def data_root() -> Path:
    """Where the real data lies: FEDPROTO_DATA, by default a sibling of the repository."""
    return Path(os.environ.get("FEDPROTO_DATA", ROOT.parent / "shared" / "data"))


def methods(dataset: str) -> list[Job]:
    """All methods at their defaults; the ablations on the smallest dataset alone."""
    rows: dict[str, Changes] = {name: {"method": name} for name in METHOD_NAMES}
    if dataset == "milano":
        rows |= ABLATIONS
    return [Job(row, dataset, s, changes) for row, changes in rows.items() for s in SEEDS]


def grid(dataset: str) -> list[Job]:
    """Seed 0 of FUELS at every ρ and τ tried."""
    return [Job(_grid_row(point), dataset, SEEDS[0], point) for point in GRID]


def _grid_row(point: Changes) -> str:
    return f"grid rho {point['fuels.inter-weight']} tau {point['fuels.temperature']}"


def run(job: Job, output: Path) -> None:
    """`fedproto run` of the job, unless its folder is there and finished."""
    folder = output / job.name
    if (folder / "summary.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    settings = {
        "data.path": data_root() / FILES[job.dataset],
        "seed": job.seed,
        "output.dir": output,
        "output.name": job.name,
        "output.pictures": "false",
        **job.changes,
    }
    changes = [part for k, v in settings.items() for part in ("--set", f"{k}={v}")]
    config = ROOT / "configs" / f"fuels-{job.dataset}.toml"
    fedproto = Path(sys.executable).with_name("fedproto")
    command = [fedproto, "run", config, "--app", ROOT, "--nodes", "1", "--quiet", *changes]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{job.name} failed:\n{done.stderr}")
    shutil.rmtree(folder / "state", ignore_errors=True)  # gigabytes over all runs


def run_all(jobs: Sequence[Job], output: Path, parallel: int, progress: Progress) -> None:
    """The jobs, several at a time: each is one node on one core."""
    task = progress.add_task(jobs[0].dataset, total=len(jobs))
    with ThreadPoolExecutor(parallel) as pool:
        for _ in pool.map(lambda job: run(job, output), jobs):
            progress.advance(task)


def validation_error(job: Job, output: Path) -> float:
    """The mean validation error of the kept models."""
    return fmean(float(row["validation_mse"]) for row in read_clients(output / job.name))


def table(jobs: Iterable[Job], output: Path) -> list[str]:
    """Markdown rows, best test error first."""
    rows: dict[str, list[Path]] = {}
    for job in jobs:
        rows.setdefault(job.row, []).append(output / job.name)
    lines = []
    for row, folders in rows.items():
        group = Group(tuple(find_runs(folders)[0]))
        mse, mae = group.spread("mse"), group.spread("mae")
        last, up = group.spread("last_mse"), group.spread("parameters_up_per_client_round")
        seconds = group.spread("seconds")
        text = (
            f"| {row} | {mse.mean:.4f} ± {mse.std:.4f} | {mae.mean:.4f} ± {mae.std:.4f} "
            f"| {last.mean:.4f} | {up.mean:,.0f} | {seconds.mean:.0f} |"
        )
        lines.append((mse.mean or 0.0, text))
    return [
        "| method | test MSE | test MAE | last model's MSE | parameters up | seconds a run |",
        "|---|---|---|---|---|---|",
        *(text for _, text in sorted(lines)),
    ]


def write_section(name: str, lines: Sequence[str]) -> None:
    """Replace the part of the page between the section's markers."""
    begin, end = f"<!-- {name}: written by make results -->", f"<!-- /{name} -->"
    page = PAGE.read_text()
    before, rest = page.split(begin)
    _, after = rest.split(end)
    PAGE.write_text("\n".join([before + begin, *lines, end]) + after)


def report(dataset: str, output: Path, parallel: int, progress: Progress) -> list[str]:
    """Run everything about one dataset; its section of the page."""
    start = time.monotonic()
    run_all([*methods(dataset), *grid(dataset)], output, parallel, progress)
    errors = {
        validation_error(job, output): point for job, point in zip(grid(dataset), GRID, strict=True)
    }
    best = errors[min(errors)]
    rho, tau = best["fuels.inter-weight"], best["fuels.temperature"]
    row = f"fuels, ρ = {rho:g}, τ = {tau:g} (chosen on validation)"
    chosen = [Job(row, dataset, seed, best) for seed in SEEDS]
    run_all(chosen, output, parallel, progress)
    minutes = (time.monotonic() - start) / 60
    finished = find_runs([output / chosen[0].name])[0][0].summary
    tried = ", ".join(
        f"ρ = {p['fuels.inter-weight']:g}, τ = {p['fuels.temperature']:g}: {e:.4f}"
        for e, p in errors.items()
    )
    versions = ", ".join(f"{k} {v}" for k, v in finished["versions"].items())
    return [
        *table([*methods(dataset), *chosen], output),
        "",
        f"{finished['clients']} clients, at most {finished['rounds']} rounds, seeds "
        f"{', '.join(map(str, SEEDS))}, mean ± sample standard deviation over seeds; {versions}; "
        f"{minutes:.0f} minutes for what was run in this call.",
        "",
        f"Validation error of FUELS, seed 0: {tried}.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", metavar="DATASET", help=", ".join(FILES))
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "results")
    parser.add_argument("--parallel", type=int, default=max(1, (os.cpu_count() or 1)))
    arguments = parser.parse_args()
    console = Console()
    for dataset in arguments.datasets or FILES:
        if dataset not in FILES:
            parser.error(f"unknown dataset {dataset!r}; known: {', '.join(FILES)}")
        if not (data_root() / FILES[dataset]).exists():
            console.print(f"skipped {dataset}: {data_root() / FILES[dataset]} is not there")
            continue
        with Progress(*Progress.get_default_columns(), console=console) as progress:
            lines = report(dataset, arguments.output.resolve(), arguments.parallel, progress)
        console.print("\n".join(lines), markup=False)
        write_section(dataset, lines)


if __name__ == "__main__":
    main()
