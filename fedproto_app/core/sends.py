"""Declarations of the arrays that a method's clients send.

    @classmethod
    def sends(cls, settings, sizes):
        return [Sends("prototype", {"prototype": (sizes.period, sizes.width)}, clip="rows")]

Everything else follows from the declaration: how a reply is decoded and validated, its size,
whether the method supports masked sums, noise and robust rules, and what a site must allow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args, get_origin, get_type_hints

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Reply

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a task's data and model, which give declarations their shapes.

    Before the nodes have declared their data all sizes are 1: the arrays that a method sends, and
    their protection, depend on settings alone.

    period, horizon, regressors: of series: samples in a period, steps ahead, and inputs of a linear
    forecast of one step. known: columns of a series that are known in advance.
    batches: of a client that sends its batches one by one, as many as all clients have. width: of a
    representation. classes: of labels. outputs: of a head.
    parameters: shapes of the model's parameters by name. encoder, head: what the names of the
    parameters of either part begin with.
    """

    period: int = 1
    horizon: int = 1
    regressors: int = 1
    known: int = 1
    batches: int = 1
    width: int = 1
    classes: int = 1
    outputs: int = 1
    parameters: Mapping[str, Shape] = field(default_factory=dict)
    encoder: str = "encoder."
    head: str = "head."


@dataclass(frozen=True)
class Sends:
    """One release: arrays that are clipped, noised, checked and counted together.

    arrays: shapes by name, without the client axis and the class axis.
    parameters: prefixes of the parameters of the model that are sent, and that come back from the
        server. If `arrays` are given too, those are what is sent of these parameters.
    rows: an array of each client, or one for each class that the client has.
    combine: how the server uses the clients' values: a "mean" or "sum" of all, means of "groups"
        that it forms from the values, or "each" client's values separately.
    weight: the weight of a client in a mean of parameters. In means of arrays all weigh the same.
    remember: whether the server uses this round's values or the latest values of every client.
    of_present: what replaces all clients' latest values where masked sums show only a total over
        the round's participants, in words, or "" if nothing can.
    when: with every training, where the round is evaluated, or in answer to a question.
    under_masks: further arrays that are sent where masks hide each client's values, because the
        server computes them from these values otherwise.
    clip: how far one client can change the values: by a "step" from the parameters that it
        received, by "rows" of bounded length, by "sums" of samples of bounded length, or "public"
        if nothing in them is to be hidden. It is "" if the change has no bound, so noise cannot
        protect the client.
    any_size: clients may differ by any factor, as in sums of samples, so the method itself rejects
        impossible values.
    reveals: what the server learns of a client, in words.
    consent: the key of a site's file that must allow this, "" if none.
    by_group: whether the server also uses the values of each group of clients that sites name by
        themselves. Masked sums then give the total of each group of enough nodes.
    passed_on: what other nodes learn of a client because the server sends its values on, in words,
        or "". A site must allow this with ``shares-classes``.
    """

    name: str
    arrays: Mapping[str, Shape] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    rows: Literal["client", "class"] = "client"
    combine: Literal["each", "groups", "mean", "sum"] = "each"
    weight: Literal["samples", "clients"] = "samples"
    remember: Literal["round", "latest"] = "round"
    of_present: str = ""
    under_masks: Mapping[str, Shape] = field(default_factory=dict)
    when: Literal["training", "evaluated", "question"] = "training"
    clip: Literal["", "step", "rows", "sums", "public"] = ""
    any_size: bool = False
    reveals: str = ""
    consent: Literal["", "tells-classes"] = ""
    by_group: bool = False
    passed_on: str = ""

    def __post_init__(self) -> None:
        for key, allowed in _ALLOWED.items():
            if getattr(self, key) not in allowed:
                raise SettingsError(
                    f"Sends({self.name!r}): {key} = {getattr(self, key)!r}: expected "
                    f"{', '.join(map(repr, allowed))}"
                )
        # Noise would go to the parameters alone, and leave the arrays as they are, or the reverse.
        if self.clip and (self.clip == "step") != bool(self.parameters and not self.arrays):
            raise SettingsError(
                f"Sends({self.name!r}): clip = {self.clip!r}: 'step' goes with parameters, 'rows' "
                "and 'sums' with arrays"
            )

    def shapes(self, sizes: Sizes) -> Mapping[str, Shape]:
        """Return the shapes of the arrays that are sent, by name."""
        if self.arrays or not self.parameters:
            return self.arrays
        parameters = sizes.parameters.items()
        return {name: shape for name, shape in parameters if name.startswith(self.parameters)}


