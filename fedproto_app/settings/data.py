"""``[data]`` and ``[graph]``: where data come from, who holds what, and who are neighbours."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedproto_app.core.section import (
    PLAIN_NAMES,
    Count,
    CountOrZero,
    NonNegative,
    PlainName,
    Positive,
    Section,
    Share,
    ShareOrZero,
    setting,
)
from fedproto_app.settings.choice import (
    NAMES,
    Choice,
    ColumnRange,
    Decimal,
    Delimiter,
    Header,
    KnownColumn,
    KnownList,
    Missing,
    NameList,
    Region,
    Repeated,
    TimeUnit,
    known_in,
    names_in,
)

AUTO = "auto"
MANY_STEPS = 48  # of a period. By validation, value p + 1 helps at 24 steps, and not at 48 to 288
PERIODS_FOR_WEEKS = 14  # with fewer training periods models cannot learn the effect of weekdays


def _lag_list(value: object) -> str:
    text = str(value)  # in TOML a single number is not a text
    numbers = [] if text in ("", AUTO) else text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in numbers):
        raise ValueError(
            f"data.lags = {text!r}: expected auto, or whole numbers above 0 between commas"
        )
    return text


LagList = Annotated[str, BeforeValidator(_lag_list)]


def _place_among(value: object) -> str:
    text = str(value)
    if text and not (
        (match := re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", text))
        and int(match[1]) <= int(match[2])
    ):
        raise ValueError(
            f"data.backtest = {text!r}: expected a window and the number of windows, such as 2/5"
        )
    return text


Backtest = Annotated[str, BeforeValidator(_place_among)]


def _time_or_step(value: object) -> str:
    text = str(value).strip()  # in TOML the number of a step and a date are not texts
    if period := re.fullmatch(r"(\d{4})[- ]?(?:[qQ]([1-4])|(?<=-)(\d\d))", text):
        month = 3 * int(period[2]) - 2 if period[2] else int(period[3])
        text = f"{period[1]}-{month:02d}-01"
    if text and not re.fullmatch(r"-?\d{1,7}", text):
        try:
            datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"data.test-start = {text!r}: expected a time such as 2010-06-01, or the number "
                "of a step if the source has no times"
            ) from None
    return text


def _mean_and_std(value: object) -> str:
    text = str(value)
    try:
        mean, std = map(float, text.split(",")) if text else (0.0, 1.0)
        if not (isfinite(mean) and 0 < std < inf):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"data.scale = {text!r}: expected the mean and the deviation, above 0, such as 120,35"
        ) from None
    return text


ScalePair = Annotated[str, BeforeValidator(_mean_and_std)]
TestStart = Annotated[str, BeforeValidator(_time_or_step)]


class SyntheticSettings(Section):
    """``[data.synthetic]``: the embedded generators (docs: your-data.md, sequences.md)."""

    clients: Count = setting(24, "sites or writers in the embedded data")
    days: Annotated[int, Field(ge=8)] = setting(42, "days of traffic")
    sequences: Count = setting(1200, "air-written digits of all writers together")
    seed: CountOrZero = setting(0, "seed of the embedded data")


class PartitionSettings(Section):
    """``[data.partition]``: which client holds which images at which stage (docs: gldp.md)."""

    scheme: Literal["long-tail", "dirichlet", "given"] = setting(
        "long-tail", "[which client holds which images](images.md#partitions)"
    )
    clients: Count = setting(20, "number of clients (N)")
    classes: Count = setting(4, "classes per client and stage (S)")
    class_draw: Literal["by-size", "uniform"] = setting(
        "by-size", "whether these classes are drawn by their size or uniformly"
    )
    stages: Count = setting(5, "number of stages (M)")
    imbalance_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = setting(
        50.0, "size ratio of the largest class to the smallest (IF)"
    )
    alpha: Positive = setting(0.5, "concentration of the Dirichlet distribution")
    samples: CountOrZero = setting(
        0,
        "train images per client and stage. Clients may then hold the same image (0: all images, "
        "each at one client)",
    )
    validation_share: ShareOrZero = setting(
        0.05, "share of the train images held out for validation"
    )
    reserve_per_class: CountOrZero = setting(
        0,
        "train images of each class that `fedic`'s server keeps. Use the same number for all "
        "compared methods",
    )
    test_ratio: Positive = setting(0.2, "test images per train image. Validation has as many")
    test_mix: Literal["own", "everybody"] = setting(
        "own", "whether test images have the client's mix of classes or everybody's"
    )


class SequenceSettings(Section):
    """``[data.sequences]``: how labelled sequences are read (docs: sequences.md)."""

    steps: CountOrZero = setting(0, "resample longer sequences to this many steps (0: never)")
    scaling: Literal["auto", "sequence", "client", "none"] = setting(
        "auto", "[how values are scaled](sequences.md#steps-and-scale)"
    )
    window: Annotated[int, Field(ge=2)] = setting(100, "steps per window of `recordings`")
    stride: Count = setting(100, "steps from one window to the next")
    target: str = setting(
        "",
        "column of `recordings` to predict, or `seconds` for `synthetic-air-writing`",
        "a column",
    )
    target_scale: Positive = setting(1.0, "models learn the target divided by this number")


class ClusterSettings(Section):
    """``[data.clusters]``: which client holds which sequences (docs: fed-react.md)."""

    scheme: Literal["dirichlet", "given"] = setting(
        "dirichlet", "[which client holds which sequences](sequences.md#clusters)"
    )
    clients: Count = setting(10, "number of clients")
    clusters: Count = setting(
        3,
        "clusters of clients. All clients in one have the same mix of classes",
        "1 … `clients`",
    )
    beta: Positive = setting(
        1.5, "concentration of the Dirichlet distribution that draws each cluster's mix (β)"
    )
    samples: CountOrZero = setting(0, "sequences per client (0: all)")
    labels: CountOrZero = setting(
        0, "labelled train sequences per client (0: all). Validation has at most as many"
    )
    unlabelled: bool = setting(
        False,
        "keep a client's other train sequences, [without their "
        "labels](sequences.md#without-labels)",
    )
    renamed: bool = setting(False, "name the classes differently in every cluster")

    @model_validator(mode="after")
    def _clusters_fit_the_clients(self) -> ClusterSettings:
        if self.scheme == "dirichlet" and self.clusters > self.clients:
            raise ValueError(
                f"data.clusters.clusters = {self.clusters}: more than data.clusters.clients = "
                f"{self.clients}"
            )
        if self.unlabelled and not self.labels:
            raise ValueError(
                "data.clusters.unlabelled = true: with data.clusters.labels = 0 all sequences keep "
                "their labels"
            )
        if self.scheme == "given" and self.renamed:
            raise ValueError(
                "data.clusters.renamed = true: only with data.clusters.scheme = 'dirichlet', whose "
                "clusters are the app's own"
            )
        return self


class DataSettings(Section):
    """``[data]``: where the data come from and how they become samples (docs: your-data.md)."""

    source: Annotated[str, Field(min_length=1)] = setting(
        "synthetic-traffic",
        "a format or generator of [series](your-data.md#formats), [images](images.md) or "
        "[sequences](sequences.md), or `package.module:factory` for your own",
    )
    path: str = setting("", "file or folder of the source", "a path")
    name: PlainName = setting(
        "", "the dataset's name in tables (default: the name of the file or source)", PLAIN_NAMES
    )
    period: Count = setting(24, "samples per period, and also per batch (p)")
    close_window: Count = setting(3, "how many of the newest values a forecast uses (c)")
    periodic_window: Count = setting(
        3, "from how many earlier periods a forecast uses one value each (q)"
    )
    lags: LagList = setting(
        AUTO,
        "how many steps back [further inputs](your-data.md#from-series-to-samples) lie, such as "
        "`48,168` (empty: none)",
        "`auto`, numbers between commas",
    )
    horizon: Count = setting(1, "how many values a forecast predicts (H)")
    calendar: Literal["none", "phase", "week", "year"] = setting(
        "none",
        "what models see of the time. `phase` is the place in the period, `week` adds the "
        "weekday, and `year` also adds the season",
    )
    history: CountOrZero = setting(
        0, "train on at most this many of the newest periods (0: on all)"
    )
    least_periods: CountOrZero = setting(
        0,
        "train only on whole [blocks](sites.md#blocks-of-periods) of this many days (0: on all)",
    )
    train_share: Share = setting(
        0.7,
        "oldest share of the samples, for training. [Sequences](sequences.md#split) are split "
        "differently",
    )
    validation_share: Share = setting(
        0.1,
        "next oldest share, for validation. The rest is the test part",
    )
    backtest: Backtest = setting(
        "",
        "[window of a backtest](your-data.md#backtests). `2/5` is the second of five (default: "
        "none)",
        "`K/N`",
    )
    test_start: TestStart = setting(
        "",
        "when every client's test part begins (default: the shares decide). The shares still "
        "divide the samples before it",
        "a time as the data write it, or a number of a step",
    )
    scale: ScalePair = setting(
        "",
        "mean and deviation that scale [newcomers](your-data.md#newcomers), in the data's units "
        "(default: from their first period)",
        "`mean,std`, two numbers",
    )
    max_clients: CountOrZero = setting(0, "number of first clients to use (0: all)")
    max_steps: CountOrZero = setting(
        0, "number of first steps to use of series and `recordings` (0: all)"
    )
    clients: NameList = setting(
        "",
        "clients to use (default: all). On a deployed node, [the site's "
        "file](#a-nodes-own-settings) alone decides this and how tables are read",
        NAMES,
    )
    columns: NameList = setting(
        "",
        "the column to forecast. For `sequence-folder` and `recordings`: the inputs in order",
        NAMES,
    )
    known: KnownList = setting(
        "",
        "[columns known in advance](your-data.md#columns-known-in-advance), such as "
        "`temperature,weather=rain|fog`",
        NAMES,
    )
    covariates: str = setting(
        "",
        "file with [columns known in advance](your-data.md#columns-known-in-advance)",
        "a path",
    )
    holidays: Region = setting(
        "",
        "country or region whose holidays are known in advance, such as `DE-BY`",
        "a code of ISO 3166",
    )
    groups: str = setting(
        "",
        "CSV file with two columns: the clients and their [groups](closed-forms.md#groups)",
        "a path",
    )
    time_column: NameList = setting(
        "",
        "the column of times, or several to join, such as `date,time` (default: the first with a "
        "name like `time`)",
        NAMES,
    )
    client_column: NameList = setting(
        "",
        "the column of clients' names, or several to join, such as `store,item` (default: one "
        "with a name like `unique_id`)",
        NAMES,
    )
    unfold: ColumnRange = setting(
        "",
        "the first and last of [columns that follow each other in "
        "time](your-data.md#csv-parquet-and-excel), such as `hh_0,hh_47`",
        "two names with a comma between",
    )
    time_unit: TimeUnit = setting(
        "auto",
        "how times are written. `iso` means dates, `s` to `ns` count from 1970, and `excel` "
        "means Excel's days",
    )
    time_zone: str = setting(
        "",
        "zone of local times, such as `Europe/Berlin`, to convert them to UTC (default: [no "
        "conversion](your-data.md#times-of-day))",
        "a zone of the IANA database",
    )
    missing: Missing = setting(
        "gap",
        "what empty cells and missing rows mean: no value, or [zero](your-data.md#missing-values)",
    )
    missing_values: NameList = setting(
        "",
        "further numbers or texts that mean a missing value, such as `-999,n.d.`",
        "numbers or texts between commas",
    )
    repeated: Repeated = setting(
        "refuse",
        "what to do if a client has several values for one time",
    )
    sheet: str = setting("", "sheet of an Excel file (default: the first with a value)", "a name")
    header: Header = setting(
        "auto",
        "whether the first line names the columns, or the number of the line that does",
        "`auto`, true, false, or a number",
    )
    delimiter: Delimiter = setting("auto", "what separates the cells of a CSV file")
    decimal: Decimal = setting(
        "auto",
        "decimal sign. The other sign may separate thousands",
    )
    classes: str = setting(
        "",
        "all classes in the order of their labels (default: the source's). For images the "
        "largest class comes first",
        NAMES,
    )
    corrupt_images: Literal["refuse", "skip"] = setting(
        "refuse", "whether a client with an unreadable image is refused, or the image left out"
    )
    image_size: Annotated[int, Field(ge=0, le=1024)] = setting(
        0,
        "side in pixels of the squares that images of `class-folders` are scaled to (0: never)",
        "0 … 1024",
    )
    pretrained_encoder: str = setting(
        "",
        "ONNX file of a [pretrained encoder](images.md#pretrained-encoders), which turns images "
        "into vectors",
        "a path",
    )
    synthetic: SyntheticSettings = SyntheticSettings()
    partition: PartitionSettings = PartitionSettings()
    sequences: SequenceSettings = SequenceSettings()
    clusters: ClusterSettings = ClusterSettings()

    @model_validator(mode="after")
    def _shares_leave_a_test_part(self) -> DataSettings:
        if self.train_share + self.validation_share >= 1:
            raise ValueError(
                "data.train-share + data.validation-share must stay below 1 to leave a test part, "
                f"got {self.train_share} + {self.validation_share}"
            )
        return self

    @model_validator(mode="after")
    def _one_test_part(self) -> DataSettings:
        if self.test_start and self.backtest:
            raise ValueError(
                f"data.test-start = {self.test_start!r}: not with data.backtest = "
                f"{self.backtest!r}, whose windows are the test parts"
            )
        return self

    @model_validator(mode="after")
    def _is_known_when_forecast(self) -> DataSettings:
        least = min(self.horizon, self.period)
        for lag in self.further_lags:
            if lag < least or (self.horizon == 1 and lag <= self.close_window):
                raise ValueError(
                    f"data.lags = {self.lags!r}: {lag} must be above data.close-window = "
                    f"{self.close_window}, because that window holds the newer values already"
                    if self.horizon == 1
                    else f"data.lags = {self.lags!r}: {lag} must be at least {least}, the smaller "
                    "of data.horizon and data.period, or its value is not known yet"
                )
        return self

    @model_validator(mode="after")
    def _known_columns_are_others(self) -> DataSettings:
        uses = {
            "columns": "is forecast",
            "time_column": "holds the times",
            "client_column": "names the clients",
        }
        for column in self.known_columns:
            for key, use in uses.items():
                if column.name in names_in(getattr(self, key)):
                    raise ValueError(
                        f"data.known = {self.known!r}: column {column.name!r} {use} "
                        f"(data.{key.replace('_', '-')}); name others"
                    )
        return self

    @property
    def choice(self) -> Choice:
        """The part of the source that the run uses."""
        names = (self.clients, self.columns, self.time_column, self.client_column)
        return Choice(*map(names_in, names))

    @property
    def known_columns(self) -> tuple[KnownColumn, ...]:
        """The columns of `known`."""
        return known_in(self.known)

    @property
    def further_lags(self) -> tuple[int, ...]:
        """The numbers of `lags`. `auto` means what the periodic values lack.

        If one step is forecast, this is the value just before the value a period ago, so that a
        model sees the change between the two. If a period has many steps, the two hardly differ,
        and only noise would be added. If models learn weeks, the value a week ago is added.
        """
        if self.lags != AUTO:
            return tuple(int(lag) for lag in self.lags.split(",") if lag.strip())
        before = (self.period + 1,) if self.horizon == 1 and self.period < MANY_STEPS else ()
        week = (7 * self.period,) if self.learns_weeks else ()
        return tuple(lag for lag in (*before, *week) if lag > self.close_window)

    @property
    def learns_weeks(self) -> bool:
        """Whether models see the weekday, and the history is long enough to learn its effect."""
        return self.times > 1 and not 0 < self.history < PERIODS_FOR_WEEKS

    @property
    def window(self) -> tuple[int, int]:
        """The backtest's window and the number of windows, (1, 1) without a backtest."""
        number, windows = (self.backtest or "1/1").split("/")
        return int(number), int(windows)

    @property
    def used_share(self) -> float:
        """The share of a series that is used, from its start to the end of the window."""
        number, windows = self.window
        return 1 - self._test_share * (windows - number) / windows

    @property
    def window_share(self) -> float:
        """The share that the backtest's window has in the used part of a series."""
        return self._test_share / self.window[1] / self.used_share

    @property
    def _test_share(self) -> float:
        return 1 - self.train_share - self.validation_share

    @property
    def has_known(self) -> bool:
        """Whether these settings add columns known in advance to the series."""
        has_columns = bool(self.known or self.covariates or self.holidays)
        return has_columns or self.calendar == "year"

    @property
    def times(self) -> int:
        """The number of inputs that describe a time."""
        return {"none": 0, "phase": 1, "week": 2, "year": 2}[self.calendar]

    @property
    def periodic_distances(self) -> tuple[int, ...]:
        """The lengths of 1, 2, …, `periodic_window` periods in steps."""
        return tuple(self.period * number for number in range(1, self.periodic_window + 1))

    @property
    def distances(self) -> tuple[int, ...]:
        """How many steps back the inputs outside the close window lie, longest first."""
        return tuple(sorted({*self.periodic_distances, *self.further_lags}, reverse=True))

    @property
    def title(self) -> str:
        """The dataset's name in tables and run names."""
        if self.name:
            return self.name
        return Path(self.path).name.split(".")[0] if self.path else self.source.split(":")[0]


