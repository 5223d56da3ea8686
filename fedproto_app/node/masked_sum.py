"""The steps of a masked sum at a node, before and after the training.

A SuperNode starts a process for each step, so this module imports nothing slow.
"""

from __future__ import annotations

from logging import INFO

from flwr.app import Context

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.core.events import tell
from fedproto_app.core.messages import MaskingOrder, MaskingReply
from fedproto_app.node.folder import name_of, state_dir, state_root
from fedproto_app.node.masking import Masking
from fedproto_app.node.secret import own_secret
from fedproto_app.node.site import Site, read_site
from fedproto_app.settings import settings_from
from fedproto_app.trust.signing import Signer, public_keys

SIGNING = "masked-sums"  # the folder of the signing key, in the site's state directory


def secrets_of(order: MaskingOrder, context: Context, *, simulated: bool) -> Masking:
    """Return the node's side of the run's masked sums.

    Raises `FedProtoError` if the run has none.
    """
    site = read_site(context.node_config, deployed=not simulated)
    run = settings_from(context.run_config)
    if not run.aggregation.secure:
        raise SettingsError("aggregation.secure = false: this run has no masked sums")
    of_run = (order.run, order.token)
    folder = state_dir(context, run, site, *of_run, simulated=simulated)
    return Masking(folder, run.aggregation, None if simulated else signer_of(site))


def signer_of(site: Site) -> Signer:
    """Return the signer of the site's nodes; its key is drawn at the first call."""
    return Signer(own_secret(state_root(site) / SIGNING), public_keys(site.masked_sums.known))


def answer_masking(order: MaskingOrder, context: Context, *, simulated: bool) -> MaskingReply:
    """Carry out one step; the reply gives the reason if it is refused or fails."""
    try:
        reply = secrets_of(order, context, simulated=simulated).answer(order)
    except FedProtoError as fault:
        reply = MaskingReply(fault=str(fault))
    except OSError as fault:
        reply = MaskingReply(fault=f"cannot write its secrets: {fault.strerror}")
    if not simulated:
        node = name_of(context, read_site(context.node_config, deployed=True))
        refused = reply.fault or None
        tell(
            "masking",
            INFO,
            round=order.server_round,
            node=node,
            step=order.step,
            survivors=len(order.survivors) or None,
            refused=refused,
        )
    return reply
