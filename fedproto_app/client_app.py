"""The ClientApp: message → node → reply. It contains no algorithm.

For every message a SuperNode starts a new process, which imports this module first. So slow modules
are imported only by the orders that need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedproto_app.core.messages import NodeRoster
from fedproto_app.core.wire import (
    protocol_fault,
    read_masking_order,
    read_order,
    required_masking_order,
    write_alive,
    write_masking_reply,
    write_reply,
    write_roster,
)

if TYPE_CHECKING:
    from fedproto_app.node.orders import Phase

app = ClientApp()


@app.query("alive")
def alive(message: Message, context: Context) -> Message:
    """Answer a probe at once. An order sent before the probe and not answered is lost."""
    return write_alive(reply_to=message)


@app.query("roster")
def roster(message: Message, context: Context) -> Message:
    """Report the clients of this node to the server."""
    from fedproto_app.node.orders import tell_roster
    from fedproto_app.node.process import in_simulation

    if fault := protocol_fault(message.content, "server", "node"):
        return write_roster(NodeRoster("", 0, {}, {}, {}, {}, error=fault), reply_to=message)
    return write_roster(tell_roster(context, simulated=in_simulation()), reply_to=message)


@app.query("question")
def question(message: Message, context: Context) -> Message:
    """Answer a method's question for the clients that the order names."""
    return _carried_out("question", message, context)


@app.query("masking")
def masking(message: Message, context: Context) -> Message:
    """Take a step of a masked sum, before or after the training."""
    from fedproto_app.node.masking import answer_masking
    from fedproto_app.node.process import in_simulation

    order = required_masking_order(message)
    return write_masking_reply(
        answer_masking(order, context, simulated=in_simulation()), reply_to=message
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the order names. Reply with a masked sum if the order asks for it."""
    from fedproto_app.node.orders import train_masked
    from fedproto_app.node.process import in_simulation

    of_masking = read_masking_order(message)
    if not of_masking:
        return _carried_out("train", message, context)
    order = read_order(message)
    reply, vector = train_masked(order, of_masking, context, simulated=in_simulation())
    return write_reply(reply, reply_to=message, vector=vector)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the clients that the order names."""
    return _carried_out("evaluate", message, context)


def _carried_out(phase: Phase, message: Message, context: Context) -> Message:
    from fedproto_app.node.orders import carry_out
    from fedproto_app.node.process import in_simulation

    reply = carry_out(phase, read_order(message), context, simulated=in_simulation())
    return write_reply(reply, reply_to=message)
