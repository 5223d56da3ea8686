"""``fedproto sweep``: try settings in many runs, and choose the best by validation error."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from fedproto_app.cli import results_console
from fedproto_app.cli.options import Changes
from fedproto_app.core.endings import WhenStopped, program
from fedproto_app.core.errors import SettingsError
from fedproto_app.experiments.run_settings import (
    NODES,
    changed_settings,
    given_settings,
    nearest_app,
    read_toml,
)
from fedproto_app.report.table import plural
from fedproto_app.settings.reading import flat, parsed

if TYPE_CHECKING:
    from fedproto_app.experiments.sweep import Sweep
    from fedproto_app.experiments.sweep_plan import Plan
    from fedproto_app.experiments.sweep_results import Result


def sweep(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.toml]",
            help="Settings that override the defaults. A table \\[sweep] sets the options below.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,…", help="Values to try for one setting; may be repeated."),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="KEY=LOW..HIGH[:log]",
            help="Range from which to draw values of one setting; may be repeated. If both ends "
            "are integers, so are the values. Needs --search random or optuna.",
        ),
    ] = None,
    search: Annotated[
        Literal["grid", "random", "optuna"] | None,
        typer.Option(
            help="grid: try every combination of the values. random: draw as many as --trials "
            "says. optuna: draw them based on earlier results. Default: grid."
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Number of trials to draw.")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,…", help="Seeds: each trial makes a run per seed. Default: 0."),
    ] = None,
    changes: Changes = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The sweep's folder. Default: a folder in sweeps, named after the settings.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Resume the sweep in this folder."),
    ] = None,
    extend: Annotated[
        bool,
        typer.Option("--extend", help="Allow a sweep to grow: add trials or seeds to its folder."),
    ] = False,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time; does not change results. Default: one per core."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help=f"Simulated nodes of each run. Default: {NODES}.")
    ] = None,
    search_seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the draws. Default: 0.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of trials that Optuna suggests at once. Default: 4.",
        ),
    ] = None,
) -> None:
    """Try settings on several seeds, and choose the best by validation error.

    All settings and data are checked before the first run. Runs are parallel
    processes that write into one folder. To resume a sweep that was stopped
    or killed, repeat the command, or use --resume with its folder. The final
    table is sorted by mean validation error, and shows the test error of the
    best trial only. sweep.csv, sweep.json and sweep.png show the same. Only
    the models of the best trial are kept.
    Exit code: 0 completed, 1 runs failed, 2 wrong settings or data.

    [bold]Examples[/bold]

      fedproto sweep --grid fuels.beta=10,30,100 --seeds 0,1,2
      fedproto sweep my.toml --grid method=fuels,fedavg --grid rounds=20,40
      fedproto sweep my.toml --search random --trials 20
          --range optimizer.learning-rate=1e-4..1e-2:log --range fuels.beta=5..100
      fedproto sweep my.toml --search optuna --trials 40
          --range optimizer.learning-rate=1e-4..1e-2:log --output sweeps/rates
      fedproto sweep --resume sweeps/rates
      fedproto compare sweeps/rates
    """
    from fedproto_app.experiments.sweep import FOLDER, open_sweep, read_plan

    console = Console(stderr=True, highlight=False)
    options: dict[str, object] = {
        "search": search,
        "trials": trials,
        "seeds": None if seeds is None else _seeds(seeds),
        "nodes": nodes,
        "search-seed": search_seed,
        "batch": batch,
        "output": output and str(output),
    }
    swept = {
        "grid": _by_key("--grid", grid, _listed),
        "range": _by_key("--range", ranges, str),
    }
    if resume is not None:
        options_given = [value for value in options.values() if value is not None]
        if config or changes or extend or options_given or any(swept.values()):
            raise SettingsError(
                f"--resume {resume}: the sweep continues unchanged; leave out all other options "
                "except --parallel"
            )
        plan, folder = read_plan(resume), resume
    else:
        plan = _plan(config, options, swept, changes or [])
        folder = Path(plan.output or Path(FOLDER) / plan.name)
    with WhenStopped() as stop, open_sweep(folder, plan, extend=extend) as ready:
        done, count, seed_count = ready.finished_runs(), ready.run_count, len(plan.seeds)
        console.print(
            f"{plural(count // seed_count, 'trial')} × {plural(seed_count, 'seed')} = "
            f"{plural(count, 'run')}{f', of them {done} done' if done else ''}: {ready.folder}",
            soft_wrap=True,
            markup=False,
        )
        stop.says = lambda: (
            f"stopped; {ready.finished_runs()} of {count} runs are finished; go on with: "
            f"{shlex.join(['fedproto', 'sweep', '--resume', str(ready.folder)])}"
        )
        _print_results(ready, *ready.run(parallel, console))
        ready.require_runs()


def _print_results(sweep: Sweep, results: Sequence[Result], chosen: Sequence[Result]) -> None:
    """Write the sweep's files, and print its table and the command that repeats the choice."""
    from fedproto_app.experiments.sweep_results import results_table, sweep_charts, write_results
    from fedproto_app.report.charts import write_picture

    tests = write_results(sweep.folder, sweep.plan, results, chosen)
    if charts := sweep_charts(sweep.plan, results, tests):
        write_picture(sweep.folder / "sweep.png", charts, "mean ± standard error over seeds")
    out = results_console(highlight=False)
    out.print(results_table(sweep.plan, results, tests))
    for result in chosen:
        run = result.folders[sweep.plan.seeds[0]]
        command = ["run", str(run / "settings.toml"), "--nodes", str(sweep.plan.nodes)]
        command += ["--set", "output.dir=runs", "--set", 'output.name=""']
        line = f"the choice: trial {result.trial.number}, {run.name}; to repeat it: "
        out.print(f"{line}{program()} {shlex.join(command)}", markup=False, soft_wrap=True)
    out.print(f"results: {sweep.folder}/sweep.csv, .json, .png", soft_wrap=True, markup=False)


