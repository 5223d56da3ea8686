"""A site's gate: ``flwr-clientapp`` under the site's rules.

    python -P -m fedproto_app.ops.gate.start client_gate --runtime-api-address … 3<TOKEN

The program is Flower's: it fetches the order, sends the reply and reports that it is alive. Two of
its steps are replaced. The app that comes with the run is not unpacked. In place of the ClientApp,
the gate checks the order against the site's file, hands it to a separate process, and accepts the
process's answer if it arrives in time. If Flower does not have these steps, nothing starts.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from logging import WARNING
from pathlib import Path
from typing import NamedTuple

from flwr.app import ArrayRecord, Context, Error, Message
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.events import shown, tell
from fedproto_app.core.messages import LEAVING, NodeRoster, Reply
from fedproto_app.core.wire import (
    ARRAYS,
    ROSTER,
    OrderFields,
    ReplyFields,
    Unusable,
    read_record,
    sent_bytes,
    write_alive,
    write_reply,
    write_roster,
)
from fedproto_app.engine.flower_parts import from_bytes, to_bytes
from fedproto_app.node.policy import require_named_code
from fedproto_app.node.site import Site, read_site
from fedproto_app.ops.gate import confinement, replace_steps
from fedproto_app.ops.gate.audit import AuditLog
from fedproto_app.ops.gate.confinement import Apart, Ended, frame, parts_of

DRAIN = "drain"  # a file beside the audit log, which docker/bin/drain creates
GRACE = 60.0  # seconds beyond the site's limit, to start the process and to end it in order
REFUSED_A_MINUTE = 10  # so many refused orders are logged per minute
INSTALLED, BROUGHT = "installed", "brought"
_LOGGED_SETTINGS = ("task", "method", "local-epochs", "rounds", "seed")  # in the audit log


class App(NamedTuple):
    """The app of a run: its name and version in Flower, and its bytes."""

    name: str
    version: str
    content: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


class Gate:
    """The gate between Flower's program and the separate process."""

    def __init__(self, apart: Apart) -> None:
        self._apart = apart
        self._content = b""

    def receive(self, content: bytes, skip_prompt: bool = False) -> None:
        """Replace `install_from_fab`: store the app without unpacking it."""
        self._content = content

    def loader(self, **_: object) -> Callable[[str, str, str], Callable[..., Message]]:
        """Replace `get_load_client_app_fn`."""

        def load(name: str, version: str, digest: str) -> Callable[..., Message]:
            app = App(name, version, self._content)
            return lambda message, context: self.carry_out(app, message, context)

        return load

    def carry_out(self, app: App, message: Message, context: Context) -> Message:
        """Return the reply to an order: the process's answer, or the reason why there is none."""
        start = time.monotonic()
        log = AuditLog(None)
        order_fields: dict[str, object] = {}
        fault = ("", "")  # the kind of the fault, and its reason
        try:
            site = read_site(context.node_config)
            log = AuditLog(Path(site.audit) if site.audit else None)
            order_fields = _order_fields(app, message, context, site)
            orders = log.count_since(("order", "refused"), 3600)
            too_many = orders >= site.limits.orders_an_hour
            if reason := refused(app, message, context, site, too_many):
                fault = ("refused", reason)
                reply = refusal(message, reason)
            else:
                log.write("order", **order_fields)
                reply = self._ask(app, message, context, site)
        except FedProtoError as error:  # the site's own file is wrong, or the run's settings are
            fault = ("refused", str(error))
            reply = refusal(message, str(error))
        except Ended as error:
            fault = ("ended", str(error))
            reply = refusal(message, f"the site's gate ended the order: {error}")
        finally:
            try:
                leftover = self._apart.end()  # before the log is used, as the process might lock it
            except Ended as error:
                log.write(
                    "ended", **order_fields, reason="; ".join(filter(None, (fault[1], str(error))))
                )
                raise
        kind, why = fault
        if kind == "refused" and log.count_since([kind], 60) >= REFUSED_A_MINUTE:
            return reply  # a flood of orders must not push older lines out of the log
        if kind:
            log.write(kind, **order_fields, reason=why)
        if kind == "refused":
            return reply  # a "reply" line would say nothing new
        if leftover:
            log.write("left-behind", **order_fields, processes=leftover)
            tell("left-behind", WARNING, processes=leftover, round=message.metadata.group_id)
        log.write(
            "reply",
            **order_fields,
            **_reply_fields(reply),
            seconds=round(time.monotonic() - start, 3),
        )
        return reply

    def _ask(self, app: App, message: Message, context: Context, site: Site) -> Message:
        """Return the separate process's reply to the order, or raise `Ended`."""
        installed = site.code.run == INSTALLED
        header = {
            "app": INSTALLED if installed else BROUGHT,
            "memory": site.limits.memory_mb,
            "name": app.name,
            "version": app.version,
        }
        job = frame(
            json.dumps(header).encode(),
            context_to_proto(context).SerializeToString(),
            to_bytes(message),
            b"" if installed else app.content,
        )
        byte_limit = site.limits.message_mb * 2**20
        answer = self._apart.do(job, site.limits.seconds + GRACE, byte_limit)
        try:
            app_reply = from_bytes(answer)
        except Exception as error:  # the bytes are not trusted
            raise Ended(f"its answer is not a message: {shown(repr(error))}") from None
        # The run's code must not choose the recipient, or the message that it answers.
        if app_reply.has_error():
            return refusal(message, f"the app failed: {shown(app_reply.error.reason or '')}")
        return Message(app_reply.content, reply_to=message)


