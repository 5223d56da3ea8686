"""``fedproto data``: look at a data set before training on it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedproto_app.cli.data_options import data_options, panel, with_data_options
from fedproto_app.cli.offered_line import offered_line
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.tasks import TASKS, task_record
from fedproto_app.experiments.run_settings import changed_settings
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.settings.changes import flags
from fedproto_app.tasks.table import record_of_source, require_fitting_source

if TYPE_CHECKING:
    from fedproto_app.core.charts import Chart
    from fedproto_app.data.recognition import Reading

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
            help="Series: a .csv, .tsv, .parquet, .h5 or .npz file, or a folder of CSV "
            "or Parquet files. "
            "Images: a folder or .zip of class folders, a CIFAR folder, or an .npz file with "
            "x_train. Labelled sequences: a .ts file or the folder of a train and a test file, an "
            ".npz file with points and offsets, or a folder or .zip of class folders of CSV files."
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            help="How to read it: wide-csv, long-csv, csv-folder, wide-parquet, long-parquet, "
            "parquet-folder, hdf5, npz or synthetic-traffic; class-folders, cifar, image-npz or "
            "digits; uea-ts, sequence-npz, sequence-folder, recordings or synthetic-air-writing; "
            "package.module:factory. Default: recognised from the path, except for "
            "recordings."
        ),
    ] = "",
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Read the data of a node with this settings file, instead of PATH.",
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

      fedproto data check --site site.toml

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
        reading = reading_of(Path(path))
        table = {**reading.all_settings, **table}
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
    checked = record.part("check")(read(record.holds), all_rows)
    if picture is not None:
        _draw(checked.charts, picture)
    if reading is not None:
        _say_how_to_read(reading)
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


def _say_how_to_read(reading: Reading) -> None:
    for note in reading.notes:
        typer.echo(note)
    settings = reading.settings
    typer.echo(f"read as {reading.source}{', with ' if settings else ''}{flags(settings)}")


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
