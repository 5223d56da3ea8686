"""``[data]`` and the tables in it: where the data come from and who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedproto_app.core.section import (
    PLAIN_NAMES,
    Count,
    CountOrZero,
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
    Decimal,
    Delimiter,
    Header,
    NameList,
    TimeUnit,
    names_in,
)


def _whole_numbers(given: object) -> str:
    text = str(given)  # of one number too, which is no text in TOML
    if not all(part.strip().isdecimal() and int(part) for part in text.split(",") if text):
        raise ValueError(f"data.lags = {text!r}: expected whole numbers above 0 between commas")
    return text


LagList = Annotated[str, BeforeValidator(_whole_numbers)]


class SyntheticSettings(Section):
    """``[data.synthetic]``: the embedded generators (docs: series.md, sequences.md)."""

    clients: Count = setting(24, "sites or writers of the embedded data")
    days: Annotated[int, Field(ge=8)] = setting(42, "length of the traffic")
    sequences: Count = setting(1200, "air-written digits, of all writers")
    seed: CountOrZero = setting(0, "their seed, apart from the run's")


class PartitionSettings(Section):
    """``[data.partition]``: which client holds which images at which stage (docs: gldp.md)."""

    scheme: Literal["long-tail", "dirichlet", "given"] = setting(
        "long-tail", "[who holds which images](images.md#partitions)"
    )
    clients: Count = setting(20, "N")
    classes: Count = setting(4, "S, classes of a client at a stage")
    class_draw: Literal["by-size", "uniform"] = setting(
        "by-size", "a class's chances to be among the S"
    )
    stages: Count = setting(5, "M")
    imbalance_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = setting(
        50.0, "IF, the largest class over the smallest"
    )
    alpha: Positive = setting(0.5, "of the Dirichlet distribution")
    samples: CountOrZero = setting(
        0,
        "train images of a client at a stage, which clients may share; 0: all are dealt out, "
        "none twice",
    )
    validation_share: ShareOrZero = setting(
        0.05, "of the train images, held out before they are dealt"
    )
    reserve_per_class: CountOrZero = setting(
        0,
        "train images of each class that no client gets, put aside before anything else is drawn: "
        "`fedic`'s server has them; rows beside it in a table need the same number",
    )
    test_ratio: Positive = setting(0.2, "test images a train image, and validation images too")
    test_mix: Literal["own", "everybody"] = setting(
        "own", "whose train images a client's test images are like: its own or all clients'"
    )


class SequenceSettings(Section):
    """``[data.sequences]``: how labelled sequences are read (docs: sequences.md)."""

    steps: CountOrZero = setting(0, "longer sequences are resampled to so many; 0: none is")
    scaling: Literal["sequence", "client", "none"] = setting(
        "sequence", "[what is subtracted and divided by](sequences.md#steps-and-scale)"
    )
    window: Annotated[int, Field(ge=2)] = setting(100, "steps of a window, of `recordings`")
    stride: Count = setting(100, "steps from one window to the next")
    target: str = setting(
        "", "what to predict, of `recordings`; of `synthetic-air-writing` `seconds`", "a column"
    )
    target_scale: Positive = setting(
        1.0, "models learn the target over this; errors stay in the data's units"
    )


class ClusterSettings(Section):
    """``[data.clusters]``: which client holds which sequences (docs: fed-react.md)."""

    scheme: Literal["dirichlet", "given"] = setting(
        "dirichlet", "[who holds which sequences](sequences.md#clusters)"
    )
    clients: Count = setting(10, "to deal them to")
    clusters: Count = setting(3, "of clients with one mix of classes", "1 … `clients`")
    beta: Positive = setting(1.5, "β, of the Dirichlet distribution of a cluster's mix")
    samples: CountOrZero = setting(0, "sequences of a client; 0: all are dealt out")
    labels: CountOrZero = setting(
        0, "of its sequences that a client trains on, and at most as many to validate on; 0: all"
    )
    unlabelled: bool = setting(
        False,
        "whether its other train sequences stay, without their labels, "
        "[for methods that learn from such](sequences.md#without-labels)",
    )
    renamed: bool = setting(
        False, "whether every cluster has names of its own for the classes: its 3 is another's 7"
    )

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
    """``[data]``: where the data come from and how they become samples (docs: data.md)."""

    source: Annotated[str, Field(min_length=1)] = setting(
        "synthetic-traffic",
        "where series, images or sequences come from",
        "see [data](data.md), or `package.module:factory`",
    )
    path: str = setting("", "file or folder of the source", "a path")
    name: PlainName = setting(
        "", "in tables; default: the file's or the source's name", PLAIN_NAMES
    )
    period: Annotated[int, Field(ge=2)] = setting(24, "p, samples a period; the batch size too")
    close_window: Count = setting(3, "c, the newest values that a forecast is made of")
    periodic_window: Count = setting(3, "q, values one, two, … periods before the one forecast")
    lags: LagList = setting(
        "", "further values, so many steps before the one forecast", "numbers between commas"
    )
    horizon: Count = setting(1, "H, values forecast at once", "1 … `period`")
    calendar: Literal["none", "phase", "week"] = setting(
        "none",
        "what the models see of the time: nothing, its phase of the period, or also the weekday",
    )
    history: CountOrZero = setting(
        0, "train on the newest so many periods of the train part alone; 0: on all"
    )
    train_share: Share = setting(
        0.7, "of the samples, oldest first; of sequences with classes at random, class by class"
    )
    validation_share: Share = setting(
        0.1, "the samples after those; the rest is test; [sequences](sequences.md#split)"
    )
    max_clients: CountOrZero = setting(0, "the first so many clients; 0: all")
    max_steps: CountOrZero = setting(
        0, "the first so many time steps, of series and `recordings`; 0: all"
    )
    clients: NameList = setting(
        "",
        "those of the source's clients that take part; default: all; which a site's node "
        "[takes](settings.md#a-nodes-own-settings), only the site says, here and in the keys on "
        "tables below",
        NAMES,
    )
    columns: NameList = setting(
        "",
        "of values, in [tables](tables.md) with several: the one of `csv-folder`, "
        "`parquet-folder`, `long-csv` and `long-parquet`, those of `sequence-folder` and "
        "`recordings`, in this order",
        NAMES,
    )
    time_column: str = setting(
        "", "of times; default: the first, if it is named like a time", "a column of a table"
    )
    client_column: str = setting(
        "",
        "of the clients' names in the long form; default: `unique_id` and the like",
        "a column of a table",
    )
    time_unit: TimeUnit = setting(
        "auto",
        "what times in tables are: dates, counts since 1970 or numbers of steps; auto: dates, or "
        "counts since 1970 if their size says which",
    )
    header: Header = setting(
        "auto",
        "whether the first line of a CSV file names the columns; auto: it must not look like "
        "values",
        "`auto`, true, false",
    )
    delimiter: Delimiter = setting("auto", "between the cells of a CSV file")
    decimal: Decimal = setting("point", "in the numbers of a CSV file")
    classes: str = setting(
        "",
        "all classes in the order of their labels (of images the largest first); default: the "
        "source's",
        "names between commas",
    )
    corrupt_images: Literal["refuse", "skip"] = setting(
        "refuse", "an image that cannot be read ends the run, or is left out"
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
    def _is_known_when_forecast(self) -> DataSettings:
        if self.horizon > self.period:
            raise ValueError(
                f"data.horizon = {self.horizon}: more than data.period = {self.period}; the values "
                "a period before the last ones forecast would not be known yet"
            )
        for lag in self.further_lags:
            if lag < self.horizon or (self.horizon == 1 and lag <= self.close_window):
                raise ValueError(
                    f"data.lags = {self.lags!r}: {lag} must be above data.close-window = "
                    f"{self.close_window}, which holds the values before"
                    if self.horizon == 1
                    else f"data.lags = {self.lags!r}: {lag} must be at least data.horizon = "
                    f"{self.horizon}, or its value is not known yet"
                )
        return self

    @property
    def choice(self) -> Choice:
        """What of the source takes part."""
        columns = names_in(self.columns)
        return Choice(names_in(self.clients), columns, self.time_column, self.client_column)

    @property
    def further_lags(self) -> tuple[int, ...]:
        """The numbers of `lags`."""
        return tuple(int(lag) for lag in self.lags.split(",") if lag.strip())

    @property
    def times(self) -> int:
        """How many numbers the models see of a time."""
        return ("none", "phase", "week").index(self.calendar)

    @property
    def distances(self) -> tuple[int, ...]:
        """Steps before the value forecast, longest first, of the inputs besides the close ones."""
        periodic = (self.period * number for number in range(1, self.periodic_window + 1))
        return tuple(sorted({*periodic, *self.further_lags}, reverse=True))

    @property
    def title(self) -> str:
        """The dataset's name in tables and run names."""
        if self.name:
            return self.name
        return Path(self.path).name.split(".")[0] if self.path else self.source.split(":")[0]