def refused(app: App, message: Message, context: Context, site: Site, too_many: bool) -> str:
    """Return why the site refuses the order, or "" if it does not. May raise `SettingsError`.

    too_many: whether `limits.orders-an-hour` orders have already arrived within the last hour.
    """
    code, limits = site.code, site.limits
    if site.state_dir is None:
        return (
            "the site's file names no state-dir, which is needed because all other files of the "
            "separate process are deleted after its order"
        )
    if site.audit and Path(site.audit).with_name(DRAIN).exists():
        return LEAVING
    if too_many:
        return f"this site carries out only limits.orders-an-hour = {limits.orders_an_hour} orders"
    if code.run == "listed" and app.digest not in code.digests:
        return (
            f"the app {app.name} {app.version} has the SHA-256 {app.digest}, which this site's "
            "code.digests does not list"
        )
    if code.run != "any":
        require_named_code(context.run_config, code)
    if (size := sent_bytes(message)) > limits.message_mb * 2**20:
        return (
            f"the order has {size} bytes; this site allows limits.message-mb = {limits.message_mb}"
        )
    return ""


def refusal(message: Message, reason: str) -> Message:
    """Return an ordinary reply to the message with the reason, so that the server can report it."""
    kind = message.metadata.message_type
    if kind == ROSTER:
        return write_roster(NodeRoster("", 0, {}, {}, {}, {}, error=reason), reply_to=message)
    try:
        clients = read_record(message.content, OrderFields).clients
    except Unusable:
        return write_alive(reply_to=message)
    return write_reply(Reply([], [], failed=dict.fromkeys(clients, reason)), reply_to=message)


def _order_fields(app: App, message: Message, context: Context, site: Site) -> dict[str, object]:
    """Return the audit log's fields for an order."""
    config = context.run_config
    metadata = message.metadata
    return {
        "node": site.label or str(context.node_id),
        "run": context.run_id,
        "app": app.name,
        "version": app.version,
        "digest": app.digest,
        "code": site.code.run,
        "message": metadata.message_type,
        "round": metadata.group_id,
        "settings": {key: config[key] for key in _LOGGED_SETTINGS if key in config},
        "received_bytes": sent_bytes(message),
    }


def _reply_fields(reply: Message) -> dict[str, object]:
    """Return the audit log's fields for a reply."""
    arrays: dict[str, list[object]] = {}
    values = 0
    for key, record in reply.content.items() if reply.has_content() else ():
        if isinstance(record, ArrayRecord):
            for name, array in record.items():
                prefix = "" if key == ARRAYS else f"{key}/"
                arrays[f"{prefix}{name}"] = [array.dtype, *array.shape]
                values += len(array.data)
    fields: dict[str, object] = {"arrays": arrays, "array_bytes": values}
    fields["sent_bytes"] = sent_bytes(reply) if reply.has_content() else 0
    try:
        reported = read_record(reply.content, ReplyFields)
        fields |= {"clients": len(reported.names), "failed": len(reported.failed)}
        if not reported.names and reported.failed:
            fields["reason"] = next(iter(reported.failed.values()))
    except (Unusable, ValueError):  # a roster, or not one of our messages
        pass
    return fields


def work(job: bytes) -> bytes:
    """Run the app on the message and return the reply as bytes. Called in the separate process."""
    header, context_bytes, message_bytes, content = parts_of(job)
    job_settings = json.loads(header)
    confinement.limit_memory(job_settings["memory"])
    context = context_from_proto(ProtoContext.FromString(context_bytes))
    message = from_bytes(message_bytes)
    app: Callable[..., Message]
    if job_settings["app"] == INSTALLED:
        from fedproto_app.client_app import app
    else:
        from flwr.cli.install import install_from_fab
        from flwr.clientapp.utils import get_load_client_app_fn

        packages = ("fedproto_app", "fedproto_compared")  # the app brings its own copies
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]
        install_from_fab(content, skip_prompt=True)
        load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        app = load(
            job_settings["name"], job_settings["version"], hashlib.sha256(content).hexdigest()
        )
    try:
        reply = app(message=message, context=context)
    except Exception as error:
        traceback.print_exc()  # the full traceback goes to the container's log
        reply = Message(Error(code=0, reason=f"{type(error).__name__}: {error}"), reply_to=message)
    return to_bytes(reply)


def main(finish_start: Callable[[], None]) -> None:
    """Run Flower's program with the gate in it.

    finish_start: adds the token to the program's arguments.
    """
    gate = Gate(Apart(work, confinement.run_as()))
    # After the fork: the separate process must not have the token in its memory.
    finish_start()
    replace_steps(
        "flwr.supernode.runtime.run_clientapp",
        install_from_fab=gate.receive,
        get_load_client_app_fn=gate.loader,
    )
    flwr_clientapp()
