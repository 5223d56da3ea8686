"""Run configuration as frozen, typed settings.

Flower hands the app a flat dictionary with dotted keys (``fuels.temperature``); the
configuration files nest the same keys as TOML tables. Both become one `Settings` object here,
before any node is asked to work. Keys are kebab-case outside and snake_case inside.

The defaults below and ``[tool.flwr.app.config]`` in ``pyproject.toml`` are the same table (a
test compares them), because Flower lets ``--run-config`` override only keys listed there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedproto_app.errors import SettingsError
from fedproto_app.tasks.table import FIRST_TASK, TASKS, check_settings, require_known_task

Share = Annotated[float, Field(gt=0, lt=1)]
ShareOrZero = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
PLAIN_NAME = r"[A-Za-z0-9][A-Za-z0-9._=+-]*"  # fit for a folder, and no way out of one
PlainName = Annotated[str, Field(pattern=rf"^({PLAIN_NAME})?$", max_length=120)]
Device = Annotated[str, Field(pattern=r"^(cpu|auto|cuda(:\d+)?)$")]

TASK_NAMES: tuple[str, ...] = tuple(TASKS)
SEQUENCE_TASKS = ("sequence-classification", "sequence-regression")
Method = Literal[
    "fuels", "gldp", "fed-react", "ifca", "flsc",
    "solo", "fedavg", "fedprox", "fedrep", "fedproto", "apfl", "ditto",
]  # fmt: skip
METHOD_NAMES: tuple[str, ...] = get_args(Method)
# Methods of one kind of task; the others work with all.
ONLY_TASKS: dict[str, tuple[str, ...]] = {
    "fuels": ("forecasting",),
    "fedproto": ("forecasting",),
    "gldp": ("classification",),
    "fed-react": SEQUENCE_TASKS,
    "ifca": SEQUENCE_TASKS,
    "flsc": SEQUENCE_TASKS,
}
# Methods that first learn an encoder without labels, in rounds of their own.
PRETRAINED = ("fed-react", "ifca", "flsc")


# What ``fed-react.similarity`` compares heads by.


def methods_of(task: str) -> list[str]:
    """The methods that work with a task."""
    return [name for name in METHOD_NAMES if task in ONLY_TASKS.get(name, TASK_NAMES)]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Section(BaseModel):
    """One frozen table of settings."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=_kebab, populate_by_name=True
    )


class SyntheticSettings(Section):
    """``[data.synthetic]``: the embedded generators (docs: data.md)."""

    clients: Count = 24
    days: Annotated[int, Field(ge=8)] = 42  # of traffic
    sequences: Count = 1200  # air-written digits
    windows: Count = 40  # of an electric vehicle, the geometric mean
    seed: CountOrZero = 0


class PartitionSettings(Section):
    """``[data.partition]``: which client holds which images at which stage (docs: gldp.md)."""

    scheme: Literal["long-tail", "dirichlet", "given"] = "long-tail"
    clients: Count = 20  # N
    classes: Count = 4  # S, classes a client and stage
    class_draw: Literal["by-size", "uniform"] = "by-size"  # chances of a class to be drawn
    stages: Count = 5  # M
    minimum_stages: CountOrZero = 0  # if > 0, each client draws its own number up to `stages`
    imbalance_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 50.0  # IF
    alpha: Positive = 0.5  # of the Dirichlet distribution
    samples: CountOrZero = 0  # a client and stage; 0 = the pool is dealt out, no image twice
    validation_share: ShareOrZero = 0.05  # of the training images, held out before they are dealt
    test_ratio: Positive = 0.2  # test images a training image, of the same classes

    @model_validator(mode="after")
    def _stages_in_order(self) -> PartitionSettings:
        if self.minimum_stages > self.stages:
            raise ValueError(
                f"data.partition.minimum-stages = {self.minimum_stages}: more than "
                f"data.partition.stages = {self.stages}"
            )
        return self


