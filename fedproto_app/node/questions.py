"""A node's side of a method's questions (`strategies/common/questions.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Order, Reply
from fedproto_app.node.shares import Share
from fedproto_app.node.state_file import PARAMETERS
from fedproto_app.node.store import unflatten
from fedproto_app.node.trainer import Node, arrays_of, new_reply, require_declared
from fedproto_app.strategies.common.questions import Answers


def answers(node: Node, order: Order, shares: Iterable[Share]) -> list[Reply]:
    """Answer a method's question for the clients of these cohorts, without changing their state.

    The question need not bring the shared parameters. If it brings only other arrays, it refers to
    the shared parameters of an earlier question in the same round. If it brings no arrays, it
    refers to the clients' data alone. Raises `SettingsError` in a run with noise, because answers
    cannot be protected, and for a learner that answers no questions.
    """
    settings, learner = node.settings, node.learner
    if settings.privacy.mechanism != "none":
        raise SettingsError(
            f"privacy.mechanism = {settings.privacy.mechanism!r}: no answer to a question of "
            f"method = {settings.method!r} can be protected"
        )
    if not isinstance(learner, Answers):
        raise SettingsError(f"{type(learner).__name__} answers no questions")
    node.store.begin(order.server_round)
    node.remember(order)
    model, guidance = learner.initial_parameters(), order.guidance
    if guidance.arrays and not any(map(learner.is_shared, guidance.arrays)):
        model = unflatten(node.store.read_shared(order.server_round), PARAMETERS)
    unsent = {n: v.numpy() for n, v in model.items() if learner.is_shared(n)}
    declared = [release for release in learner.releases if release.when == "question"]

    def answer(order: Order, share: Share) -> Reply:
        cohort = node.load(share, order, upto=order.server_round, trains=False)
        rows = range(len(cohort.names))
        reply = new_reply(cohort, rows, share, order)
        outgoing = learner.answer(cohort, order.guidance)
        require_declared(outgoing, declared, learner, ', when="question"')
        reply.arrays, reply.classes = arrays_of(outgoing, rows)
        return reply

    return node.replies(answer, replace(order, guidance=guidance.with_model(unsent)), shares)
