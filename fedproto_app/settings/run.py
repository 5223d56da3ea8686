"""`Settings`: the whole configuration of a run."""

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

from fedproto_app.core.method import Pretraining
from fedproto_app.core.methods import method_named, require_known, response_phases
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
from fedproto_app.core.tasks import FIRST_TASK, TASKS, require_known_task, task_record
from fedproto_app.settings.aggregation import AggregationSettings, PrivacySettings
from fedproto_app.settings.choice import NAMES, NodeNames, names_in
from fedproto_app.settings.data import DataSettings, GraphSettings, ResponseSettings
from fedproto_app.settings.model import (
    ClassificationSettings,
    EncoderSettings,
    ModelSettings,
    OptimizerSettings,
    SequenceModelSettings,
)

SMALL_COHORT = 16  # fits into a CPU's caches, but would leave a GPU waiting for Python

FIRST_METHOD = "fuels"  # the default

SectionT = TypeVar("SectionT", bound=Section)

TASK_NAMES: tuple[str, ...] = tuple(TASKS)


class NodesSettings(Section):
    """``[nodes]``: how long the server waits, and for how many nodes and clients."""

    minimum: Count = setting(1, "nodes needed before the first round. `fedproto run` waits for all")
    names: NodeNames = setting(
        "",
        "[deployed nodes to ask and wait for](reliability.md#which-nodes-take-part) (default: all)",
        NAMES,
    )
    start_deadline: Positive = setting(300.0, "seconds for nodes to connect and read their data")
    round_deadline: Positive = setting(3600.0, "seconds for the replies of one phase")
    enough: ShareOrOne = setting(
        1.0,
        "share of the asked nodes whose replies are enough. The others then [get as much time "
        "again](reliability.md#slow-nodes)",
    )
    maximum_failed_share: ShareOrEither = setting(
        0.5, "share of the asked nodes that may fail before the run stops"
    )
    maximum_clients: Count = setting(
        20_000,
        "limit on the clients of all nodes that ever connected",
    )
    maximum_clients_per_node: CountOrZero = setting(
        0,
        "limit on the clients of one deployed node (0: a quarter of `maximum-clients`)",
    )
    bind_names: bool = setting(
        True,
        "a name belongs to [the key that first came with it](deployment.md#names-and-keys). "
        "Set false if nodes have no keys",
    )

    @model_validator(mode="after")
    def _enough_nodes_are_named(self) -> NodesSettings:
        if 0 < len(self.named) < self.minimum:
            raise ValueError(
                f"nodes.minimum = {self.minimum}: more than the {len(self.named)} of "
                f"nodes.names = {self.names!r}"
            )
        return self

    @model_validator(mode="after")
    def _late_nodes_do_not_end_the_run(self) -> NodesSettings:
        if self.enough + self.maximum_failed_share < 1:
            raise ValueError(
                f"nodes.enough = {self.enough:g}: then more nodes may be late than "
                f"nodes.maximum-failed-share = {self.maximum_failed_share:g} allows"
            )
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """The names of the nodes that take part, or () if all may."""
        return names_in(self.names)

    @property
    def quota(self) -> int:
        """How many clients one deployed node may bring."""
        return self.maximum_clients_per_node or max(1, self.maximum_clients // 4)


class OutputSettings(Section):
    """``[output]``: where the artefacts of the run go."""

    dir: Annotated[str, Field(min_length=1)] = setting(
        "runs", "folder for the run folders", "a path"
    )
    name: PlainName = setting(
        "", "name of the run folder (default: method-dataset-seed-time)", PLAIN_NAMES
    )
    resume: bool = setting(False, "continue the run of this name (`--resume`)")
    pictures: bool = setting(
        True,
        "draw [pictures](artefacts.md#pictures) and write [`report.html`](report.md)",
    )


@dataclass(frozen=True)
class Training:
    """The settings that every learner gets in addition to its own section.

    pretraining_rounds: how many rounds of the run come before the method's own phase.
    nodes_average: whether nodes may average their clients' models. If not, the server gets each
    model. sample_clip: the largest length of a sample in sums that are sent, None for any length.
    counts_samples: whether the server learns the clients' numbers of samples, which may serve as
    weights. masked: whether masks, but no noise, hide each client's values. kernel: what runs the
    training, torch or numba.
    """

    seed: int
    local_epochs: int
    pretraining_rounds: int
    optimizer: OptimizerSettings
    nodes_average: bool = True
    sample_clip: float | None = None
    counts_samples: bool = True
    masked: bool = False
    kernel: str = "torch"


class Settings(Section):
    """The configuration of a run.

    In files and dictionaries the method's table stands under its own name (see `settings_from`).
    """

    task: Annotated[str, AfterValidator(require_known_task)] = setting(
        FIRST_TASK,
        "forecast series, classify images, classify sequences, or predict a number for each "
        "sequence",
        f"`{' '.join(TASKS)}`",
    )
    method: Annotated[str, AfterValidator(require_known)] = setting(
        FIRST_METHOD,
        "[a method](methods.md), or `package.module:METHOD` for [your "
        "own](extending.md#your-own-method)",
        "a name",
    )
    seed: CountOrZero = setting(0, "the same seed gives the same results")
    rounds: Count = setting(
        40,
        "most rounds, not counting `encoder.rounds`. Closed forms need one. For images they need "
        "one per stage",
    )
    local_epochs: Count = setting(
        1,
        "training epochs per round (not for `fed-react`, `ifca`, `flsc` and `gldp`)",
    )
    participation: ShareOrOne = setting(
        1.0,
        "share of the clients asked in a round (α). Methods that average no model also ask every "
        "new client. Closed forms ask every client",
    )
    evaluate_every: Count = setting(
        1,
        "rounds between evaluations. The last round is always evaluated",
    )
    patience: CountOrZero = setting(
        0,
        "end the run when the median validation error has not fallen for this many evaluations "
        "(0: never)",
    )
    keep: Literal["best-validation", "last"] = setting(
        "best-validation",
        "[which model](running.md#which-model-counts) a client ends with. Images in stages need "
        "`last` and `patience=0`",
    )
    device: Device = setting(
        "cpu",
        "where nodes train. `auto` means a GPU if there is one",
        DEVICES,
    )
    precision: Literal["float32", "tf32", "bfloat16"] = setting(
        "float32",
        "[precision](scale.md#on-a-gpu) of training",
    )
    kernel: Literal["torch", "numba"] = setting(
        "torch",
        "what runs the training. For some methods on series, `numba` [compiles the "
        "epochs](scale.md#the-numba-kernel)",
    )
    threads: Count = setting(
        1,
        "torch threads in each node's process and in the server",
    )
    cohort_size: CountOrZero = setting(
        0,
        "clients trained in one vectorised step (0: 16 on a CPU, as many as fit on a GPU)",
    )
    method_settings: SerializeAsAny[Section] = Field(
        default=Section(),
        description="for `flwr run`: the method's table, such as `[fuels]`, [as one "
        "text](#the-methods-table)",
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
    response: ResponseSettings = ResponseSettings()
    nodes: NodesSettings = NodesSettings()
    output: OutputSettings = OutputSettings()

    @model_validator(mode="before")
    @classmethod
    def _methods_defaults(cls, values: Any) -> Any:
        """Add the method's table with its defaults if it is missing."""
        keys = ("method_settings", "method-settings")
        name = values.get("method", FIRST_METHOD) if isinstance(values, dict) else ""
        if not isinstance(name, str) or any(key in values for key in keys):
            return values
        return {**values, "method-settings": method_named(require_known(name)).settings()}

    @model_serializer(mode="wrap")
    def _tables_have_their_names(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Put the method's table under the table's name, or leave it out if it is empty."""
        table: dict[str, Any] = handler(self)
        for key in ("method_settings", "method-settings"):
            if method_table := table.pop(key, None):
                table[method_named(self.method).table_name] = method_table
        return table

    @classmethod
    def tables(cls) -> tuple[str, ...]:
        """The names of the tables that all runs have."""
        fields = cls.model_fields.items()
        return tuple(kebab(n) for n, f in fields if isinstance(f.default, Section))

    def method_table(self, kind: type[SectionT]) -> SectionT:
        """Return the method's settings, which are of this class."""
        assert isinstance(self.method_settings, kind)
        return self.method_settings

    def with_factor(self, factor: float) -> Settings:
        """Return these settings with this as the only width factor."""
        model = self.model.model_copy(update={"width_factors": repr(factor)})
        return self.model_copy(update={"model": model})

    def of_client(self, name: str) -> Settings:
        """Return these settings with the width factor of this client's model as the only one."""
        ((settings, _),) = self.by_width([name])
        return settings

    def by_width(self, names: Sequence[str]) -> list[tuple[Settings, list[str]]]:
        """Group the clients by the width of their models. Return each group with its settings.

        The width depends on the client's name alone, so it is the same at every node.
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
        """The cohort size for training on a CPU."""
        return self.cohort_size or SMALL_COHORT

    @property
    def has_response(self) -> bool:
        """Whether clients subtract each series's response to columns known in advance."""
        return task_record(self.task).forecasts and self.data.has_known

    @property
    def first_phases(self) -> tuple[Pretraining, ...]:
        """The phases before the method's own rounds, in their order."""
        brought = method_named(self.method).pretraining
        return (brought,) if brought else response_phases() if self.has_response else ()

    def phase_of(self, server_round: int) -> Pretraining | None:
        """Return the early phase that a round belongs to, or None for one of the method's own."""
        end = 0
        for phase in self.first_phases:
            end += phase.rounds(self)
            if server_round <= end:
                return phase
        return None

    @property
    def pretraining_rounds(self) -> int:
        """The number of rounds before the method's own rounds."""
        return sum(phase.rounds(self) for phase in self.first_phases)

    @property
    def has_round_per_stage(self) -> bool:
        """Whether the data bring their own stages, and each round adds the next stage.

        Closed forms fit each stage once, and the nodes know how many stages there are.
        """
        has_stages = task_record(self.task).holds == "images"
        brings_stages = has_stages and self.data.partition.scheme == "given"
        return brings_stages and method_named(self.method).rounds is not None

    @property
    def all_rounds(self) -> int:
        """The number of rounds of all phases together."""
        return self.pretraining_rounds + self.rounds

    @property
    def limits_steps(self) -> bool:
        """Whether nodes report the lengths of their clients' steps, and shorten the longest.

        They do neither if noise protects the steps. These are then clipped to `privacy.step-clip`,
        and reports of their lengths would reveal more.
        """
        rules = self.aggregation
        return rules.step_limit > 0 and rules.rule == "mean" and not self.privacy.is_on

    @property
    def training(self) -> Training:
        """The settings that every learner gets."""
        return Training(
            self.seed,
            self.local_epochs,
            self.pretraining_rounds,
            self.optimizer,
            nodes_average=self.aggregation.rule == "mean",
            sample_clip=self.privacy.clip if self.privacy.is_on else None,
            # The noise must hide the largest weight, which the nodes of a masked sum do not know.
            counts_samples=not self.privacy.is_on
            or (self.privacy.reported == "exact" and not self.aggregation.secure),
            masked=self.aggregation.secure and not self.privacy.is_on,
            kernel=self.kernel,
        )