class SequenceSettings(Section):
    """``[data.sequences]``: how labelled sequences are read (docs: data.md)."""

    steps: CountOrZero = 0  # longer sequences are resampled to so many; 0 = as they are
    scaling: Literal["sequence", "client", "none"] = "sequence"
    window: Annotated[int, Field(ge=2)] = 100  # steps of a window cut from a recording
    stride: Count = 100  # steps from one window to the next
    target: str = ""  # the column to predict, of recordings in CSV files
    target_scale: Positive = 1.0  # what a model learns is the target over this


class ClusterSettings(Section):
    """``[data.clusters]``: which client holds which sequences (docs: fed-react.md)."""

    scheme: Literal["dirichlet", "given"] = "dirichlet"
    clients: Count = 10
    clusters: Count = 3  # of clients with one distribution of labels
    beta: Positive = 1.5  # of the Dirichlet distribution
    samples: CountOrZero = 0  # a client; 0 = all sequences are dealt out

    @model_validator(mode="after")
    def _clusters_fit_the_clients(self) -> ClusterSettings:
        if self.scheme == "dirichlet" and self.clusters > self.clients:
            raise ValueError(
                f"data.clusters.clusters = {self.clusters}: more than data.clusters.clients = "
                f"{self.clients}"
            )
        return self


@dataclass(frozen=True)
class Choice:
    """What of its own source a node lets take part; empty: all of it, found by itself.

    No key of a run: only a node's own settings choose (site.py).
    clients: by name. columns: those of values in CSV files with several, in this order.
    time_column: the one of CSV files that holds times.
    """

    clients: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    time_column: str = ""


class DataSettings(Section):
    """``[data]``: where the data come from and how they become samples (docs: data.md)."""

    source: Annotated[str, Field(min_length=1)] = "synthetic-traffic"
    path: str = ""
    name: PlainName = ""  # shown in tables; default: the file's or the source's name
    period: Annotated[int, Field(ge=2)] = 24
    close_window: Count = 3
    periodic_window: Count = 3
    train_share: Share = 0.7
    validation_share: Share = 0.1
    max_clients: CountOrZero = 0  # the first so many clients of the source; 0 = all
    max_steps: CountOrZero = 0  # the first so many time steps of the source; 0 = all
    classes: str = ""  # names in the order of the labels, comma-separated; default: the source's
    corrupt_images: Literal["refuse", "skip"] = "refuse"
    synthetic: SyntheticSettings = SyntheticSettings()
    partition: PartitionSettings = PartitionSettings()
    sequences: SequenceSettings = SequenceSettings()
    clusters: ClusterSettings = ClusterSettings()
    choice: Choice = Field(default=Choice(), exclude=True)

    @model_validator(mode="after")
    def _shares_leave_a_test_part(self) -> DataSettings:
        if self.train_share + self.validation_share >= 1:
            raise ValueError(
                "data.train-share + data.validation-share must stay below 1 to leave a test part, "
                f"got {self.train_share} + {self.validation_share}"
            )
        return self

    @property
    def title(self) -> str:
        """The dataset's name in tables and run names."""
        if self.name:
            return self.name
        return Path(self.path).name.split(".")[0] if self.path else self.source.split(":")[0]


class ModelSettings(Section):
    """``[model]``: the forecaster or the image classifier that all methods share."""

    representation_dim: Annotated[int, Field(ge=2, multiple_of=2)] = 256  # ResNet-18: always 512
    image_encoder: Literal["small-cnn", "resnet18"] = "small-cnn"
    width: Annotated[int, Field(ge=4, multiple_of=4)] = 16  # channels of the CNN's first layer
    sequence_encoder: Literal["lstm", "causal-cnn"] = "lstm"  # Fed-REACT's is always the CNN
    embedding_dim: Count = 128  # in front of the LSTM
    hidden_dim: Count = 256  # the LSTM's
    module: str = ""  # package.module:factory of a torch.nn.Module in place of all these


