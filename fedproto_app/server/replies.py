"""What the server believes of a node's answer (design rule 5).

An answer may hold anything: records of other types, arrays whose header lies, NaN, counts nobody
declared. The readers here look at every part before they use it, and hand back the good part and
a `Refusal` for each bad one. Whatever a message holds, they raise nothing but what they say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from io import BytesIO
from itertools import islice

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedproto_app.messages import Arrays, ArraySpec, NodeRoster, PerClient, Refusal, Reply
from fedproto_app.wire import ARRAYS, CLIENTS, LOSS, METRIC, METRICS, SAMPLES, SECONDS

LONGEST_NAME, LONGEST_REASON = 256, 4096  # characters
MOST_SAMPLES = 10**9  # a client that claims more would own every weighted mean


class Unusable(ValueError):
    """The whole answer is refused, for the reason given."""


def read_roster(message: Message, multiple: int) -> NodeRoster:
    """A node's roster; raises `Unusable` with the reason if it cannot be one.

    multiple: every client's train samples are a positive multiple of it.
    """
    config = _record(message.content.config_records, CLIENTS, ConfigRecord)
    names, samples = _texts(config, "names"), _list(config, "samples", int)
    groups, shares = _texts(config, "groups"), _list(config, "missing-shares", float)
    refused, reasons = _texts(config, "refused"), _texts(config, "reasons", LONGEST_REASON)
    label, error = config.get("label"), config.get("error")
    partitions = config.get("partitions")
    inputs, classes = _list(config, "inputs", int), _texts(config, "classes")
    noted, notes = _texts(config, "noted"), _texts(config, "notes", LONGEST_REASON)
    if not isinstance(label, str) or len(label) > LONGEST_NAME or not isinstance(error, str):
        raise Unusable("malformed roster: label and error must be texts")
    if not isinstance(partitions, int) or partitions < 0:
        raise Unusable(f"malformed roster: partitions = {partitions!r}")
    if not len(names) == len(samples) == len(groups) == len(shares) == len(set(names)):
        raise Unusable("malformed roster: clients are named twice or without samples")
    if len(refused) != len(reasons) or len(noted) != len(notes):
        raise Unusable("malformed roster: refused or noted clients without reasons")
    if len(set(classes)) != len(classes) or len(inputs) > 8 or not all(n > 0 for n in inputs):
        raise Unusable(f"malformed roster: inputs of shape {inputs}, {len(classes)} classes")
    for name, count, share in zip(names, samples, shares, strict=True):
        if not 0 < count <= MOST_SAMPLES or count % multiple:
            raise Unusable(
                f"client {name!r} declares {count} train samples; a multiple of {multiple} "
                "is expected"
            )
        if not 0 <= share <= 1:
            raise Unusable(f"client {name!r} declares a missing share of {share}")
    return NodeRoster(
        label=label,
        partitions=partitions,
        samples=dict(zip(names, samples, strict=True)),
        groups=dict(zip(names, groups, strict=True)),
        missing_shares=dict(zip(names, shares, strict=True)),
        refused=dict(zip(refused, reasons, strict=True)),
        error=error,
        inputs=tuple(inputs),
        classes=tuple(classes),
        class_counts=_class_counts(config, names, len(classes)),
        notes=dict(zip(noted, notes, strict=True)),
    )


def read_reply(
    message: Message,
    node: str,
    asked: Mapping[str, int],
    spec: ArraySpec,
    metrics: Collection[str],
    fault: Callable[[Mapping[str, float]], str | None],
) -> tuple[Reply | None, list[Refusal]]:
    """The usable part of a node's reply, and what was refused of it.

    asked: the clients that were asked, with the most samples that each can have used.
    spec: the arrays that must come. metrics: those that a client whose kept model is
    told must have. fault: why a client's metrics cannot be true, or None.
    A fault of one client (a NaN in its prototype, a wrong count, a name that was not asked)
    refuses that client; a fault of what all its clients share (an averaged model, missing
    records) refuses the node's whole reply.
    """
    try:
        reply = _decode(message, spec, metrics)
        bad = _bad_clients(reply, asked, fault)
        bad |= _not_finite(reply, spec)
        if bad and spec.mean:
            client, reason = next(iter(bad.items()))
            raise Unusable(f"its mean includes client {client!r}, refused: {reason}")
    except Unusable as unusable:
        return None, [Refusal(node, "", str(unusable))]
    refusals = [Refusal(node, client, reason) for client, reason in bad.items()]
    reasons = set(reply.failed.values())
    if not reply.names and len(reasons) == 1:  # what failed is the node: its disk is full, say
        refusals.append(Refusal(node, "", reasons.pop()))
    else:
        refusals += [Refusal(node, client, reason) for client, reason in reply.failed.items()]
    return _without(reply, bad, spec), refusals


def received_bytes(message: Message) -> int:
    """Bytes of a reply's records as Flower counts them; 0 where it cannot."""
    try:
        return sum(record.count_bytes() for record in message.content.values())
    except Exception:  # a malformed record breaks Flower's count in many ways
        return 0


