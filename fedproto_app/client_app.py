"""The ClientApp: message → node → reply. No algorithm."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedproto_app.data.shard import Shard, load_shard
from fedproto_app.errors import FedProtoError
from fedproto_app.methods import make_learner
from fedproto_app.node import Node, torch_device
from fedproto_app.representations import represented
from fedproto_app.settings import PLAIN_NAME, PRETRAINED, DataSettings, Settings, settings_from
from fedproto_app.store import ClientStore
from fedproto_app.tasks.registry import make_task
from fedproto_app.tasks.sequences import SequenceTask
from fedproto_app.wire import NodeRoster, Order, read_order, write_reply, write_roster

app = ClientApp()


@app.query("roster")
def roster(message: Message, context: Context) -> Message:
    """Tell the server which clients this node holds."""
    simulated = in_simulation()
    partitions = int(context.node_config.get("num-partitions", 0)) if simulated else 0
    try:
        shard, error = _shard(context), ""
    except FedProtoError as fault:
        shard, error = Shard({}, {}), str(fault)
    clients = shard.clients.values()
    counts = {one.name: one.class_counts for one in clients if one.class_counts}
    answer = NodeRoster(
        label=_label(context),
        partitions=partitions,
        samples={client.name: client.train_samples for client in clients},
        groups={client.name: client.group for client in clients},
        missing_shares={client.name: client.missing_share for client in clients},
        refused=shard.refused,
        error=error,
        inputs=shard.shape.inputs,
        classes=shard.shape.classes,
        class_counts=counts if _is_dealt(context) else {},
        notes={one.name: one.note for one in clients if one.note},
    )
    return write_roster(answer, to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the order names."""
    order = read_order(message)
    node = _node(context, order)
    with _without_denormals():
        return write_reply(node.train(order), to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the clients that the order names."""
    order = read_order(message)
    node = _node(context, order)
    with _without_denormals():
        return write_reply(node.evaluate(order), to=message)


def in_simulation() -> bool:
    """Whether this process is an actor of Flower's simulation, not a SuperNode's."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@contextmanager
def _without_denormals() -> Iterator[None]:
    """Contrastive gradients are full of numbers below 1e-38, and processors are slow with them."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _node(context: Context, order: Order) -> Node:
    settings = settings_from({**context.run_config, "device": _device(context)})
    torch.set_num_threads(settings.threads)
    shard, device = _shard(context), torch_device(settings.device)
    store = ClientStore(_state_dir(context, settings, order))
    task = make_task(settings, shard.shape, device)
    prepared_in = 0.0
    if settings.method in PRETRAINED and order.server_round > settings.encoder_rounds:
        assert isinstance(task, SequenceTask)
        start = time.perf_counter()
        with _without_denormals():
            shard = represented(shard, order.clients, order.arrays, task, store)
        prepared_in = time.perf_counter() - start
        task = make_task(settings, shard.shape, device)
    learner = make_learner(settings, task, order.server_round)
    return Node(
        settings,
        shard,
        store,
        learner,
        tells_classes=_is_dealt(context),
        prepared_in=prepared_in,
    )


def _is_dealt(context: Context) -> bool:
    """Whether the node has a share of one data set that all nodes hold.

    If not, its data are its own: nothing is dealt out, and how many samples of which class a
    client has is nobody's business.
    """
    return "partition-id" in context.node_config


def _device(context: Context) -> str:
    """Where to train: the run decides in a simulation, the node in deployment."""
    default = context.run_config["device"] if in_simulation() else "auto"
    return str(context.node_config.get("device", default))


def _label(context: Context) -> str:
    """The node's name, stable over restarts: its own, or its partition's number."""
    named = context.node_config.get("node-name", context.node_config.get("partition-id", ""))
    return str(named)


def _state_dir(context: Context, settings: Settings, order: Order) -> Path:
    """Where this node keeps its clients' state of this run: never shared with another node."""
    node = _plain("node-name", _label(context) or str(context.node_id))
    run = _plain("run", order.run)
    own = context.node_config.get("state-dir")
    if own is None and in_simulation():
        return Path(settings.output.dir).resolve() / run / "state" / node
    root = Path(str(own)) if own else Path(os.environ.get("FLWR_HOME", "~/.flwr")) / "fedproto"
    return root.expanduser().resolve() / f"{run}-{_plain('token', order.token)}" / node


def _plain(what: str, name: str) -> str:
    """The name, if it is fit for a folder; a server must not choose where a node writes."""
    if not re.fullmatch(PLAIN_NAME, name):
        raise FedProtoError(f"{what} = {name!r}: must consist of letters, digits and . _ = + -")
    return name


def _shard(context: Context) -> Shard:
    settings = settings_from(context.run_config)
    settings = settings.model_copy(update={"data": _data_settings(context, settings)})
    node = context.node_config
    partition, partitions = int(node.get("partition-id", 0)), int(node.get("num-partitions", 1))
    if not 0 <= partition < partitions:
        raise FedProtoError(
            f"node config: partition-id = {partition} must lie in 0 … num-partitions - 1 = "
            f"{partitions - 1}"
        )
    return _cached_shard(settings, partition, partitions)


@lru_cache(maxsize=256)
def _cached_shard(settings: Settings, partition: int, partitions: int) -> Shard:
    """Shards stay in an actor's memory between the messages of a run."""
    return load_shard(settings, partition, partitions)


def _data_settings(context: Context, settings: Settings) -> DataSettings:
    """What the node reads: the run decides in a simulation, only the node in deployment."""
    own = {key: context.node_config.get(f"data-{key}") for key in ("source", "path")}
    if in_simulation() and own == {"source": None, "path": None}:
        return settings.data
    if own["source"] is None:
        raise FedProtoError(
            "node config: data-source is not set; a deployed node reads only what its own "
            "--node-config names (data-source, and data-path for a file or folder)"
        )
    for key, value in own.items():
        if value is not None and not isinstance(value, str):
            raise FedProtoError(f"node config: data-{key} = {value!r}: must be a text")
    reads: dict[str, object] = {"source": own["source"], "path": own["path"] or ""}
    if not _is_dealt(context):
        for dealing in ("partition", "clusters"):
            section = getattr(settings.data, dealing)
            reads[dealing] = section.model_copy(update={"scheme": "given"})
    return settings.data.model_copy(update=reads)