class OptimizerSettings(Section):
    """``[optimizer]``."""

    name: Literal["adam", "sgd"] = "adam"
    learning_rate: Positive = 1e-3
    momentum: ShareOrZero = 0.9  # SGD's
    weight_decay: NonNegative = 0.0  # SGD's
    smoothing_window: Count = 1  # w: gradients that a step averages (DTSSGD); 1 = the newest alone
    smoothing_factor: Annotated[float, Field(gt=0, le=1)] = 0.9  # gamma


class ClassificationSettings(Section):
    """``[classification]``: batches of labelled images."""

    batch_size: Count = 32
    augment: bool = True  # random crop and, if `flip`, mirror image, of every image of a batch
    flip: bool = True  # digits and letters must not be mirrored
    stage_schedule: Literal["sequential", "cyclic"] = "sequential"


class FuelsSettings(Section):
    """``[fuels]``: FUELS; Greek letters of the paper are spelled out."""

    prototype_dim: CountOrZero = 32  # d_p; 0 = no projector, the representation itself
    temperature: Positive = 0.02  # tau
    inter_weight: NonNegative = 5.0  # rho
    negatives: Literal["filtered", "similarity"] = "filtered"  # P, eq. 6 / A, eq. 2
    augmentation_low: Annotated[float, Field(gt=0, le=1)] = 0.8
    threshold: Literal["percentile", "absolute"] = "percentile"
    beta: NonNegative = 50.0  # a percentile of the off-diagonal JSDs, or a JSD in nats
    intra: bool = True  # ablation "w/o intra"
    inter: bool = True  # ablation "w/o inter"
    periodicity_aware: bool = True  # ablation "w/o p-aware"
    learn_filter: bool = True  # ablation "w/o W"
    noise: Literal["none", "laplace", "gaussian", "exponential"] = "none"
    noise_scale: Positive = 1.0

    @model_validator(mode="after")
    def _percentile_in_range(self) -> FuelsSettings:
        if self.threshold == "percentile" and self.beta > 100:
            raise ValueError(
                f'fuels.beta = {self.beta} is no percentile: with fuels.threshold = "percentile" '
                "it must lie in 0 ... 100"
            )
        return self


class GldpSettings(Section):
    """``[gldp]``: GLDP; Greek letters of the paper are spelled out."""

    encoder_epochs: Count = 10  # t, on mu with nu frozen
    head_epochs: Count = 20  # s, on nu with mu frozen
    balance: Annotated[float, Field(ge=0, le=1)] = 0.5  # lambda
    memory: Annotated[float, Field(ge=0, le=1)] = 0.5  # beta
    relations: bool = True  # false: the ablation with neither L_LP nor L_GP
    local_relation: Literal["embedding", "prediction"] = "embedding"  # GLDP, eq. 7 / GLDP, eq. 8
    prototype_encoder: Literal["own", "shared"] = "own"  # mu as trained / Theta as received
    inference: Literal["local-prototypes", "global-prototypes", "head"] = "local-prototypes"


class SequenceModelSettings(Section):
    """``[sequence]``: batches of labelled sequences."""

    batch_size: Count = 50


class EncoderSettings(Section):
    """``[encoder]``: the causal CNN and how it learns without labels (Fed-REACT, phase 1)."""

    path: str = ""  # of a trained encoder, or its run; then there is no first phase
    rounds: CountOrZero = 10  # before those of the second phase; 0 = the encoder as it is drawn
    steps: Count = 500  # of a client and round
    batch_size: Count = 10
    negatives: Count = 10  # R
    negative_terms: Literal["sum", "mean"] = "sum"  # Fed-REACT, eq. 1 / as Franceschi et al.
    blocks: Count = 10
    channels: Count = 40
    reduced_dim: Count = 160  # channels out of the last block, which are pooled over time
    output_dim: Count = 320

    @property
    def file(self) -> Path:
        """The file that `path` means: an encoder's own, or that of a run by the run's folder."""
        path = Path(self.path).expanduser()
        return path / "model" / "global.safetensors" if path.is_dir() else path