class ResponseSettings(Section):
    """``[response]``: what columns known in advance do to a series (docs: covariates.md)."""

    sharing: Literal["all", "none"] = setting(
        "all", "whether a client's response is fitted to the sums of all clients or to its own"
    )
    columns: Literal["private", "public"] = setting(
        "private",
        "whether [noise](covariates.md#with-noise) protects all of a client's values or only the "
        "target",
    )
    scales: str = setting(
        "",
        "each column's usual mean and deviation, for [noise](covariates.md#with-noise) (default: "
        "0 and 1)",
        '`"temperature 10 8, price 50 30"`',
    )

    @property
    def of_columns(self) -> dict[str, tuple[float, float]]:
        """The mean and the standard deviation that `scales` gives for each column."""
        parts = [part.split() for part in self.scales.split(",") if part.strip()]
        return {" ".join(names): (float(m), float(d)) for *names, m, d in parts}

    @model_validator(mode="after")
    def _has_scales(self) -> ResponseSettings:
        if self.sharing == "none" and (self.scales or self.columns == "public"):
            raise ValueError(
                "response.sharing = 'none': response.scales and response.columns have no effect"
            )
        with suppress(ValueError):
            if all(n and d > 0 and isfinite(m + d) for n, (m, d) in self.of_columns.items()):
                return self
        raise ValueError(
            f"response.scales = {self.scales!r}: expected a name, a mean and a deviation above 0 "
            "for each column, with commas between columns, as in 'temperature 10 8, price 50 30'"
        )


