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
from click import Context, HelpFormatter
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape
from typer.core import TyperArgument, TyperCommand, TyperOption

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
    from fedproto_app.data.format import Reading
    from fedproto_app.node.site import Site

# Options whose setting's name has another meaning outside of its table.
RENAMED = {"data.partition.classes": "classes-per-stage"}
# Settings with a second option, by the name that `fedproto try` gives it.
ALSO = {"data.client-column": "--clients-from"}
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
        """Return the setting for this kind of data or None. "" gives one that all kinds share."""
        if kind:
            return self.keys.get(kind)
        return next(iter(self.fields)) if len(self.fields) == 1 else None

    @property
    def type(self) -> type:
        """The type of its value. The settings check its range."""
        return type(next(iter(self.fields.values())).default)

    def parameter(self, name: str) -> inspect.Parameter:
        """Return the option as a parameter of a command. Its default is None."""
        fields = self.fields.values()
        words = dict.fromkeys(word for setting in fields for word in get_args(setting.annotation))
        meanings = dict.fromkeys(without_markdown(setting.description or "") for setting in fields)
        defaults = [f"{key} = {setting.default}" for key, setting in self.fields.items()]
        option = typer.Option(
            self.flag,
            *(ALSO[key] for key in self.fields if key in ALSO),
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
    """Return all options by parameter name. A name in two tables is a single option."""
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


OPTIONS = data_options()
DRAWN = list(dict.fromkeys(record.holds for record in TASKS.values() if record.draws))


class _Check(TyperCommand):
    """The command, whose help names the formats, which are slow to import."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        from fedproto_app.data.format import all_formats, sources_of

        kinds = dict.fromkeys(record.holds for record in TASKS.values())
        paths: dict[str, list[str]] = {kind: [] for kind in kinds}
        for form in filter(lambda form: form.paths, all_formats().values()):
            paths[form.sources[0].holds].append(form.paths)
        words = [f"{kind.capitalize()}: {', or '.join(paths[kind])}." for kind in kinds]
        names = [", ".join(sources_of(kind)) for kind in kinds]
        source = f"How to read it: {'; '.join(names)}; or package.module:factory."
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and parameter.name == "path":
                parameter.help = " ".join(words)
            elif isinstance(parameter, TyperOption) and parameter.name == "source":
                parameter.help = f"{source} {(parameter.help or '').partition('. ')[2]}"
        super().format_help(ctx, formatter)


@dataclass(frozen=True)
class _Asked:
    """The data that a person asks about, and the run that would read them.

    options: their values by parameter name. table: the run's settings by dotted keys. reading: how
    the path was recognised, None if the source was named. node: the site that reads the data.
    """

    site: Path | None
    config: Path | None
    changes: list[str]
    options: dict[str, object]
    table: dict[str, object]
    reading: Reading | None
    node: Site

    @property
    def source(self) -> str:
        """The source that reads the data."""
        return settings_from(self.table).data.source

    def settings(self, kind: str = "") -> Settings:
        """Return the settings with the options for this kind of data.

        Without a kind, only options with the same meaning for all kinds are used, and only for a
        user's source, which must be called to find its kind.
        """
        keys = {name: OPTIONS[name].key(kind) for name in self.options}
        if not kind and ":" not in self.source:
            keys = {}
        run = settings_from(self.table | {k: self.options[name] for name, k in keys.items() if k})
        data = run.data if self.site is None else self.node.reads(run.data)
        if self.site is not None or self.config is not None:  # the run decides, if by the default
            data = data.model_copy(update={"period": data.period})
        return run.model_copy(update={"data": data})

    def by_key(self, kind: str) -> dict[str, object]:
        """Return the options for this kind of data by the keys of their settings."""
        keys = {name: OPTIONS[name].key(kind) for name in self.options}
        return {key: self.options[name] for name, key in keys.items() if key is not None}


@data_app.command(cls=_Check)
@with_data_options
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
            help="How to read it. Default: recognised from the path, except for recordings."
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
    options = {name: value for name, value in option_values.items() if value is not None}
    asked = _find(path, source, site, config, changes or [], options)
    record = _read(asked)
    _judge(asked, record, picture)
    if asked.reading is not None:
        _say_what_is_read(asked.reading)
    checked = check_data(record, asked.settings(record.holds), all_rows)
    if asked.reading is not None:
        _say_what_could_be_known(asked.reading, asked.settings(record.holds).data)
    if picture is not None:
        _draw(checked.charts, picture)
    _print_commands(asked, record, checked)
    raise typer.Exit(0 if checked.could_start else 1)


def _find(
    path: str,
    source: str,
    site: Path | None,
    config: Path | None,
    changes: list[str],
    options: dict[str, object],
) -> _Asked:
    """Return what is asked about: the path's source is recognised unless something names it."""
    # The readers are slow to import.
    from fedproto_app.data.recognition import reading_of
    from fedproto_app.node.site import Site, site_file

    table, node, reading = changed_settings(config, changes), Site(), None
    if site is not None:
        _refuse_options_of_site(path, source, options)
        node = site_file(site)
        source = node.reads(DataSettings()).source
    if path:
        table["data.path"] = path
    if source:
        table["data.source"] = source
    elif path and "data.source" not in table:
        of_options = {key: options[name] for name in options for key in OPTIONS[name].keys.values()}
        reading = reading_of(Path(path), of_options | table)
        if TARGET_OF_SERIES not in reading.fitting({TARGET_OF_SERIES: ""}):  # names a client
            for name in options.keys() & {TARGET, "columns"}:
                table[TARGET_OF_SERIES] = options.pop(name)
        table = {**reading.all_settings, **reading.fitting(table)}
    return _Asked(site, config, changes, options, table, reading, node)


def _read(asked: _Asked) -> TaskRecord:
    """Return the task whose kind of data the source holds. A user's function is called."""
    if ":" in asked.source and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's module lies in the current folder
    if "task" not in asked.table:
        return record_of_source(asked.settings().data)
    require_fitting_source(asked.settings())
    return task_record(str(asked.table["task"]))


def _judge(asked: _Asked, record: TaskRecord, picture: Path | None) -> None:
    """Refuse options without an effect on these data, and a run that the site does not allow."""
    _refuse_options_of_other_kinds(asked.options, picture, asked.source, record.holds)
    _require_drawable(picture)
    if asked.site is not None and (asked.config or asked.changes):
        from fedproto_app.node.orders import require_admitted
        from fedproto_app.node.policy import require_named_code

        require_named_code(flat(asked.table), asked.node.code)
        require_admitted(asked.settings(record.holds), asked.node)
        typer.echo(f"{asked.site}: allows this run")


def _print_commands(asked: _Asked, record: TaskRecord, checked: Checked) -> None:
    """Print the settings that read the data, and the command that trains on them."""
    if asked.reading is not None:
        further = asked.reading.settings
        typer.echo(f"read as {asked.reading.source}{', with ' if further else ''}{flags(further)}")
    if asked.site is None:
        by_key = asked.by_key(record.holds)
        from_options = changed_settings(None, asked.changes) | by_key
        table, settings = asked.table | by_key, asked.settings(record.holds)
        typer.echo(offered_line(asked.config, table, from_options, record, settings, checked))


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


def _say_what_could_be_known(reading: Reading, data: DataSettings) -> None:
    from fedproto_app.data.known_columns import advice_on
    from fedproto_app.data.sources import columns_beside

    others = [name for name in reading.beside if all(name != c.name for c in data.known_columns)]
    for line in advice_on(columns_beside(data, others), "--set data.known="):
        typer.echo(line)


def _refuse_options_of_site(path: str, source: str, options: Mapping[str, object]) -> None:
    conflicting = [name for name, value in (("path", path), ("--source", source)) if value]
    for name in options:
        keys = OPTIONS[name].keys.values()
        if all(key.startswith(("data.partition.", "data.clusters.")) for key in keys):
            conflicting.append(OPTIONS[name].flag)
    if conflicting:
        raise SettingsError(f"{conflicting[0]} and --site: the site's file says what is read")


def _refuse_options_of_other_kinds(
    options: Mapping[str, object], picture: Path | None, source: str, kind: str
) -> None:
    """Refuse options that have no effect on this kind of data."""
    from fedproto_app.data.format import sources_of

    takers = {OPTIONS[name].flag: list(OPTIONS[name].keys) for name in options}
    if picture is not None:
        takers["--picture"] = DRAWN
    for flag, kinds in takers.items():
        if kind not in kinds:
            raise SettingsError(
                f"{flag} is for {' and '.join(kinds)}, but source {source} holds {kind}"
            )
        of_kind = sources_of(kind)
        sources = [name for name, known in of_kind.items() if flag in known.options]
        if source in of_kind and sources and source not in sources:
            raise SettingsError(f"{flag} is for source {' and '.join(sources)}, not for {source}")


def offered_line(
    config: Path | None,
    table: Mapping[str, object],
    from_options: Mapping[str, object],
    record: TaskRecord,
    settings: Settings,
    checked: Checked,
) -> str:
    """Return the `fedproto run` command that trains on the checked data.

    table: all settings of the check, by dotted keys. from_options: the settings from the command
    line, which come last. record, settings: the task and the settings that were checked.
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


def _is_accepted(table: Mapping[str, object]) -> bool:
    try:
        settings_from(table)
    except SettingsError:
        return False
    return True