class FedReactSettings(Section):
    """``[fed-react]``: the second phase; IFCA and FLSC share its heads."""

    clusters: CountOrZero = 3  # C; 0 = as the silhouette of each round has it
    samples: CountOrZero = 64  # |M_t| labelled samples of a client and round; 0 = all it has
    penalty: Positive = 1.0  # of an error, over the head's norm: the support vector machine's C
    clustering: Literal["evolutionary", "snapshot"] = "evolutionary"
    similarity: Literal["cosine", "centred-cosine", "class-norms"] = "cosine"
    affect_iterations: Count = 5
    smoothing: Literal["none", "mean", "forgetting", "kalman"] = "kalman"  # - / A1 / A2 / A3
    process_variance: Positive = 0.01  # q, where the EM algorithm starts
    measurement_variance: Positive = 0.1  # r, where it starts
    em_iterations: CountOrZero = 5  # 0 = q and r stay as they are set


class FlscSettings(Section):
    """``[flsc]``."""

    overlap: Count = 2  # clusters that a client belongs to


class DittoSettings(Section):
    """``[ditto]``."""

    proximal_lambda: NonNegative = 1e-4  # the personal model's pull to the global one
    personal_epochs: CountOrZero = 0  # 0 = local-epochs


class ApflSettings(Section):
    """``[apfl]``."""

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5  # the personal model's share at the start
    adaptive: bool = True


class FedProxSettings(Section):
    """``[fedprox]``."""

    proximal_mu: NonNegative = 0.01  # Li et al. 2020 try 0.001 ... 1


class FedRepSettings(Section):
    """``[fedrep]``."""

    head_epochs: Count = 1  # head steps with the encoder frozen, before the encoder's epochs
    encoder_epochs: CountOrZero = 0  # 0 = local-epochs


class FedProtoSettings(Section):
    """``[fedproto]``."""

    prototype_weight: NonNegative = 1.0  # Tan et al. 2022: lambda = 1


class NodesSettings(Section):
    """``[nodes]``: how long the server waits, and for whom."""

    minimum: Count = 1  # nodes needed before the first round
    start_deadline: Positive = 300.0  # seconds to wait until they have come and read their data
    round_deadline: Positive = 3600.0  # seconds to wait for the replies of one phase
    maximum_failed_share: Annotated[float, Field(ge=0, le=1)] = 0.5  # above: the run stops
    maximum_clients: Count = 20_000  # of all nodes that ever came; a node with more is turned away


class OutputSettings(Section):
    """``[output]``: where the artefacts of the run go."""

    dir: Annotated[str, Field(min_length=1)] = "runs"
    name: PlainName = ""  # default: method-dataset-seed-time
    resume: bool = False  # go on with the run `name` from its newest checkpoint
    pictures: bool = True


