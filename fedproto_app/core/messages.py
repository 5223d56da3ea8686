"""The messages between server and nodes as plain data: no Flower, no torch.

`wire` converts them to Flower's records and back. Values per client have a client axis in front, in
the order of ``names``. Messages without arrays are validated by the field types given here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, Field

from fedproto_app.core.metrics import Metric

LONGEST_NAME = 256  # characters
MOST_REASON = 4096  # characters of a text
# Control characters, characters that change the writing direction, and halves of characters.
_CODES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def name_fault(name: str) -> str | None:
    """Return why this cannot be a name that is stored, sent and printed, or None if it can."""
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters, at most {LONGEST_NAME} are possible"
    if _CODES.search(name):
        return "holds codes that are no text"
    return None


def _usable(name: str) -> str:
    """Reject a name that cannot be stored or printed: names stand in files, logs and tables."""
    if fault := name_fault(name):
        raise ValueError(fault)
    return name


T = TypeVar("T")
FailFastList = Annotated[list[T], Field(fail_fast=True)]
Name = Annotated[str, AfterValidator(_usable)]
Reason = Annotated[str, Field(max_length=MOST_REASON)]
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Length = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Numbered = dict[Annotated[int, Field(ge=0, lt=2**32)], bytes]

# How a reader validates a message. Floats may be NaN, because a loss may be.
STRICT = ConfigDict(
    extra="forbid",
    strict=True,
    ser_json_inf_nan="constants",
    ser_json_bytes="base64",
    val_json_bytes="base64",
)

Arrays = dict[str, NDArray[np.float32]]
LEAVING = "the site drains: it leaves between rounds"  # such a node's reason for every client
PerClient = dict[str, list[float]]


@dataclass(frozen=True)
class Refusal:
    """Why the reply of a client, or of a whole node (client ""), was not used."""

    node: str
    client: str
    reason: str


@dataclass(frozen=True)
class Guidance:
    """The arrays and numbers that a strategy sends to clients of one node, for their learner.

    arrays: the same for all clients if `clients` is empty. Otherwise they have one row for each of
    `clients`, and the other clients get nothing. classes: the class of each row, in arrays with a
    row per class. options: further numbers. first_phase: the result of an earlier phase of the run,
    for a node that lacks it.
    """

    arrays: Arrays = field(default_factory=dict)
    clients: Sequence[str] = ()
    classes: Sequence[int] = ()
    options: Mapping[str, float] = field(default_factory=dict)
    first_phase: Arrays = field(default_factory=dict)

    def with_model(self, model: Arrays) -> Guidance:
        """Return this guidance with the parameters that the server shares added."""
        return replace(self, arrays={**model, **self.arrays})


@dataclass(frozen=True)
class Order:
    """The server's order to a node in one phase of one round.

    run, token: the run's name and its random mark, which identify the node's state. clients: which
    of the node's clients are to work. evaluate: also evaluate the personal models after training.
    guidance: what the strategy sends. Its arrays include the shared parameters. most_samples: how
    many samples may count at most for one client in means and totals, 0 for any number.
    longest_step: nodes shorten longer steps to this length, unless it is 0.
    """

    run: str
    token: str
    server_round: int
    clients: list[str]
    evaluate: bool = False
    guidance: Guidance = field(default_factory=Guidance)
    most_samples: int = 0
    longest_step: float = 0.0


def limited_samples(samples: int, limit: int) -> int:
    """Return how many of a client's samples count: at most `limit`, or all if the limit is 0."""
    return min(samples, limit) if limit else samples


@dataclass
class Reply:
    """A node's reply: its clients' numbers, and the method's arrays.

    At the node, each cohort of clients has a reply of its own until these are merged. The server
    fills in `node`.

    names: the clients that worked. samples: how many train samples count for each of them. losses,
    metrics: values per client. kept_rounds: the round that each client's kept model comes from
    (empty if not evaluated). failed: for each client that failed, the reason. seconds: the node's
    working time. classes: for each client, the classes of its rows in arrays with a row per class,
    empty if there are no such arrays. steps: how far each client's model moved, empty if the run
    has no `aggregation.step-limit`. node: the name of the node, at the server only.

    Only the reply of a cohort uses these fields. place: its position in the order. totals: the
    shared parameters, summed over the clients with their weights. weight: the sum of the weights.
    noise: the noise that each array's total needs in a masked sum (`trust.discrete_noise.Noise`).
    """

    names: list[str]
    samples: list[int]
    losses: PerClient = field(default_factory=dict)
    metrics: dict[Metric, list[float]] = field(default_factory=dict)
    kept_rounds: list[int] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    seconds: float = 0.0
    classes: list[list[int]] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    node: str = ""
    place: int = 0
    totals: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    weight: int = 0
    noise: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owners(self) -> list[int]:
        """For each row of an array with a row per class, the index of the client that owns it."""
        return [row for row, classes in enumerate(self.classes) for _ in classes]

    @property
    def leaves(self) -> bool:
        """Whether the node did not start because it is about to leave. That is no failure."""
        return not self.names and set(self.failed.values()) == {LEAVING}


