"""``fedproto data``: inspect a data set before training on it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from click import Context, HelpFormatter
from rich.console import Console
from rich.markup import escape
from typer.core import TyperArgument, TyperCommand, TyperOption

from fedproto_app.cli.options import (
    Changes,
    ClientsFrom,
    Covariates,
    Holidays,
    KnownColumns,
    Period,
    Target,
    reading_changes,
)
from fedproto_app.core.endings import program
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.tasks import FIRST_TASK, TASKS, TaskRecord, task_record
from fedproto_app.experiments.run_settings import changed_settings
from fedproto_app.report.check.findings import Checked
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.settings.reading import flags, flat
from fedproto_app.tasks.table import fitting_task, record_of_source, require_fitting_source

if TYPE_CHECKING:
    from fedproto_app.core.charts import Chart
    from fedproto_app.data.format import Reading

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@data_app.callback()
def _data() -> None:
    """Inspect a data set before training on it."""


class _Check(TyperCommand):
    """The check command. It imports the formats, which is slow, only to list them in its help."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        from fedproto_app.data.format import all_formats, sources_of

        kinds = dict.fromkeys(record.holds for record in TASKS.values())
        paths: dict[str, list[str]] = {kind: [] for kind in kinds}
        for form in filter(lambda form: form.paths, all_formats().values()):
            paths[form.sources[0].holds].append(form.paths)
        words = [f"{kind.capitalize()}: {', or '.join(paths[kind])}." for kind in kinds]
        names = [", ".join(sources_of(kind)) for kind in kinds]
        source = f"How to read PATH: {'; '.join(names)}; or package.module:factory."
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and parameter.name == "path":
                parameter.help = " ".join(words)
            elif isinstance(parameter, TyperOption) and parameter.name == "source":
                parameter.help = f"{source} {(parameter.help or '').partition('. ')[2]}"
        super().format_help(ctx, formatter)


@data_app.command(cls=_Check)
def check(
    path: Annotated[
        str,
        typer.Argument(
            help="A file or folder of data."  # `_Check` names the formats
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            help="How to read PATH. Default: recognised from the path, except for recordings."
        ),
    ] = "",
    horizon: Annotated[
        int | None, typer.Option(help="Steps ahead to forecast. Default: the setting data.horizon.")
    ] = None,
    period: Period = None,
    clients_from: ClientsFrom = "",
    target: Target = "",
    known_columns: KnownColumns = None,
    covariates: Covariates = "",
    holidays: Holidays = "",
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Check the data that a node with this settings file would read, instead of PATH. "
            "With --config or --set, also say whether the site allows this run.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG.toml", help="Check the data as a run with this file would."),
    ] = None,
    changes: Changes = None,
    all_rows: Annotated[bool, typer.Option("--all", help="List every client or class.")] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="For images or sequences: draw the classes of every client into this file.",
        ),
    ] = None,
) -> None:
    """Show what a data set contains, and what a run would refuse in it.

    For series, it shows each client's length, period and missing values. For
    images, it shows the classes, the corrupt images, and how the images would
    be divided over clients and stages. It decodes at most 5000 images, drawn
    at random. For labelled sequences, it shows the classes or the range of
    the target, the lengths, and how the sequences would be divided over the
    clients. A run applies the same rules.
    Exit code: 0 at least one client is usable and no image is corrupt, 1
    otherwise, 2 wrong options or data that cannot be read.

    [bold]Examples[/bold]

      fedproto data check traffic.csv

      fedproto data check sales.parquet --target load

      fedproto data check metr-la.h5 --period 288

      fedproto data check sites/ --all

      fedproto data check --site site.toml --config run.toml

      fedproto data check --source my_data:load

      fedproto data check cifar10.zip --set data.partition.clients=100

      fedproto data check hospitals/ --picture partition.png

      fedproto data check BasicMotions/ --set data.clusters.beta=0.5
    """
    options = {
        "--horizon": ("data.horizon", horizon),
        "--period": ("data.period", period),
        "--clients-from": ("data.client-column", clients_from or None),
        "--target": ("data.columns", target or None),
    }
    of_series = {option: pair for option, pair in options.items() if pair[1] is not None}
    overrides = reading_changes(changes, source, known_columns, covariates, holidays)
    overrides |= dict(of_series.values())
    if site is not None and (path or source):
        name = "path" if path else "--source"
        raise SettingsError(f"{name}: not with --site, as that file says what is read")
    table, reading = _table(path, config, overrides)
    settings, record = _settings(table, site, fixed=site is not None or config is not None)
    if of_series and not record.forecasts:
        raise SettingsError(
            f"{next(iter(of_series))} is for series, but source {settings.data.source} holds "
            f"{record.holds}"
        )
    _require_drawable(picture, record, settings.data.source)
    if site is not None and (config or changes):
        _require_admitted(table, settings, site)
    if reading is not None:
        _say_what_is_read(reading)
    module = import_module(f"fedproto_app.report.check.{record.folder}")
    checked: Checked = module.check(settings, all_rows)
    if reading is not None:
        _say_what_could_be_known(reading, settings.data)
    if picture is not None:
        _draw(checked.charts, picture)
    if reading is not None:
        further = reading.settings
        typer.echo(f"read as {reading.source}{', with ' if further else ''}{flags(further)}")
        overrides = reading.fitting(overrides)
    if site is None:
        shown_overrides = {key: value for key, value in overrides.items() if key != "data.source"}
        typer.echo(offered_line(config, table, shown_overrides, record, settings, checked))
    raise typer.Exit(0 if checked.could_start else 1)


