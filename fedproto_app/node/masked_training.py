"""Training whose arrays leave a node only as part of a masked sum."""

from __future__ import annotations

from dataclasses import replace

from flwr.app import Context

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.messages import MaskingOrder, Order, Reply
from fedproto_app.maths.sizes import growth_fault, root_mean_square, value_fault
from fedproto_app.node.masked_sum import secrets_of
from fedproto_app.node.masking import MaskingError
from fedproto_app.node.orders import Part, carry_out_part, classes_of, reason_of
from fedproto_app.node.part_reply import PartReply, merged, totals
from fedproto_app.trust.fixed_point import Vector


def train_masked(
    order: Order, masking: MaskingOrder, context: Context, *, simulated: bool
) -> tuple[Reply, Vector | None]:
    """Train as ordered; return the reply without its arrays, and their masked sums.

    If the node must not or cannot mask its sums, the reply gives the reason and the vector is None.
    """
    try:
        secrets = secrets_of(masking, context, simulated=simulated)
        secrets.begin(masking)
        part = carry_out_part("train", order, context, Part(), simulated=simulated, masked=True)
        reply = merged([part])
        if not reply.names:
            return reply, None
        _require_believable(part, reply, order)
        sums = totals(part, classes_of(context, simulated=simulated))
        return replace(reply, arrays={}, classes=[]), secrets.masked(masking, sums)
    except (FedProtoError, OSError) as fault:
        return Reply([], [], failed=dict.fromkeys(order.clients, reason_of(fault))), None


def _require_believable(part: PartReply, reply: Reply, order: Order) -> None:
    """Raise `MaskingError` for values that a server would refuse.

    The server sees only the masked sum, so it cannot check them itself.
    """
    for cohort in part.cohorts:
        for name, array in cohort.arrays.items():
            owners = cohort.names
            if cohort.classes:
                rows = zip(cohort.names, cohort.classes, strict=True)
                owners = [client for client, client_classes in rows for _ in client_classes]
            for client, values in zip(owners, array, strict=True):
                if fault := value_fault(name, values):
                    raise MaskingError(f"client {client!r}: {fault}; nothing of the node is sent")
    personal = {name for cohort in part.cohorts for name in cohort.arrays}
    mean = {name: array for name, array in reply.arrays.items() if name not in personal}
    faults = [fault for name, array in mean.items() if (fault := value_fault(name, array))]
    before = root_mean_square(list(order.guidance.arrays.values()))
    if fault := next(iter(faults), None) or growth_fault(mean, before):
        raise MaskingError(fault)