_TYPES = get_type_hints(Sends).items()
_ALLOWED = {key: get_args(kind) for key, kind in _TYPES if get_origin(kind) is Literal}


def model(*parameters: str, **fields: object) -> Sends:
    """Declare the mean of the clients' models, or of the parameters with these prefixes."""
    default = {"combine": "mean", "clip": "step", "reveals": "a model trained on its data"}
    return Sends("model", parameters=parameters or ("",), **{**default, **fields})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Expected:
    """The arrays that a node's reply must have, by name: their shapes.

    mean: one array a node, the mean over its clients. per_client: one a client, and the shape is
    without the client axis. per_class: one for each class that a client has, of `classes` there
    are. The shape is without the client and the class axis.
    models: the arrays of per_client that belong to the client's copy of the received model.
    of_any_size: arrays that may differ between clients by any factor.
    masked: whether the node sends one masked vector in place of the arrays, so that it is validated
    as a whole.
    """

    mean: Mapping[str, Shape] = field(default_factory=dict)
    per_client: Mapping[str, Shape] = field(default_factory=dict)
    per_class: Mapping[str, Shape] = field(default_factory=dict)
    classes: int = 0
    models: Collection[str] = ()
    of_any_size: Collection[str] = ()
    masked: bool = False

    @staticmethod
    def declared(
        releases: Sequence[Sends],
        sizes: Sizes,
        *,
        nodes_average: bool = True,
        evaluates: bool,
        masked: bool = False,
    ) -> Expected:
        """Return the arrays that replies to a training order must have.

        nodes_average: whether a node sends the mean of its clients' parameters where the method
        uses only the mean. evaluates: whether the round is evaluated. masked: whether masks hide
        each client's values.
        """
        mean: dict[str, Shape] = {}
        per_client: dict[str, Shape] = {}
        per_class: dict[str, Shape] = {}
        models: list[str] = []
        of_any_size: list[str] = []
        for release in releases:
            if release.when == "question" or (release.when == "evaluated" and not evaluates):
                continue
            shapes = {**release.shapes(sizes), **(release.under_masks if masked else {})}
            if release.parameters and release.combine == "mean" and nodes_average:
                mean |= shapes
            elif release.rows == "class":
                per_class |= shapes
            else:
                per_client |= shapes
                models += shapes if release.parameters else ()
            of_any_size += shapes if release.any_size else ()
        classes = sizes.classes if per_class else 0
        return Expected(mean, per_client, per_class, classes, models, of_any_size)

    def values(self, reply: Reply) -> int:
        """Return the number of values that the clients of the reply contribute, as papers count."""
        per_client = sum(
            math.prod(shape) for shape in (*self.mean.values(), *self.per_client.values())
        )
        by_class = sum(math.prod(shape) for shape in self.per_class.values())
        rows = sum(len(classes) for classes in reply.classes)
        return per_client * len(reply.names) + by_class * rows


def unmaskable(releases: Sequence[Sends]) -> str:
    """Return why the server needs more than totals over clients, "" if it does not."""
    for release in releases:
        if release.combine == "each":
            return f"looks at each client's {release.name}"
        if release.combine == "groups":
            return f"averages the clients' {release.name} in groups"
        if release.remember == "latest" and not release.of_present:
            return f"remembers each client's latest {release.name}"
    return "" if releases else "sends nothing"


def averages(releases: Sequence[Sends]) -> bool:
    """Whether the server computes a mean or a sum, which a robust rule can replace."""
    return any(release.combine != "each" for release in releases)