def _table(
    path: str, config: Path | None, overrides: Mapping[str, object]
) -> tuple[dict[str, object], Reading | None]:
    """Return the settings of a run on the data, and how its path was recognised.

    The reading is None if no path is given, or if the settings name the source.
    """
    from fedproto_app.data.recognition import reading_of  # the readers are slow to import

    table: dict[str, object] = {**changed_settings(config, ()), **overrides}
    if path:
        table["data.path"] = path
    if not path or "data.source" in table:
        return table, None
    reading = reading_of(Path(path), table)
    return {**reading.all_settings, **reading.fitting(table)}, reading


def _settings(
    table: Mapping[str, object], site: Path | None, *, fixed: bool
) -> tuple[Settings, TaskRecord]:
    """Return the complete settings, and the task for the kind of data that the source holds.

    fixed: whether to treat the run's period as set explicitly, even if it is the default.
    """
    settings = settings_from(table)
    data = settings.data
    if site is not None:
        from fedproto_app.node.site import site_file

        data = site_file(site).reads(data)
    if fixed:
        data = data.model_copy(update={"period": data.period})
    settings = settings.model_copy(update={"data": data})
    if "task" not in table:
        return settings, record_of_source(data)
    require_fitting_source(settings)
    return settings, task_record(settings.task)


def _require_admitted(table: Mapping[str, object], settings: Settings, site: Path) -> None:
    """Refuse a run that the site does not allow."""
    from fedproto_app.node.orders import require_admitted
    from fedproto_app.node.policy import require_named_code
    from fedproto_app.node.site import site_file

    node = site_file(site)
    require_named_code(flat(table), node.code)
    require_admitted(settings, node)
    typer.echo(f"{site}: allows this run")


def _require_drawable(picture: Path | None, record: TaskRecord, source: str) -> None:
    """Refuse data without classes, and a picture that is no PNG file or whose folder is missing."""
    if picture is None:
        return
    if not record.draws:
        kinds = " and ".join(dict.fromkeys(task.holds for task in TASKS.values() if task.draws))
        raise SettingsError(f"--picture is for {kinds}, but source {source} holds {record.holds}")
    if picture.suffix.lower() != ".png":
        raise SettingsError(f"--picture {picture}: expected a .png file")
    if not picture.parent.is_dir():
        raise SettingsError(f"--picture {picture}: no folder {picture.parent}")


def _draw(charts: Sequence[Chart] | None, picture: Path) -> None:
    from fedproto_app.report.drawing import charts_png

    if charts is None:
        raise SettingsError(f"--picture {picture}: the targets are real numbers, not classes")
    if not charts:  # no samples could be dealt to clients
        return
    try:
        picture.write_bytes(charts_png(charts))
    except OSError as error:
        raise SettingsError(f"--picture {picture}: {error.strerror}") from None
    Console().print(f"picture: {escape(str(picture))}", highlight=False)


def _say_what_is_read(reading: Reading) -> None:
    if reading.target:
        typer.echo(f"forecasting {reading.target}")
    for note in reading.notes:
        typer.echo(note)
    for line in reading.left_out:
        Console().print(f"[yellow]warning[/yellow] {escape(line)}", highlight=False)


def _say_what_could_be_known(reading: Reading, data: DataSettings) -> None:
    from fedproto_app.data.known_columns import advice_on
    from fedproto_app.data.sources import columns_beside

    further = [name for name in reading.beside if all(name != c.name for c in data.known_columns)]
    for line in advice_on(columns_beside(data, further), "--set data.known="):
        typer.echo(line)


def offered_line(
    config: Path | None,
    table: Mapping[str, object],
    from_options: Mapping[str, object],
    record: TaskRecord,
    settings: Settings,
    checked: Checked,
) -> str:
    """Return the `fedproto run` command that trains on the checked data.

    table: all settings of the check, with dotted keys. from_options: the settings from the command
    line, which are printed last. record, settings: the task and the settings that were checked.
    """
    in_file = changed_settings(config, ()) if config else {}
    run: dict[str, object] = {}
    if "task" not in table and (record := _fitting(record, settings)).name != FIRST_TASK:
        run["task"] = record.name
    if "method" not in table and ("task" in run or config is None):
        run["method"] = record.first_method
    last = {"keep": "last"}
    together = {**table, **run}
    if not _is_accepted(together) and _is_accepted(together | last):  # images in stages
        run |= last
    run |= {key: value for key, value in table.items() if in_file.get(key) != value}
    # The proposed rounds suit only the first method.
    already_set = {*table, "rounds"} if "method" in table else table
    run |= {key: value for key, value in checked.proposed.items() if key not in already_set}
    for key, value in from_options.items():
        run.pop(key, None)
        run[key] = value
    words = [f"{program()} run", *([shlex.quote(str(config))] if config else []), flags(run)]
    does = "train on it" if checked.could_start else "once the data are mended"
    return f"{does}: {' '.join(filter(None, words))}"


def _fitting(record: TaskRecord, settings: Settings) -> TaskRecord:
    """Return the task that fits the data's targets, which may be classes or real numbers."""
    if not record.targets:
        return record
    from fedproto_app.data.sequences.sources import load_sequences
    from fedproto_app.tasks.sequences.clients import targets_of

    return task_record(fitting_task(record.holds, targets_of(load_sequences(settings.data))))


def _is_accepted(table: Mapping[str, object]) -> bool:
    try:
        settings_from(table)
    except SettingsError:
        return False
    return True
