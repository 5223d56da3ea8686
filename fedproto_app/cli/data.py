"""``fedproto data``: look at a data set before training on it."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape

from fedproto_app.core.endings import program
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.tasks import FIRST_TASK, TASKS, TaskRecord, task_record
from fedproto_app.experiments.run_settings import changed_settings
from fedproto_app.report.check import check as check_data
from fedproto_app.report.check.findings import Checked
from fedproto_app.settings import DataSettings, Section, Settings, settings_from, without_markdown
from fedproto_app.settings.reading import flags, flat
from fedproto_app.tasks.table import fitting_task, record_of_source, require_fitting_source

if TYPE_CHECKING:
    from fedproto_app.core.charts import Chart
    from fedproto_app.data.recognition import Reading

# Options whose setting's name has another meaning outside of its table.
RENAMED = {"data.partition.classes": "classes-per-stage"}
# --target names the column to forecast too.
TARGET, TARGET_OF_SERIES = "target", "data.columns"


@dataclass
class DataOption:
    """One option that sets settings of ``[data]``, which give type, default and meaning.

    keys: its setting by kind of data. fields: the settings' fields by key."""

    flag: str
    keys: dict[str, str] = field(default_factory=dict)
    fields: dict[str, FieldInfo] = field(default_factory=dict)

    def key(self, kind: str) -> str | None:
        """Return the setting for this kind of data or None; "" gives one that all kinds share."""
        if kind:
            return self.keys.get(kind)
        return next(iter(self.fields)) if len(self.fields) == 1 else None

    @property
    def type(self) -> type:
        """The type of its value; the settings check its range."""
        return type(next(iter(self.fields.values())).default)

    def parameter(self, name: str) -> inspect.Parameter:
        """Return the option as a parameter of a command; its default is None."""
        fields = self.fields.values()
        words = dict.fromkeys(word for setting in fields for word in get_args(setting.annotation))
        meanings = dict.fromkeys(without_markdown(setting.description or "") for setting in fields)
        defaults = [f"{key} = {setting.default}" for key, setting in self.fields.items()]
        option = typer.Option(
            self.flag,
            metavar="|".join(words) or None,
            help=f"{'; '.join(meanings)} ({', '.join(defaults).removesuffix(' = ')})".strip(),
            show_default=False,
            rich_help_panel=panel(list(self.keys)),
        )
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[self.type | None, option],
        )


def data_options() -> dict[str, DataOption]:
    """Return all options by parameter name; a name in two tables is a single option."""
    options: dict[str, DataOption] = {}
    for record in TASKS.values():
        for setting_or_table in record.options:
            for key, setting in _settings(setting_or_table).items():
                name = RENAMED.get(key, key.rpartition(".")[2])
                option = options.setdefault(name.replace("-", "_"), DataOption(f"--{name}"))
                option.keys[record.holds] = key
                option.fields[key] = setting
    for record in TASKS.values():
        if record.forecasts:
            options[TARGET].keys[record.holds] = TARGET_OF_SERIES
            options[TARGET].fields |= _settings("columns")
    return options


def _settings(name: str) -> dict[str, FieldInfo]:
    """Return the setting of this name in ``[data]``, or all settings of this table, by key."""
    setting = next(info for info in DataSettings.model_fields.values() if info.alias == name)
    inner = setting.annotation
    if isinstance(inner, type) and issubclass(inner, Section):
        return {f"data.{name}.{info.alias}": info for info in inner.model_fields.values()}
    return {f"data.{name}": setting}


def panel(kinds: Sequence[str]) -> str | None:
    """Return the heading of options for these kinds of data, None if all kinds accept them."""
    if set(kinds) == {record.holds for record in TASKS.values()}:
        return None
    return " and ".join(kinds).capitalize()


def with_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's ``**option_values`` by these options, for typer."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    options = [option.parameter(name) for name, option in data_options().items()]
    command.__signature__ = signature.replace(parameters=[*parameters, *options])  # type: ignore[attr-defined]
    return command


data_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@data_app.callback()
def _data() -> None:
    """Look at a data set before training on it."""


# The sources of labelled sequences that accept an option.
RECORDED = "labelled sequences"
ONLY_SOURCES = {
    "--target": ("recordings", "synthetic-air-writing"),
    "--max-steps": ("recordings",),
    "--window": ("recordings",),
    "--stride": ("recordings",),
}
OPTIONS = data_options()
DRAWN = list(dict.fromkeys(record.holds for record in TASKS.values() if record.draws))