def _decode(message: Message, spec: ArraySpec, expected: Collection[str]) -> Reply:
    content = message.content
    numbers = _record(content.metric_records, METRICS, MetricRecord)
    clients = _record(content.config_records, CLIENTS, ConfigRecord)
    names, samples = _texts(clients, "names"), _list(numbers, SAMPLES, int)
    kept_rounds = _list(clients, "kept-rounds", int)
    failed, reasons = _texts(clients, "failed"), _texts(clients, "reasons", LONGEST_REASON)
    seconds = numbers.get(SECONDS)
    if len(set(names)) != len(names) or len(samples) != len(names):
        raise Unusable(f"malformed reply: {len(samples)} sample counts for {len(names)} clients")
    if len(failed) != len(reasons):
        raise Unusable("malformed reply: failed clients without reasons")
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise Unusable(f"malformed reply: seconds = {seconds!r}")
    metrics = _per_client(numbers, METRIC, len(names))
    if kept_rounds and (len(kept_rounds) != len(names) or not set(expected) <= set(metrics)):
        raise Unusable("malformed reply: an evaluation without all of its kept metrics")
    record = content.array_records.get(ARRAYS, ArrayRecord())
    classes = _classes(clients, len(names), spec) if spec.per_class and names else []
    return Reply(
        names=names,
        samples=samples,
        losses=_per_client(numbers, LOSS, len(names)),
        metrics=metrics,
        kept_rounds=kept_rounds,
        failed=dict(zip(failed, reasons, strict=True)),
        arrays=_arrays(record, spec, len(names), sum(map(len, classes))),
        seconds=float(seconds),
        classes=classes,
    )


def _arrays(record: ArrayRecord, spec: ArraySpec, clients: int, rows: int) -> Arrays:
    """The arrays that the spec demands, each with the shape and dtype that it demands.

    rows: how many classes all clients together have. A node without clients sends no arrays.
    """
    expected: dict[str, tuple[int, ...]] = {}
    if clients or record:
        expected |= spec.mean
        expected |= {name: (clients, *shape) for name, shape in spec.per_client.items()}
        expected |= {name: (rows, *shape) for name, shape in spec.per_class.items()}
    if set(record) != set(expected):
        missing, extra = set(expected) - set(record), set(record) - set(expected)
        raise Unusable(f"arrays missing: {sorted(missing)}, not expected: {sorted(extra)}")
    return {name: _array(name, record[name], shape) for name, shape in expected.items()}


def _classes(clients: ConfigRecord | MetricRecord, count: int, spec: ArraySpec) -> list[list[int]]:
    """For each client the classes that its rows of arrays by class speak of."""
    numbers, flat = _list(clients, "class-numbers", int), _list(clients, "classes", int)
    if len(numbers) != count or any(n < 0 for n in numbers) or sum(numbers) != len(flat):
        raise Unusable(f"malformed reply: classes of {len(numbers)} clients, expected {count}")
    split = iter(flat)
    per_client = [list(islice(split, number)) for number in numbers]
    for classes in per_client:
        if len(set(classes)) != len(classes) or not all(0 <= c < spec.classes for c in classes):
            raise Unusable(f"malformed reply: classes {classes[:10]} of {spec.classes}")
    return per_client


