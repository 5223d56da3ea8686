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
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import Progress

from benchmarks.result_runs import ROOT, Changes, Job, data_root, run_all, write_section
from fedproto_app.report.runs import Group, find_runs, read_clients

PAGE = ROOT / "docs" / "results" / "forecasting.md"
SEEDS = (0, 1, 2)
FILES = {
    "milano": "milano_internet_hourly.csv.gz",
    "electricity": "electricity_2014_hourly.csv.gz",
    "m4": "m4_hourly.csv.gz",
}
METHODS = ("fuels", "solo", "fedavg", "fedprox", "fedrep", "fedproto")

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


def methods(dataset: str) -> dict[str, list[Job]]:
    """The rows of the table: all methods at their defaults; on the smallest dataset FUELS's
    ablations too."""
    rows: dict[str, Changes] = {name: {"method": name} for name in METHODS}
    if dataset == "milano":
        rows |= ABLATIONS
    return {row: _seeds(row, dataset, changes) for row, changes in rows.items()}


def _seeds(row: str, dataset: str, changes: Changes) -> list[Job]:
    stem = f"{dataset}-{re.sub(r'[^a-z0-9]+', '-', row)}"
    path, config = data_root() / FILES[dataset], f"fuels-{dataset}.toml"
    return [
        Job(f"{stem}-s{seed}", config, {"data.path": path, "seed": seed, **changes})
        for seed in SEEDS
    ]


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


def report(dataset: str, output: Path, parallel: int, progress: Progress) -> list[str]:
    """Run everything about one dataset; its section of the page."""
    rows = methods(dataset)
    grid = {row: _seeds(row, dataset, changes) for row, changes in GRID.items()}
    first = [jobs[0] for row, jobs in grid.items() if row not in rows]
    jobs = [*(job for jobs in rows.values() for job in jobs), *first]
    run_all(dataset, jobs, output, parallel, progress)
    errors = {row: validation_error(jobs[0], output) for row, jobs in grid.items()}
    best = min(errors, key=lambda row: errors[row])
    run_all(dataset, grid[best], output, parallel, progress)
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
        write_section(PAGE, dataset, "make results", lines)


if __name__ == "__main__":
    main()