@data_app.command()
@with_data_options
def check(
    path: Annotated[
        str,
        typer.Argument(
            help="Series: a .csv, .tsv, .parquet, .xlsx, .h5 or .npz file, or a folder of CSV, "
            "Parquet or Excel files. "
            "Images: a folder or .zip of class folders, a CIFAR folder, or an .npz file with "
            "x_train. Labelled sequences: a .ts file or the folder of a train and a test file, an "
            ".npz file with points and offsets, or a folder or .zip of class folders of CSV files."
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            help="How to read it: wide-csv, long-csv, csv-folder, wide-parquet, long-parquet, "
            "parquet-folder, wide-excel, long-excel, excel-folder, hdf5, npz or "
            "synthetic-traffic; class-folders, cifar, image-npz or "
            "digits; uea-ts, sequence-npz, sequence-folder, recordings or synthetic-air-writing; "
            "package.module:factory. Default: recognised from the path, except for "
            "recordings."
        ),
    ] = "",
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Read the data of a node with this settings file, instead of PATH; with "
            "--config or --set also say whether the site allows this run.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG.toml", help="Check the data as a run with this file would."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="One setting, as for a run; may be repeated."
        ),
    ] = None,
    all_rows: Annotated[bool, typer.Option("--all", help="List every client, or class.")] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Draw the classes of every client into this file.",
            rich_help_panel=panel(DRAWN),
        ),
    ] = None,
    **option_values: Any,
) -> None:
    """Show the contents of a data set, and what a run would refuse of it.

    Series: each client's length, period and missing values. Images: the
    classes, corrupt images (at most 5000 images are decoded, drawn at
    random), and how clients and stages would divide the images. Labelled
    sequences: the classes or the range of the target, the lengths, and how
    clients would divide the sequences. A run applies the same rules.
    Exit code: 0 at least one client is usable and no image is corrupt, 1
    otherwise, 2 wrong options or data that cannot be read.

    [bold]Examples[/bold]

      fedproto data check traffic.csv

      fedproto data check sales.parquet --columns load

      fedproto data check metr-la.h5 --period 288

      fedproto data check sites/ --all

      fedproto data check --site site.toml --config run.toml

      fedproto data check --source my_data:load

      fedproto data check --config configs/gldp-cifar10.toml

      fedproto data check cifar10.zip --clients 100 --stages 1

      fedproto data check hospitals/ --scheme given --picture partition.png

      fedproto data check --source digits --clients 5 --stages 2

      fedproto data check BasicMotions/ --clients 6 --clusters 2 --beta 0.5

      fedproto data check gestures.npz --scheme given --steps 40

      fedproto data check cars/ --source recordings --scheme given --target charge --window 60
    """
    # The readers are slow to import.
    from fedproto_app.data.recognition import reading_of
    from fedproto_app.node.site import Site, site_file

    options = {name: value for name, value in option_values.items() if value is not None}
    table = changed_settings(config, changes or ())
    node = Site()
    if site is not None:
        _refuse_options_of_site(path, source, options)
        node = site_file(site)
        source = node.reads(DataSettings()).source
    if path:
        table["data.path"] = path
    reading = None
    if source:
        table["data.source"] = source
    elif path and "data.source" not in table:
        of_options = {key: options[name] for name in options for key in OPTIONS[name].keys.values()}
        reading = reading_of(Path(path), of_options | table)
        if reading.source.startswith("wide-"):
            for name in options.keys() & {TARGET, "columns"}:
                table[TARGET_OF_SERIES] = options.pop(name)
        table = {**reading.all_settings, **reading.fitting(table)}
    source = settings_from(table).data.source
    is_users_own = ":" in source

    def read(kind: str = "") -> Settings:
        """Return the settings with the options for this kind of data.

        Without a kind, only options with the same meaning for all kinds are used, and only for a
        user's source, which must be called to find its kind.
        """
        keys = {name: OPTIONS[name].key(kind) for name in options if kind or is_users_own}
        run = settings_from(table | {key: options[name] for name, key in keys.items() if key})
        data = run.data if site is None else node.reads(run.data)
        if site is not None or config is not None:  # the run decides, if only by the default
            data = data.model_copy(update={"period": data.period})
        return run.model_copy(update={"data": data})

    if is_users_own and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's module lies in the current folder
    if "task" in table:
        require_fitting_source(read())
        record = task_record(table["task"])
    else:
        record = record_of_source(read().data)
    _refuse_options_of_other_kinds(options, picture, source, record.holds)
    _require_drawable(picture)
    if site is not None and (config or changes):
        from fedproto_app.node.orders import require_admitted
        from fedproto_app.node.policy import require_named_code

        require_named_code(flat(table), node.code)
        require_admitted(read(record.holds), node)
        typer.echo(f"{site}: allows this run")
    if reading is not None:
        _say_what_is_read(reading)
    checked = check_data(record, read(record.holds), all_rows)
    if picture is not None:
        _draw(checked.charts, picture)
    if reading is not None:
        settings = reading.settings
        typer.echo(f"read as {reading.source}{', with ' if settings else ''}{flags(settings)}")
    if site is None:
        keys = {name: OPTIONS[name].key(record.holds) for name in options}
        by_option = {key: options[name] for name, key in keys.items() if key is not None}
        from_options = changed_settings(None, changes or ()) | by_option
        all_settings = table | by_option
        typer.echo(
            offered_line(config, all_settings, from_options, record, read(record.holds), checked)
        )
    raise typer.Exit(0 if checked.could_start else 1)


