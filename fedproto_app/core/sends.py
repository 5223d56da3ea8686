"""Declarations of the arrays that a method's clients send.

    @classmethod
    def sends(cls, settings, sizes):
        return [Sends("prototype", {"prototype": (sizes.period, sizes.width)}, clip="rows")]

All else follows from the declaration: how a reply is decoded and validated, how large it is,
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
    """The sizes of a task's data and model, which give declared arrays their shapes.

    Before the nodes have declared their data all sizes are 1. Which arrays a method sends, and how
    they are protected, depends on the settings alone.

    period, horizon, regressors: for series, the number of samples in a period, of steps ahead, and
    of inputs to a linear forecast of one step. known: a series' columns known in advance.
    batches: the number of batches of a client, equal for all, if clients send their batches one by
    one. width: the length of a representation. classes: the number of labels.
    outputs: the number of outputs of a head. parameters: the shapes of the model's parameters by
    name. encoder, head: the prefixes of the names of these two parts' parameters.
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

    arrays: the shapes by name, without the client axis and the class axis.
    parameters: prefixes of the names of the model's parameters that are sent, and that come back
        from the server. If `arrays` are given too, they are sent in place of these parameters.
    rows: whether a client sends one array, or one row for each class that it has.
    combine: how the server uses the clients' values: a "mean" or "sum" of all, means of "groups"
        that it forms from the values, or "each" client's values separately.
    weight: how a client is weighted in a mean of parameters. In means of arrays all weigh the same.
    remember: whether the server uses this round's values or the latest values of every client.
    of_present: says in words what replaces all clients' latest values if masked sums show only a
        total over the round's participants, or "" if nothing can.
    when: at every training, only if the round is evaluated, or in answer to a question.
    under_masks: further arrays that are sent if masks hide each client's values. Without masks the
        server computes them from these values.
    clip: what bounds the change that one client can make to the values. This is a "step" from the
        parameters that it received, "rows" of bounded length, or "sums" of samples of bounded
        length. It is "public" if nothing in the values has to be hidden, and "" if the change has
        no bound, so that noise cannot protect the client.
    any_size: whether clients' values may differ by any factor, as sums of samples do. The method
        itself must then reject impossible values.
    reveals: what the server learns about a client, in words.
    consent: the key in a site's file that must allow this, "" if none.
    by_group: whether the server also uses the values of each group of clients that sites name.
        Masked sums then give the total of each group that has enough nodes.
    passed_on: says in words what other nodes learn about a client because the server passes its
        values on, or "". A site must allow this with ``shares-classes``.
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
        # Otherwise noise would be added to the parameters and not to the arrays, or the reverse.
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
    """Declare a release of the model, or of the parameters with these prefixes, as a mean."""
    default = {"combine": "mean", "clip": "step", "reveals": "a model trained on its data"}
    return Sends("model", parameters=parameters or ("",), **{**default, **fields})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Expected:
    """The shapes of the arrays that a node's reply must have, by name.

    mean: arrays that a node sends as the mean over its clients. per_client: arrays that it sends
    once for each client. The shape leaves out the client axis. per_class: arrays that it sends with
    one row for each class that a client has, out of `classes`. The shape leaves out the
    client axis and the class axis. models: the arrays in per_client that belong to the client's
    copy of the received model. of_any_size: arrays that may differ between clients by any factor.
    masked: whether the node sends one masked vector in place of the arrays. The vector is then
    validated as a whole.
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

        nodes_average: whether a node sends only the mean of its clients' parameters if the method
        uses no more than that. evaluates: whether the round is evaluated. masked: whether masks
        hide each client's values.
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
        """Return how many values the clients in the reply contribute, counted as in papers."""
        per_client = sum(
            math.prod(shape) for shape in (*self.mean.values(), *self.per_client.values())
        )
        by_class = sum(math.prod(shape) for shape in self.per_class.values())
        rows = sum(len(classes) for classes in reply.classes)
        return per_client * len(reply.names) + by_class * rows


def unmaskable(releases: Sequence[Sends]) -> str:
    """Return why the server needs more than totals over clients, or "" if totals are enough."""
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