class GraphSettings(Section):
    """``[graph]``: where the edges between clients and their weights come from."""

    source: Literal["profiles", "positions", "file"] = setting(
        "profiles",
        "[what the edges are made from](compared.md#the-graph-over-clients): mean days that "
        "clients send, positions, or a file",
    )
    path: str = setting(
        "",
        "CSV file of the edges' weights, or of the clients' positions. Without positions, names "
        "are cells of a grid",
        "a path",
    )
    names: str = setting(
        "",
        "CSV file whose header names the clients, if the `file` of weights does not",
        "a path",
    )
    neighbours: Count = setting(8, "for `profiles`: each client's number of neighbours (k)")
    noise: NonNegative = setting(0.0, "deviation of the noise that a client adds to its profile")

    @model_validator(mode="after")
    def _paths_are_read(self) -> GraphSettings:
        if self.source == "file" and not self.path:
            raise ValueError("graph.path is empty, but graph.source = 'file' needs a file")
        if self.source == "profiles" and self.path:
            raise ValueError(
                f"graph.path = {self.path!r}: graph.source = 'profiles' reads no file; set 'file' "
                "or 'positions'"
            )
        if self.source != "file" and self.names:
            raise ValueError(f"graph.names = {self.names!r}: only with graph.source = 'file'")
        return self
