"""The server's side of a method's questions (`strategies/common/questions.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flwr.serverapp import Grid

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import ClientReply
from fedproto_app.core.sends import Expected
from fedproto_app.core.wire import QUESTION
from fedproto_app.server.pipeline import Pipeline
from fedproto_app.strategies.common.federation import Ask, Guide
from fedproto_app.strategies.common.flower_strategy import client_replies


def asking(pipeline: Pipeline, grid: Grid, server_round: int) -> Ask:
    """Return a function that asks clients a question in this round.

    Call the function only between phases, when no other orders are waiting. Any number of replies
    is enough, because a question often goes to a single new client.
    """

    def ask(
        clients: Iterable[ClientKey],
        guide: Guide,
        expected: Expected,
        *,
        shared: Collection[str] = (),
        once_per_run: bool = False,
    ) -> list[ClientReply]:
        messages = pipeline.orders(
            clients, guide, server_round, QUESTION, shared=shared, averaged=expected.mean
        )
        answers = pipeline.usable(pipeline.ask(grid, messages), expected) if messages else []
        if once_per_run:
            values = sum(map(expected.values, answers))
            pipeline.history.log.parameters_up_once += values
        return [reply for answer in answers for reply in client_replies(answer, expected)]

    return ask