def _plan(
    config: Path | None,
    options: Mapping[str, object],
    swept: Mapping[str, Mapping[str, object]],
    changes: Sequence[str],
) -> Plan:
    """Return the plan from the file's table ``[sweep]`` and the options, which override it."""
    from fedproto_app.experiments.sweep_plan import Plan, SweepTable

    app = nearest_app()
    file = dict(read_toml(config)) if config else {}
    listed = file.pop("sweep", {})
    if not isinstance(listed, dict):
        raise SettingsError(f"{config}: sweep = {listed!r}: must be a table")
    table = SweepTable.read(listed).model_dump(by_alias=True)
    for kind, replacing in (("grid", "range"), ("range", "grid")):
        remaining = {k: value for k, value in table[kind].items() if k not in swept[replacing]}
        table[kind] = {**remaining, **swept[kind]}
    table |= {key: value for key, value in options.items() if value is not None}

    base = {**given_settings(app, None, []), **flat(file), **changed_settings(None, changes)}
    return Plan.of(table, base)


def _by_key(
    option: str, texts: Sequence[str] | None, read: Callable[[str], Any]
) -> dict[str, object]:
    """Return the values of a repeated option ``KEY=…``. Each key may occur once."""
    table: dict[str, object] = {}
    for text in texts or []:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not (key and equals and values):
            raise SettingsError(f"{option} {text}: expected KEY=…, as in fedproto sweep --help")
        if key in table:
            raise SettingsError(f"{key}: is swept twice")
        table[key] = read(values)
    return table


def _listed(text: str) -> list[object]:
    """Parse ``A,B,C`` as a TOML list, or if it is none, parse each part on its own."""
    try:
        values: list[object] = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        return [parsed(part.strip()) for part in text.split(",")]
    return values


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise SettingsError(f"--seeds {text}: expected whole numbers, such as 0,1,2") from None