class Settings(Section):
    """Everything a run can be told."""

    task: Annotated[str, AfterValidator(require_known_task)] = FIRST_TASK
    method: Method = "fuels"
    seed: CountOrZero = 0
    rounds: Count = 40
    local_epochs: Count = 1
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0  # alpha
    evaluate_every: Count = 1
    patience: CountOrZero = 0  # evaluations without a better mean validation error; 0 = no stop
    keep: Literal["best-validation", "last"] = "best-validation"
    device: Device = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: mixed, where torch allows
    threads: Count = 1  # torch threads of a node's process
    cohort_size: Count = 16  # clients trained together in one vectorised step
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    classification: ClassificationSettings = ClassificationSettings()
    fuels: FuelsSettings = FuelsSettings()
    gldp: GldpSettings = GldpSettings()
    sequence: SequenceModelSettings = SequenceModelSettings()
    encoder: EncoderSettings = EncoderSettings()
    fed_react: FedReactSettings = FedReactSettings()
    flsc: FlscSettings = FlscSettings()
    ditto: DittoSettings = DittoSettings()
    apfl: ApflSettings = ApflSettings()
    fedprox: FedProxSettings = FedProxSettings()
    fedrep: FedRepSettings = FedRepSettings()
    fedproto: FedProtoSettings = FedProtoSettings()
    nodes: NodesSettings = NodesSettings()
    output: OutputSettings = OutputSettings()

    @property
    def encoder_rounds(self) -> int:
        """Rounds of the first phase, in which an encoder is learned without labels."""
        return self.encoder.rounds if self.method in PRETRAINED and not self.encoder.path else 0

    @property
    def clusters_of_a_client(self) -> int:
        """Clusters that a client belongs to: several with FLSC."""
        return self.flsc.overlap if self.method == "flsc" else 1

    @property
    def all_rounds(self) -> int:
        """Rounds of both phases."""
        return self.encoder_rounds + self.rounds

    @model_validator(mode="after")
    def _method_fits_task(self) -> Settings:
        allowed = ONLY_TASKS.get(self.method, tuple(TASKS))
        if self.task not in allowed:
            raise ValueError(
                f"method = {self.method!r}: works with task = "
                f"{' or '.join(map(repr, allowed))} only; task = {self.task!r} has "
                f"{', '.join(methods_of(self.task))}"
            )
        return self

    @model_validator(mode="after")
    def _heads_can_be_compared(self) -> Settings:
        if self.task == "sequence-regression" and self.fed_react.similarity == "class-norms":
            raise ValueError(
                "fed-react.similarity = 'class-norms': a head of task = 'sequence-regression' has "
                "no classes; set 'cosine' or 'centred-cosine'"
            )
        return self

    @model_validator(mode="after")
    def _clients_can_choose_clusters(self) -> Settings:
        clusters = self.fed_react.clusters
        if self.method in ("ifca", "flsc") and clusters == 0:
            raise ValueError(
                f"fed-react.clusters = 0: method = {self.method!r} needs to know how many there are"
            )
        if self.method == "flsc" and self.flsc.overlap > clusters:
            raise ValueError(
                f"flsc.overlap = {self.flsc.overlap}: more than fed-react.clusters = {clusters}"
            )
        return self


def settings_from(config: Mapping[str, Any]) -> Settings:
    """Validate a run configuration, flat with dotted keys or nested.

    Raises `SettingsError` with one line per fault: the key, the value, what is allowed.
    """
    try:
        settings = Settings.model_validate(_nested(config))
    except ValidationError as error:
        raise SettingsError("; ".join(explain(fault) for fault in error.errors())) from None
    check_settings(settings)
    return settings


def default_run_name(settings: Settings) -> str:
    """method-dataset-seed-time, fit for a folder."""
    title = re.sub(r"[^A-Za-z0-9._=+-]+", "-", settings.data.title)[:60]
    return f"{settings.method}-{title}-s{settings.seed}-{datetime.now():%Y%m%d-%H%M%S}"


def flat_settings(settings: Settings) -> dict[str, Any]:
    """The settings as Flower's flat run configuration with dotted keys."""
    flat: dict[str, Any] = {}

    def walk(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = value

    walk(settings.model_dump(by_alias=True), "")
    return flat


def _nested(config: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in config.items():
        *tables, leaf = key.split(".")
        table = nested
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{key}: {name!r} is a value, not a table of settings")
        known = table.get(leaf)
        if isinstance(value, Mapping):
            inner = _nested(value)
            if known is not None and not isinstance(known, dict):
                raise SettingsError(f"{key}: {leaf!r} is a value, not a table of settings")
            table[leaf] = {**(known or {}), **inner}
        else:
            table[leaf] = value
    return nested


def explain(fault: Any, table: type[Section] = Settings) -> str:
    """One line for one of pydantic's faults of such a table."""
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] in ("extra_forbidden", "dataclass_exact_type"):  # the latter: `Choice`
        return f"{key}: unknown setting; known here: {', '.join(_known(table, fault['loc'][:-1]))}"
    if fault["type"] == "model_type":
        return f"{key} = {fault['input']!r}: must be a table of settings"
    return f"{key} = {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _known(section: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    for part in location:
        field = next(f for f in section.model_fields.values() if f.alias == part)
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, BaseModel)
        section = field.annotation
    return sorted(str(f.alias) for f in section.model_fields.values() if not f.exclude)
