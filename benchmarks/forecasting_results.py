"""The tables of docs/results/forecasting.md: every method, three seeds, real series.

    python -m benchmarks.forecasting_results            # = make results
    python -m benchmarks.forecasting_results milano     # one dataset

Each row is a `fedproto run`; finished runs in the output folder are not repeated, so the command
can be interrupted; delete a run's folder to repeat it. FUELS has a row as published (ρ = 5,
τ = 0.02) and one with ρ, τ and its losses chosen by the validation error of seed 0. Test errors
choose nothing; the other methods stand at their published settings.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
Changes = Mapping[str, object]

ABLATIONS: dict[str, Changes] = {
    "fuels w/o inter": {"fuels.inter": "false"},
    "fuels w/o intra": {"fuels.intra": "false"},
    "fuels w/o W": {"fuels.learn-filter": "false"},
    "fuels w/o p-aware": {"fuels.periodicity-aware": "false"},
}
# What FUELS may choose from by validation error; the first point is its default.
GRID: dict[str, Changes] = {
    "fuels": {"method": "fuels"},
    **{
        f"fuels, ρ = {rho}, τ = {tau}": {"fuels.inter-weight": rho, "fuels.temperature": tau}
        for rho, tau in ((5, 0.1), (1, 0.1), (1, 0.5))
    },
    "fuels w/o intra": ABLATIONS["fuels w/o intra"],
}


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


def methods(dataset: str) -> dict[str, list[Job]]:
    """The rows of the table: all methods at their defaults; on the smallest dataset FUELS's
    ablations too."""
    rows: dict[str, Changes] = {name: {"method": name} for name in METHOD_NAMES}
    if dataset == "milano":
        rows |= ABLATIONS
    return {row: _seeds(row, dataset, changes) for row, changes in rows.items()}


def _seeds(row: str, dataset: str, changes: Changes) -> list[Job]:
    return [Job(row, dataset, seed, changes) for seed in SEEDS]


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
    task = progress.add_task(f"{jobs[0].dataset}, {len(jobs)} runs", total=len(jobs))
    with ThreadPoolExecutor(parallel) as pool:
        for _ in pool.map(lambda job: run(job, output), jobs):
            progress.advance(task)


def validation_error(job: Job, output: Path) -> float:
    """The mean validation error of the kept models."""
    return fmean(float(row["validation_mse"]) for row in read_clients(output / job.name))


def table(rows: Mapping[str, Sequence[Job]], output: Path) -> list[str]:
    """Markdown rows, best test error first."""
    lines = []
    for row, jobs in rows.items():
        group = Group(tuple(find_runs([output / job.name for job in jobs])[0]))
        mse, mae = group.spread("mse"), group.spread("mae")
        last, up = group.spread("last_mse"), group.spread("parameters_up_per_client_round")
        text = (
            f"| {row} | {mse.mean:.4f} ± {mse.std:.4f} | {mae.mean:.4f} ± {mae.std:.4f} "
            f"| {last.mean:.4f} ± {last.std:.4f} | {up.mean:,.0f} |"
        )
        lines.append((mse.mean or 0.0, text))
    return [
        "| method | test MSE | test MAE | last model's MSE | parameters up |",
        "|---|---|---|---|---|",
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
    rows = methods(dataset)
    grid = {row: _seeds(row, dataset, changes) for row, changes in GRID.items()}
    first = [jobs[0] for row, jobs in grid.items() if row not in rows]
    run_all([*(job for jobs in rows.values() for job in jobs), *first], output, parallel, progress)
    errors = {row: validation_error(jobs[0], output) for row, jobs in grid.items()}
    best = min(errors, key=lambda row: errors[row])
    run_all(grid[best], output, parallel, progress)
    rows.pop(best, None)
    rows[f"**{best}** (chosen on validation)"] = grid[best]
    jobs = [*(job for jobs in rows.values() for job in jobs), *first]
    summaries = [run.summary for run in find_runs([output / job.name for job in jobs])[0]]
    summary, minutes = summaries[0], sum(each["seconds"] for each in summaries) / 60
    tried = "; ".join(f"{row}: {error:.4f}" for row, error in errors.items())
    versions = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    return [
        *table(rows, output),
        "",
        f"{summary['clients']} clients, {summary['rounds']} rounds, seeds "
        f"{', '.join(map(str, SEEDS))}: mean ± sample standard deviation. Validation error of "
        f"FUELS, seed 0: {tried}. {versions}. {len(summaries)} runs, {minutes:.0f} minutes of one "
        "core.",
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
