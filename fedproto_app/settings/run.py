"""`Settings`: everything a run can be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from fedproto_app.core.methods import METHODS, method_named, require_known
from fedproto_app.core.randomness import stream_seed
from fedproto_app.core.section import (
    DEVICES,
    PLAIN_NAMES,
    Count,
    CountOrZero,
    Device,
    PlainName,
    Positive,
    Section,
    ShareOrEither,
    ShareOrOne,
    kebab,
    setting,
)
from fedproto_app.core.tasks import FIRST_TASK, TASKS, require_known_task
from fedproto_app.settings.aggregation import AggregationSettings
from fedproto_app.settings.data import DataSettings
from fedproto_app.settings.encoder import EncoderSettings
from fedproto_app.settings.graph import GraphSettings
from fedproto_app.settings.model import (
    ClassificationSettings,
    ModelSettings,
    OptimizerSettings,
    SequenceModelSettings,
)
from fedproto_app.settings.privacy import PrivacySettings

SMALL_COHORT = 16  # as many as a CPU's caches like; a GPU would wait for Python

FIRST_METHOD = "fuels"  # of runs whose settings name none

SectionT = TypeVar("SectionT", bound=Section)

TASK_NAMES: tuple[str, ...] = tuple(TASKS)


class NodesSettings(Section):
    """``[nodes]``: how long the server waits, and for whom."""

    minimum: Count = setting(1, "nodes needed before the first round; `fedproto run` waits for all")
    start_deadline: Positive = setting(
        300.0, "seconds to wait until they have come and read their data"
    )
    round_deadline: Positive = setting(3600.0, "seconds to wait for the replies of one phase")
    enough: ShareOrOne = setting(
        1.0,
        "share of the nodes asked whose answers are enough: the others [then have as long "
        "again](reliability.md#slow-nodes), ten seconds at least; 1: the deadline alone counts",
    )
    maximum_failed_share: ShareOrEither = setting(
        0.5, "share of the nodes asked that may give nothing; above it the run stops"
    )
    maximum_clients: Count = setting(
        20_000,
        "clients of all nodes that ever came; a node that would bring more is turned away. "
        "`fed-react` compares every two clients, which for 20,000 takes 1.6 GB a matrix",
    )
    maximum_clients_per_node: CountOrZero = setting(
        0,
        "of these, how many one deployed node may bring; 0: a quarter. Simulated nodes may bring "
        "any number",
    )
    bind_names: bool = setting(
        True,
        "a deployed node's name belongs to the key that first came with it "
        "([why](deployment.md#names-and-keys)); `false` where nodes have no keys of their own, so "
        "that Flower gives them a new one at each start",
    )

    @model_validator(mode="after")
    def _late_nodes_do_not_end_the_run(self) -> NodesSettings:
        if self.enough + self.maximum_failed_share < 1:
            raise ValueError(
                f"nodes.enough = {self.enough:g}: then more nodes may be late than "
                f"nodes.maximum-failed-share = {self.maximum_failed_share:g} allows"
            )
        return self

    @property
    def quota(self) -> int:
        """Clients that one deployed node may bring."""
        return self.maximum_clients_per_node or max(1, self.maximum_clients // 4)


class OutputSettings(Section):
    """``[output]``: where the artefacts of the run go."""

    dir: Annotated[str, Field(min_length=1)] = setting("runs", "run folders go here", "a path")
    name: PlainName = setting("", "default: method-dataset-seed-time", PLAIN_NAMES)
    resume: bool = setting(
        False, "go on with the run of this name; `fedproto run --resume` sets it"
    )
    pictures: bool = setting(True, "draw them, and write [`report.html`](report.md), at the end")
    tensorboard: bool = setting(
        False, "[events for TensorBoard](export.md#tensorboard) in the run's folder, round by round"
    )


@dataclass(frozen=True)
class Training:
    """What a learner goes by besides its own section.

    pretraining_rounds: rounds of the run before the first one of the method's own phase.
    nodes_average: whether nodes may average their clients' models, or the server gets each.
    sample_clip: the most length of a sample in sums that are sent; None: any.
    """

    seed: int
    local_epochs: int
    pretraining_rounds: int
    optimizer: OptimizerSettings
    nodes_average: bool = True
    sample_clip: float | None = None


class Settings(Section):
    """Everything a run can be told.

    Files and dictionaries have the method's own table under the table's name: see `settings_from`.
    """

    task: Annotated[str, AfterValidator(require_known_task)] = setting(
        FIRST_TASK,
        "what is learnt: the next value of a series, classes of images, classes of sequences, or "
        "a number for each sequence",
        f"`{' '.join(TASKS)}`",
    )
    method: Annotated[str, AfterValidator(require_known)] = setting(
        FIRST_METHOD,
        "what trains; [each one's tasks](methods.md), or [one of your own](#a-method-of-your-own)",
        f"`{' '.join(METHODS)}`, or `package.module:METHOD`",
    )
    seed: CountOrZero = setting(0, "of everything random")
    rounds: Count = setting(
        40,
        "at most so many; of `fed-react`, `ifca` and `flsc` those of phase 2, after the encoder's; "
        "`kindred`, `analytic`, `naive` and `seasonal-naive` have one, on images one a stage",
    )
    local_epochs: Count = setting(
        1, "epochs a client trains in a round; no effect on `fed-react`, `ifca`, `flsc`"
    )
    participation: ShareOrOne = setting(
        1.0,
        "α, share of the clients asked each round; methods that average no model (`fuels`, "
        "`fedproto`, `solo`, the closed forms, phase 2 of `fed-react`, `ifca`, `flsc`) always ask "
        "newcomers, so closed forms ask all",
    )
    evaluate_every: Count = setting(
        1, "rounds between evaluations; the last round always is, phase 1 never"
    )
    patience: CountOrZero = setting(
        0,
        "stop after so many evaluations without a better mean validation error (with an "
        "`aggregation.rule`: median over the clients); 0: never",
    )
    keep: Literal["best-validation", "last"] = setting(
        "best-validation",
        "the model each client ends with; `last` (and no `patience`) where images come in stages, "
        "whose errors cannot be compared",
    )
    device: Device = setting(
        "cpu",
        "where a node trains; `auto` takes a GPU if there is one. In a simulation the nodes share "
        "the GPUs (`fedproto run --gpus-per-node`)",
        DEVICES,
    )
    precision: Literal["float32", "tf32", "bfloat16"] = setting(
        "float32",
        "tf32: a GPU multiplies numbers rounded to 10 bits of mantissa; a CPU takes no notice. "
        "bfloat16: encoders compute in mixed precision, on a CPU too",
    )
    threads: Count = setting(
        1,
        "torch threads of a node's process, and of the server where it learns (`creff`, `fedic`, "
        "`fedda`, `fedtgp`)",
    )
    cohort_size: CountOrZero = setting(
        0,
        "clients trained together in one vectorised step; changes speed, not results. 0: 16 on a "
        "CPU, on a GPU as many as its memory holds",
    )
    method_settings: SerializeAsAny[Section] = Field(
        default=Section(),
        description="the method's own table, such as `[fuels]`; where Flower reads the settings a "
        "text in TOML, which may have `[encoder]` and `[graph]` too ([how](#the-methods-table))",
        json_schema_extra={"allowed": "what the method's record declares"},
    )
    data: DataSettings = DataSettings()
    graph: GraphSettings = GraphSettings()
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    classification: ClassificationSettings = ClassificationSettings()
    aggregation: AggregationSettings = AggregationSettings()
    privacy: PrivacySettings = PrivacySettings()
    sequence: SequenceModelSettings = SequenceModelSettings()
    encoder: EncoderSettings = EncoderSettings()
    nodes: NodesSettings = NodesSettings()
    output: OutputSettings = OutputSettings()

    @model_validator(mode="before")
    @classmethod
    def _methods_defaults(cls, given: Any) -> Any:
        """The table of the method, if it is not given."""
        keys = ("method_settings", "method-settings")
        name = given.get("method", FIRST_METHOD) if isinstance(given, dict) else ""
        if not isinstance(name, str) or any(key in given for key in keys):
            return given
        return {**given, "method-settings": method_named(require_known(name)).settings()}

    @model_serializer(mode="wrap")
    def _tables_have_their_names(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The method's table under the table's name, and none if it is empty."""
        table: dict[str, Any] = handler(self)
        for key in ("method_settings", "method-settings"):
            if own := table.pop(key, None):
                table[method_named(self.method).table_name] = own
        return table

    @classmethod
    def tables(cls) -> tuple[str, ...]:
        """The names of the tables that all runs have."""
        fields = cls.model_fields.items()
        return tuple(kebab(n) for n, f in fields if isinstance(f.default, Section))

    def method_table(self, kind: type[SectionT]) -> SectionT:
        """The method's own settings, which are of this class."""
        assert isinstance(self.method_settings, kind)
        return self.method_settings

    def with_factor(self, factor: float) -> Settings:
        """These settings with models of this width alone."""
        model = self.model.model_copy(update={"width_factors": repr(factor)})
        return self.model_copy(update={"model": model})

    def of_client(self, name: str) -> Settings:
        """These settings with the width of this client's model alone."""
        ((settings, _),) = self.by_width([name])
        return settings

    def by_width(self, names: Sequence[str]) -> list[tuple[Settings, list[str]]]:
        """The clients whose models have the same width, with their settings.

        A client draws its width by its name, so it has the same one at every node and at all times.
        """
        factors = self.model.factors
        if len(factors) == 1:
            return [(self, list(names))]
        clients: dict[float, list[str]] = {factor: [] for factor in factors}
        for name in names:
            clients[factors[stream_seed(self.seed, name, "width") % len(factors)]].append(name)
        return [(self.with_factor(factor), group) for factor, group in clients.items() if group]

    @property
    def cohort_on_cpu(self) -> int:
        """`cohort_size` where the CPU computes."""
        return self.cohort_size or SMALL_COHORT

    @property
    def pretraining_rounds(self) -> int:
        """Rounds of a first phase, before those of the method itself."""
        return method_named(self.method).pretraining_rounds(self)

    @property
    def all_rounds(self) -> int:
        """Rounds of both phases."""
        return self.pretraining_rounds + self.rounds

    @property
    def training(self) -> Training:
        """What every learner goes by."""
        return Training(
            self.seed,
            self.local_epochs,
            self.pretraining_rounds,
            self.optimizer,
            nodes_average=self.aggregation.rule == "mean",
            sample_clip=self.privacy.clip if self.privacy.is_on else None,
        )