def _class_counts(
    config: ConfigRecord | MetricRecord, names: Sequence[str], classes: int
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Each client's train samples by stage and class; empty where a node does not tell."""
    counted, stages = _texts(config, "counted"), _list(config, "stage-numbers", int)
    flat = _list(config, "class-counts", int)
    if not counted:
        return {}
    fits = len(counted) == len(stages) and sum(stages) * classes == len(flat)
    if not fits or not set(counted) <= set(names) or any(n < 0 for n in (*stages, *flat)):
        raise Unusable("malformed roster: class counts that do not fit its clients and classes")
    numbers = iter(flat)
    return {
        name: tuple(tuple(islice(numbers, classes)) for _ in range(stage_count))
        for name, stage_count in zip(counted, stages, strict=True)
    }


def _array(name: str, array: Array, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The array in Flower's NumPy serialisation; nothing is allocated before the header fits."""
    try:
        file = BytesIO(array.data)
        major = np.lib.format.read_magic(file)[0]
        readers = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        found, fortran, dtype = readers[major](file)
        values = file.read()
    except Exception as error:  # what a broken header raises is NumPy's own business
        raise Unusable(f"array {name!r} cannot be read: {error!r}") from None
    if found != shape:
        raise Unusable(f"array {name!r} has shape {found}, expected {shape}")
    if dtype != np.float32:
        raise Unusable(f"array {name!r} has dtype {dtype}, expected float32")
    if len(values) != 4 * math.prod(shape):
        raise Unusable(f"array {name!r} has {len(values)} bytes for shape {shape}")
    flat = np.frombuffer(values, dtype=np.float32)
    return flat.reshape(shape, order="F" if fortran else "C").copy()


def _not_finite(reply: Reply, spec: ArraySpec) -> dict[str, str]:
    """The clients whose own arrays hold NaN; raises `Unusable` if a mean does."""
    bad = {}
    for name in spec.mean:
        if name in reply.arrays and not np.isfinite(reply.arrays[name]).all():
            raise Unusable(f"array {name!r} holds NaN or infinite values")
    for name, array in reply.arrays.items():
        if name in spec.mean:
            continue
        owners = range(len(reply.names)) if name in spec.per_client else _owners(reply.classes)
        for row, owner in enumerate(owners):
            if not np.isfinite(array[row]).all():
                bad[reply.names[owner]] = f"its {name!r} holds NaN or infinite values"
    return bad


def _owners(classes: Sequence[Sequence[int]]) -> list[int]:
    """The client's row in the reply for each row of an array by class."""
    return [row for row, its_classes in enumerate(classes) for _ in its_classes]


def _bad_clients(
    reply: Reply,
    asked: Mapping[str, int],
    fault: Callable[[Mapping[str, float]], str | None],
) -> dict[str, str]:
    bad = {}
    for row, (name, count) in enumerate(zip(reply.names, reply.samples, strict=True)):
        metrics = {metric: values[row] for metric, values in reply.metrics.items()}
        if name not in asked:
            bad[name] = "not a client of this node that was asked"
        elif not 0 < count <= asked[name]:
            bad[name] = f"reports {count} train samples, expected 1 … {asked[name]}"
        elif not all(math.isfinite(values[row]) for values in reply.losses.values()):
            bad[name] = "its loss is not finite"
        elif reason := fault(metrics):
            bad[name] = reason
        elif reply.kept_rounds and reply.kept_rounds[row] < 0:
            bad[name] = f"its kept round is {reply.kept_rounds[row]}"
    return bad


def _record(records: Mapping[str, object], name: str, kind: type) -> ConfigRecord | MetricRecord:
    found = records.get(name)
    if not isinstance(found, kind):
        raise Unusable(f"malformed answer: no {name!r} record")
    assert isinstance(found, ConfigRecord | MetricRecord)
    return found


def _list(record: ConfigRecord | MetricRecord, key: str, kind: type) -> list:  # type: ignore[type-arg]
    """A list of ints, floats or texts; Flower's records hold no empty ones, so absent is empty."""
    values = record.get(key, [])
    allowed = (int, float) if kind is float else kind
    if not isinstance(values, list) or not all(
        isinstance(value, allowed) and not isinstance(value, bool) for value in values
    ):
        raise Unusable(f"malformed answer: {key!r} is no list of {kind.__name__}")
    return list(values)


def _texts(record: ConfigRecord | MetricRecord, key: str, longest: int = LONGEST_NAME) -> list[str]:
    texts: list[str] = _list(record, key, str)
    if any(len(text) > longest for text in texts):
        raise Unusable(f"malformed answer: {key!r} holds a text of over {longest} characters")
    return texts


def _per_client(numbers: ConfigRecord | MetricRecord, prefix: str, clients: int) -> PerClient:
    found: PerClient = {}
    for key in numbers:
        if key.startswith(prefix):
            values = _list(numbers, key, float)
            if len(values) != clients:
                raise Unusable(f"{key} does not have one value for each of {clients} clients")
            found[key.removeprefix(prefix)] = [float(value) for value in values]
    return found


def _without(reply: Reply, bad: Mapping[str, str], spec: ArraySpec) -> Reply:
    if not bad:
        return reply
    rows = [row for row, name in enumerate(reply.names) if name not in bad]
    by_class = [place for place, row in enumerate(_owners(reply.classes)) if row in rows]
    arrays = dict(reply.arrays)
    arrays |= {name: reply.arrays[name][rows] for name in spec.per_client if name in arrays}
    arrays |= {name: reply.arrays[name][by_class] for name in spec.per_class if name in arrays}

    def pick(values: Sequence[float]) -> list[float]:
        return [values[row] for row in rows]

    return Reply(
        names=[reply.names[row] for row in rows],
        samples=[reply.samples[row] for row in rows],
        losses={name: pick(values) for name, values in reply.losses.items()},
        metrics={name: pick(values) for name, values in reply.metrics.items()},
        kept_rounds=[reply.kept_rounds[row] for row in rows] if reply.kept_rounds else [],
        failed=reply.failed,
        arrays=arrays,
        seconds=reply.seconds,
        classes=[reply.classes[row] for row in rows] if reply.classes else [],
    )