def _require_drawable(picture: Path | None) -> None:
    """Refuse a file that is no PNG file, or whose folder does not exist."""
    if picture is None:
        return
    if picture.suffix.lower() != ".png":
        raise SettingsError(f"--picture {picture}: expected a .png file")
    if not picture.parent.is_dir():
        raise SettingsError(f"--picture {picture}: no folder {picture.parent}")


def _draw(charts: Sequence[Chart] | None, picture: Path) -> None:
    from fedproto_app.report.drawing import charts_png

    if charts is None:
        raise SettingsError(f"--picture {picture}: targets are real numbers; there are no classes")
    if not charts:  # nothing could be dealt
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


def _refuse_options_of_site(path: str, source: str, options: Mapping[str, Any]) -> None:
    conflicting = [name for name, value in (("path", path), ("--source", source)) if value]
    for name in options:
        keys = OPTIONS[name].keys.values()
        if all(key.startswith(("data.partition.", "data.clusters.")) for key in keys):
            conflicting.append(OPTIONS[name].flag)
    if conflicting:
        raise SettingsError(f"{conflicting[0]} and --site: the site's file says what is read")


def _refuse_options_of_other_kinds(
    options: Mapping[str, Any], picture: Path | None, source: str, kind: str
) -> None:
    """Refuse options that have no effect on this kind of data."""
    takers = {OPTIONS[name].flag: list(OPTIONS[name].keys) for name in options}
    if picture is not None:
        takers["--picture"] = DRAWN
    for flag, kinds in takers.items():
        if kind not in kinds:
            raise SettingsError(
                f"{flag} is for {' and '.join(kinds)}, but source {source} holds {kind}"
            )
        sources = ONLY_SOURCES.get(flag, (source,))
        if kind == RECORDED and ":" not in source and source not in sources:
            raise SettingsError(f"{flag} is for source {' and '.join(sources)}, not for {source}")


def offered_line(
    config: Path | None,
    table: dict[str, Any],
    from_options: Mapping[str, Any],
    record: TaskRecord,
    settings: Settings,
    checked: Checked,
) -> str:
    """Return the `fedproto run` command that trains on the checked data.

    table: all settings of the check, by dotted keys. from_options: the settings from the command
    line, which come last. record, settings: the task and the settings that were checked.
    """
    in_file = changed_settings(config, ()) if config else {}
    run: dict[str, Any] = {}
    if "task" not in table and (record := _fitting(record, settings)).name != FIRST_TASK:
        run["task"] = record.name
    if "method" not in table and ("task" in run or config is None):
        run["method"] = record.first_method
    last = {"keep": "last"}
    if not _is_accepted(table | run) and _is_accepted(table | run | last):  # images in stages
        run |= last
    run |= {key: value for key, value in table.items() if in_file.get(key) != value}
    already_set = {*table, "rounds"} if "method" in table else table  # rounds: of the first method
    run |= {key: value for key, value in checked.proposed.items() if key not in already_set}
    for key, value in from_options.items():
        run.pop(key, None)
        run[key] = value
    words = [f"{program()} run", *([shlex.quote(str(config))] if config else []), flags(run)]
    does = "train on it" if checked.could_start else "once that is mended"
    return f"{does}: {' '.join(filter(None, words))}"


def _fitting(record: TaskRecord, settings: Settings) -> TaskRecord:
    """Return the task that fits the data's targets, if there may be two kinds of targets."""
    if not record.targets:
        return record
    from fedproto_app.data.sequences.sources import load_sequences
    from fedproto_app.tasks.sequences.clients import targets_of

    return task_record(fitting_task(record.holds, targets_of(load_sequences(settings.data))))


def _is_accepted(table: Mapping[str, Any]) -> bool:
    try:
        settings_from(table)
    except SettingsError:
        return False
    return True
