"""``fedproto sweep``: many runs, and the settings to choose by validation error."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedproto_app.core.endings import WhenStopped
from fedproto_app.core.errors import FederationError, SettingsError, did_you_mean
from fedproto_app.core.run_lock import LOCK
from fedproto_app.experiments.run_settings import (
    NODES,
    given_settings,
    nearest_app,
    read_toml,
    told,
    unclaimed_settings,
)
from fedproto_app.experiments.sweep.axes import (
    Axis,
    grid_option,
    range_axis,
    range_option,
    values_axis,
)
from fedproto_app.experiments.sweep.plan import SEARCHES, Plan, read_plan, require_plan
from fedproto_app.report.runs import flat

_TABLE = "sweep"  # of a configuration file
_KEYS = ("grid", "range", "search", "trials", "seeds", "nodes", "search-seed", "batch", "output")
_FOLDER = "sweeps"
_BATCH = 4


class SearchName(StrEnum):
    """How trials are found."""

    grid = "grid"
    random = "random"
    optuna = "optuna"


def sweep(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.toml]",
            help="Settings over the defaults; its table \\[sweep] may say what the options say.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,…", help="Values of one setting; may be repeated."),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="KEY=LOW..HIGH[:log]",
            help="Numbers to draw one setting from, whole ones between whole ends; may be "
            "repeated. With --search random or optuna.",
        ),
    ] = None,
    search: Annotated[
        SearchName | None,
        typer.Option(
            help="grid: every combination of the values. random: --trials of them are drawn. "
            "optuna: drawn by what came of the last ones; needs pip install "
            '"fedproto-app\\[sweep]". Default: grid.'
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="How many to draw.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,…", help="A run of each trial for each. Default: 0.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting that all runs have."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help=f"The sweep's folder. Default: one in {_FOLDER}, by what is swept."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go on with the sweep in this folder, as it was told."),
    ] = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="Let the folder's sweep get more trials or seeds.")
    ] = False,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time; changes no result. Default: one for each core."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help=f"Simulated nodes of each run. Default: {NODES}.")
    ] = None,
    search_seed: Annotated[
        int | None, typer.Option(min=0, help="Of what is drawn. Default: 0.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Trials that Optuna suggests before it hears of the first of them. "
            f"Default: {_BATCH}.",
        ),
    ] = None,
) -> None:
    """Try settings on several seeds, and choose by validation error.

    All is checked before anything starts. The runs are processes beside each
    other, and lie in one folder with the plan. Stopped or killed, the sweep
    goes on by the same command, or by --resume with its folder. In the end
    it prints the trials, the lowest mean validation error first, and the
    test error of that one alone; sweep.csv, sweep.json and sweep.png say the
    same. Models of other trials are removed as better ones are found.
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
    from fedproto_app.experiments.sweep.conduct import lock, prepared
    from fedproto_app.experiments.sweep.writing import results_table, write_results

    console = Console(stderr=True, highlight=False)
    if resume is not None:
        given = (config, grid, ranges, search, trials, seeds, changes, output, nodes, batch)
        if any(one is not None for one in given) or search_seed is not None or extend:
            raise SettingsError(
                f"--resume {resume}: goes on as it was told; only --parallel may be given"
            )
        plan, folder = read_plan(resume)[0], resume
    else:
        table = _table_of(config)
        options = {
            "search": search and str(search),
            "trials": trials,
            "seeds": None if seeds is None else _seeds(seeds),
            "nodes": nodes,
            "search-seed": search_seed,
            "batch": batch,
        }
        table |= {key: value for key, value in options.items() if value is not None}
        axes = {axis.key: axis for axis in _axes_of(table)}
        axes |= {axis.key: axis for axis in _axes_given(grid or [], ranges or [])}
        plan = _plan(table, tuple(axes.values()), _base(config, changes or []))
        require_plan(plan)
        place = table.get("output", str(Path(_FOLDER) / _default_name(plan)))
        if not isinstance(place, str):
            raise SettingsError(f"{_TABLE}.output = {place!r}: must be a folder's path")
        folder = output or Path(place)
    folder = folder.expanduser().absolute()
    with WhenStopped() as stop, lock(folder):
        with _removed_if_nothing_came(folder):
            ready = prepared(folder, plan, extend)
        done = ready.finished_runs()
        console.print(
            f"{_counted(ready.runs // len(plan.seeds), 'trial')} × "
            f"{_counted(len(plan.seeds), 'seed')} = {_counted(ready.runs, 'run')}"
            + (f", of them {done} done" if done else "")
            + f": {folder}",
            soft_wrap=True,
        )
        stop.says = lambda: (
            f"stopped; {ready.finished_runs()} of {ready.runs} runs are finished; go on with: "
            f"{shlex.join(['fedproto', 'sweep', '--resume', str(folder)])}"
        )
        results, best = ready.run(parallel, console)
        tests = write_results(folder, plan, results, best)
        out = Console()
        if not out.is_terminal:
            out.width = 200
        out.print(results_table(plan, results, tests))
        for one in best:
            run = one.folders[plan.seeds[0]]
            again = ["fedproto", "run", str(run / "settings.toml"), "--nodes", str(plan.nodes)]
            again += ["--set", "output.dir=runs", "--set", 'output.name=""']
            out.print(
                f"the choice: trial {one.trial.number}, {run.name}; once more: {shlex.join(again)}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        out.print(f"results: {folder}/sweep.csv, .json, .png", highlight=False, soft_wrap=True)
        if ready.failed:
            name, reason = next(iter(ready.failed.items()))
            raise FederationError(
                f"{len(ready.failed)} of {ready.runs} runs failed, {name}: {reason}; "
                "the same command tries them again"
            )


def _base(config: Path | None, changes: Sequence[str]) -> dict[str, Any]:
    """What all runs are told: by the app around, the file, and ``--set``; with absolute paths."""
    app = nearest_app()
    table = dict(read_toml(config)) if config else {}
    table.pop(_TABLE, None)
    base = {**given_settings(app, None, []), **flat(table), **told(None, changes)}
    complete = unclaimed_settings(base, NODES)
    for key, path in (("data.path", complete.data.path), ("encoder.path", complete.encoder.path)):
        if base.get(key):
            base[key] = path
    for key in ("seed", "output.dir", "output.name", "output.resume", "output.pictures"):
        base.pop(key, None)
    return base


def _table_of(config: Path | None) -> dict[str, Any]:
    """The file's table [sweep]."""
    table = read_toml(config).get(_TABLE, {}) if config else {}
    if not isinstance(table, Mapping):
        raise SettingsError(f"{config}: {_TABLE} = {table!r}: must be a table")
    for key in table:
        if key not in _KEYS:
            raise SettingsError(
                f"{config}: {_TABLE}.{key}: unknown; {did_you_mean(key, _KEYS)}known: "
                f"{', '.join(_KEYS)}"
            )
    return dict(table)


def _axes_of(table: Mapping[str, Any]) -> list[Axis]:
    """The tables [sweep.grid] and [sweep.range]."""
    axes: list[Axis] = []
    for name, make in (("grid", values_axis), ("range", range_axis)):
        given = table.get(name, {})
        if not isinstance(given, Mapping):
            raise SettingsError(f"{_TABLE}.{name} = {given!r}: must be a table of settings")
        axes += [
            make(key, value, f"{_TABLE}.{name}.{key} = {value!r}")
            for key, value in flat(given).items()
        ]
    return axes


def _axes_given(grid: Sequence[str], ranges: Sequence[str]) -> list[Axis]:
    axes: list[Axis] = [*map(grid_option, grid), *map(range_option, ranges)]
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise SettingsError(f"{key}: is swept twice")
    return axes


def _plan(table: Mapping[str, Any], axes: tuple[Axis, ...], base: Mapping[str, Any]) -> Plan:
    search = table.get("search", "grid")
    if search not in SEARCHES:
        near = did_you_mean(str(search), SEARCHES)
        raise SettingsError(f"search = {search!r}: {near}must be one of {', '.join(SEARCHES)}")
    whole = {}
    for key, default, least in (
        ("trials", 0, 1),
        ("nodes", NODES, 1),
        ("search-seed", 0, 0),
        ("batch", _BATCH, 1),
    ):
        value = table.get(key, default)
        if type(value) is not int or (key in table and value < least):
            raise SettingsError(
                f"{_TABLE}.{key} = {value!r}: must be a whole number from {least} on"
            )
        whole[key] = value
    seeds = table.get("seeds", [0])
    if not isinstance(seeds, list) or any(type(seed) is not int for seed in seeds):
        raise SettingsError(f"{_TABLE}.seeds = {seeds!r}: must be whole numbers, as [0, 1, 2]")
    return Plan(
        base=base,
        axes=axes,
        search=search,
        trials=whole["trials"],
        seeds=tuple(seeds),
        nodes=whole["nodes"],
        search_seed=whole["search-seed"],
        batch=whole["batch"],
    )


def _seeds(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise SettingsError(f"--seeds {text}: expected whole numbers, as 0,1,2") from None


def _default_name(plan: Plan) -> str:
    """So that the same command finds the same folder."""
    names = "-".join(key.rpartition(".")[2] for key in plan.keys)
    plain = "".join(one if one.isalnum() or one in "-_" else "-" for one in names)
    return f"{plain[:60]}-{plan.digest()}"


@contextmanager
def _removed_if_nothing_came(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if [one.name for one in folder.iterdir()] == [LOCK]:
                shutil.rmtree(folder)
        raise


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' * (count != 1)}"
