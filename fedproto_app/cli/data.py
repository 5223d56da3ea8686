"""``fedproto data``: look at a data set before training on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click.core import ParameterSource

from fedproto_app.errors import SettingsError
from fedproto_app.settings import DataSettings, settings_from

if TYPE_CHECKING:
    from fedproto_app.tasks.eligibility import Kind

DEFAULTS = DataSettings()
PARTITION, CLUSTERS, SEQUENCES = DEFAULTS.partition, DEFAULTS.clusters, DEFAULTS.sequences

data_app = typer.Typer(
    help="Look at a data set before training on it.", no_args_is_help=True, rich_markup_mode="rich"
)


@data_app.callback()
def _data() -> None:
    """Look at a data set before training on it."""


# Panels of the options that only some data take, and which do.
OF_SERIES, OF_IMAGES, OF_SEQUENCES = "Series", "Images", "Labelled sequences"
OF_DEALT, OF_WINDOWS = "Images and labelled sequences", "Series and recordings"
TAKEN_BY: dict[str, tuple[Kind, ...]] = {
    OF_SERIES: ("series",),
    OF_IMAGES: ("images",),
    OF_SEQUENCES: ("labelled sequences",),
    OF_DEALT: ("images", "labelled sequences"),
    OF_WINDOWS: ("series", "labelled sequences"),
}
# What a node's own settings say; given besides them it would have no effect.
SAID_BY_THE_SITE = (
    *("path", "source", "scheme", "clients", "clusters", "beta"),
    *("classes_per_stage", "stages", "imbalance_factor"),
)
# Of the sources of labelled sequences, those that take an option.
ONLY_SOURCES = {
    "target": ("recordings",),
    "max_steps": ("recordings",),
    "window": ("recordings", "synthetic-ev"),
    "stride": ("recordings", "synthetic-ev"),
}


@data_app.command()
def check(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            help="Series: a .csv, .csv.gz, .h5 or .npz file, or a folder of CSV files. Images: a "
            "folder or .zip of class folders, a CIFAR folder, or an .npz file with x_train. "
            "Labelled sequences: a .ts file or the folder of a train and a test file, an .npz file "
            "with points and offsets, or a folder or .zip of class folders of CSV files."
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            help="How to read it: wide-csv, csv-folder, hdf5, npz or synthetic-traffic; "
            "class-folders, cifar, image-npz or digits; uea-ts, sequence-npz, sequence-folder, "
            "recordings, synthetic-air-writing or synthetic-ev; package.module:factory. Default: "
            "told from the path, but recordings must be named."
        ),
    ] = "",
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Read what a node with this file of its own settings would read, instead of PATH.",
        ),
    ] = None,
    max_clients: Annotated[int, typer.Option(help="Only the first so many clients; 0 = all.")] = 0,
    every: Annotated[bool, typer.Option("--all", help="List every client, or class.")] = False,
    max_steps: Annotated[
        int, typer.Option(help="Only the first so many steps; 0 = all.", rich_help_panel=OF_WINDOWS)
    ] = 0,
    period: Annotated[
        int, typer.Option(help="Samples a period.", rich_help_panel=OF_SERIES)
    ] = DEFAULTS.period,
    close_window: Annotated[
        int, typer.Option(help="Values just before the target.", rich_help_panel=OF_SERIES)
    ] = DEFAULTS.close_window,
    periodic_window: Annotated[
        int, typer.Option(help="Values whole periods before the target.", rich_help_panel=OF_SERIES)
    ] = DEFAULTS.periodic_window,
    scheme: Annotated[
        str | None,
        typer.Option(
            help=f"Who holds what. Images: long-tail, dirichlet or given (by the source); default "
            f"{PARTITION.scheme}. Labelled sequences: dirichlet, which makes clusters of clients "
            f"with one mix of classes, or given; default {CLUSTERS.scheme}.",
            rich_help_panel=OF_DEALT,
        ),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(
            help=f"N, to deal to, unless given. Default: images {PARTITION.clients}, labelled "
            f"sequences {CLUSTERS.clients}.",
            rich_help_panel=OF_DEALT,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Draw the classes of every client into this file.",
            rich_help_panel=OF_DEALT,
        ),
    ] = None,
    classes_per_stage: Annotated[
        int, typer.Option(help="S, of each client at each stage.", rich_help_panel=OF_IMAGES)
    ] = PARTITION.classes,
    stages: Annotated[
        int, typer.Option(help="M, of each client.", rich_help_panel=OF_IMAGES)
    ] = PARTITION.stages,
    imbalance_factor: Annotated[
        float,
        typer.Option(help="IF, the largest class over the smallest.", rich_help_panel=OF_IMAGES),
    ] = PARTITION.imbalance_factor,
    clusters: Annotated[
        int,
        typer.Option(
            help="Of clients with one mix of classes (scheme dirichlet).",
            rich_help_panel=OF_SEQUENCES,
        ),
    ] = CLUSTERS.clusters,
    beta: Annotated[
        float,
        typer.Option(
            help="Of the Dirichlet distribution: the lower, the fewer classes make up a cluster.",
            rich_help_panel=OF_SEQUENCES,
        ),
    ] = CLUSTERS.beta,
    steps: Annotated[
        int,
        typer.Option(
            help="Resample longer sequences to so many; 0 = as they are.",
            rich_help_panel=OF_SEQUENCES,
        ),
    ] = SEQUENCES.steps,
    scaling: Annotated[
        str,
        typer.Option(
            help="sequence: each by itself; client: by the client's train sequences; none.",
            rich_help_panel=OF_SEQUENCES,
        ),
    ] = SEQUENCES.scaling,
    target: Annotated[
        str,
        typer.Option(help="Of recordings: the column to predict.", rich_help_panel=OF_SEQUENCES),
    ] = SEQUENCES.target,
    window: Annotated[
        int,
        typer.Option(
            help="Of recordings: steps of the windows cut from them.", rich_help_panel=OF_SEQUENCES
        ),
    ] = SEQUENCES.window,
    stride: Annotated[
        int,
        typer.Option(
            help="Of recordings: steps from one window to the next.", rich_help_panel=OF_SEQUENCES
        ),
    ] = SEQUENCES.stride,
) -> None:
    """Show what a data set holds, and what a run would refuse of it.

    Series: each client's length, period and missing values. Images: the
    classes, the images that cannot be read (of more than 5000, as many
    drawn at random are decoded), and what dealing them to clients and
    stages comes to. Labelled sequences: the classes or the range of the
    target, the lengths, and what dealing them to clients comes to. The
    same rules decide here and in a run.
    Exit code: 0 at least one client is usable and no image corrupt, 1 not
    so, 2 wrong options or data that cannot be read.

    [bold]Examples[/bold]

      fedproto data check traffic.csv

      fedproto data check metr-la.h5 --period 288

      fedproto data check sites/ --all

      fedproto data check --site site.toml

      fedproto data check --source my_data:load

      fedproto data check cifar10.zip --clients 100 --stages 1

      fedproto data check hospitals/ --scheme given --picture partition.png

      fedproto data check --source digits --clients 5 --stages 2

      fedproto data check BasicMotions/ --clients 6 --clusters 2 --beta 0.5

      fedproto data check gestures.npz --scheme given --steps 40

      fedproto data check cars/ --source recordings --scheme given --target charge --window 60
    """
    # The readers are slow to import, which every other command would wait for.
    from fedproto_app.data.inspection import source_of
    from fedproto_app.node.site import Site, site_file
    from fedproto_app.tasks.eligibility import kind_of
    from fedproto_app.tasks.forecasting.check import check_series
    from fedproto_app.tasks.images.check import check_images
    from fedproto_app.tasks.sequences.check import check_sequences

    own = Site()
    if site is not None:
        _refuse_what_the_site_says(context)
        own = site_file(site)
        source = own.reads(DEFAULTS).source

    def read(table: dict[str, Any]) -> DataSettings:
        run = settings_from(table).data
        return run if site is None else own.reads(run)

    if not source:
        source = source_of(Path(path)) if path else DEFAULTS.source
    table: dict[str, Any] = {
        "data.source": source,
        "data.path": path,
        "data.period": period,
        "data.close-window": close_window,
        "data.periodic-window": periodic_window,
        "data.max-clients": max_clients,
        "data.max-steps": max_steps,
        "data.sequences.steps": steps,
        "data.sequences.scaling": scaling,
        "data.sequences.target": target,
        "data.sequences.window": window,
        "data.sequences.stride": stride,
    }
    if ":" in source and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's own module lies where they stand
    kind = kind_of(read(table))
    _refuse_options_of_other_kinds(context, source, kind)
    if kind == "images":
        table |= {
            "data.partition.scheme": scheme or PARTITION.scheme,
            "data.partition.clients": PARTITION.clients if clients is None else clients,
            "data.partition.classes": classes_per_stage,
            "data.partition.stages": stages,
            "data.partition.imbalance-factor": imbalance_factor,
        }
        could_start = check_images(read(table), every, picture)
    elif kind == "labelled sequences":
        table |= {
            "data.clusters.scheme": scheme or CLUSTERS.scheme,
            "data.clusters.clients": CLUSTERS.clients if clients is None else clients,
            "data.clusters.clusters": clusters,
            "data.clusters.beta": beta,
        }
        could_start = check_sequences(read(table), every, picture)
    else:
        could_start = check_series(read(table), every)
    raise typer.Exit(0 if could_start else 1)


def _refuse_what_the_site_says(context: typer.Context) -> None:
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name in SAID_BY_THE_SITE:
            raise SettingsError(f"{option.opts[0]} and --site: the site's file says what is read")


def _refuse_options_of_other_kinds(context: typer.Context, source: str, kind: Kind) -> None:
    """An option without effect would look as if it had one."""
    for option in context.command.params:
        name = option.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        taken_by = TAKEN_BY.get(getattr(option, "rich_help_panel", None) or "")
        if taken_by is not None and kind not in taken_by:
            raise SettingsError(
                f"{option.opts[0]} is for {' and '.join(taken_by)}, but source {source} holds "
                f"{kind}"
            )
        sources = ONLY_SOURCES.get(name, (source,))
        if kind == "labelled sequences" and ":" not in source and source not in sources:
            raise SettingsError(
                f"{option.opts[0]} is for source {' and '.join(sources)}, not for {source}"
            )