class PublicKeys(NamedTuple):
    """The public keys of one node for one masked sum.

    masks: the key that other nodes use to agree on masks with this node. shares: the key that they
    use to seal shares for it. signer: the Ed25519 key of the site that signed both, b"" for none.
    """

    masks: bytes
    shares: bytes
    signer: bytes = b""
    signature: bytes = b""


MaskingStep = Literal["keys", "shares", "train", "agree", "unmask"]


@dataclass(frozen=True)
class MaskingOrder:
    """The server's order for a step of a masked sum (docs/secure-sum.md).

    session: identifies the sum. Each sum has its own keys, and numbers its nodes anew. publics:
    all nodes' keys, by number (step "shares"). sealed: shares for this node, by sender (step
    "train", with the order). survivors: the numbers of the nodes in the sum (steps "agree" and
    "unmask"). signatures: each node's signature of this list, by number (step "unmask").
    """

    run: Name
    token: Name
    server_round: Integer
    session: Name
    step: MaskingStep
    publics: FailFastList[PublicKeys] = field(default_factory=list)
    sealed: _Numbered = field(default_factory=dict)
    survivors: FailFastList[Count] = field(default_factory=list)
    signatures: _Numbered = field(default_factory=dict)


@dataclass(frozen=True)
class MaskingReply:
    """A node's reply to a step of a masked sum. fault: why it refuses, or "".

    own: the node's public keys (step "keys"). sealed: shares of its seed and private key, by
    receiver (step "shares"). signature: its signature of the list of survivors (step "agree").
    seeds, privates: the shares that it holds of survivors' seeds, and of the private keys of nodes
    that dropped out, both by owner (step "unmask").
    """

    own: PublicKeys | None = None
    sealed: _Numbered = field(default_factory=dict)
    signature: bytes = b""
    seeds: _Numbered = field(default_factory=dict)
    privates: _Numbered = field(default_factory=dict)
    fault: Reason = ""


class SampleTimes(NamedTuple):
    """The times of a client's samples, as positions of their first targets on a clock.

    clock: the clock that has these positions, by name, or "" if a source only counts steps. Clients
    with equal clocks can be compared. first: the position of the first train sample. trained, end:
    the positions just after the last train sample and after the last sample of all.
    """

    clock: Name
    first: Integer
    trained: Integer
    end: Integer


@dataclass(frozen=True)
class NodeRoster:
    """A node's answer to the roster query: its clients, or why some or all cannot take part.

    label: the node's name for itself, which is stable over restarts, or "". partitions: how many
    nodes the simulation has, 0 in a deployment. error: why the node has no clients at all, or "".
    inputs, classes, columns, step: the data's shape. class_counts: each client's train samples by
    stage and class, if the nodes divide one dataset between them. stages: the largest number of
    stages of a client. notes: what a person should know about a client's data. times: the times of
    the clients' samples, if the method must know them.
    """

    label: Name
    partitions: Count
    samples: dict[Name, Integer]
    groups: dict[Name, Name]
    missing_shares: dict[Name, Share]
    refused: dict[Name, Reason]
    error: Reason = ""
    inputs: Annotated[tuple[Annotated[int, Field(gt=0, lt=2**63)], ...], Field(max_length=8)] = ()
    classes: tuple[Name, ...] = ()
    columns: tuple[Name, ...] = ()
    step: Name = ""
    class_counts: dict[Name, tuple[tuple[Count, ...], ...]] = field(default_factory=dict)
    stages: Annotated[int, Field(ge=1, lt=2**31)] = 1
    notes: dict[Name, Reason] = field(default_factory=dict)
    times: dict[Name, SampleTimes] = field(default_factory=dict)
