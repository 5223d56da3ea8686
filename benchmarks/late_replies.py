"""docs/reliability.md: what it costs to drop replies that come one to three rounds late.

    python -m benchmarks.late_replies                # ten minutes of a core
    python -m benchmarks.late_replies --page

Hourly traffic of Milan with a week of training data: every third client is always late by one to
three rounds, or each reply is with a probability of 0.3. And synthetic traffic, where all clients
of one kind are late. A late client gets no order meanwhile. The server waits for all, drops late
replies as it does with `nodes.enough`, or counts them in the round in which they come: the model
as it was sent, or its step, which is added to the present model. Where the server waits, a round
lasts as long as its slowest client, so up to four times as long.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from flwr.app import Message, MessageType
from numpy.typing import NDArray

from benchmarks.in_process import conducted
from benchmarks.pages import (
    ROOT,
    Lines,
    Shown,
    data_root,
    made_today,
    print_table,
    publish,
    with_origin,
)
from benchmarks.parts import output_in, parser_of
from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Reply
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.sends import Expected
from fedproto_app.core.wire import ARRAYS, numpy_arrays
from fedproto_app.data.formats.synthetic_traffic import SITE_TYPES
from fedproto_app.engine.local import AT_ONCE, LocalGrid, nodes_sharing
from fedproto_app.report.runs import read_clients
from fedproto_app.server import federation
from fedproto_app.server.pipeline import Pipeline
from fedproto_app.server.replies import without
from fedproto_app.settings import settings_from
from fedproto_app.settings.reading import flat
from fedproto_app.strategies.common.federation import Guide

PAGE = ROOT / "docs" / "reliability.md"
OUTPUT = ROOT / "runs" / "results" / "late"
SEEDS = (0, 1, 2)
MOST_LATE, SHARE = 3, 0.3  # rounds, of the replies
THIRD, SOMETIMES, KIND = "a third always", "any with 0.3", "all of one kind"
WAIT, DROP, COUNT, STEP = "wait", "drop", "count", "count its step"
FEWER = "wait, same time"
ROUNDS = 30
COMMON: Mapping[str, Any] = {"evaluate-every": 10, "keep": "last", "cohort-size": 25}
METHODS: Mapping[str, Mapping[str, Any]] = {
    # Without hostile clients the trimmed mean is the mean, and each client's model is sent.
    "fedavg": {"aggregation.rule": "trimmed-mean", "aggregation.hostile-share": 0},
    "fuels": {},
    "kindred": {},
    "analytic": {},
}
# What a row compares. A reply to the only round of a closed form is never counted in a later one.
ROWS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("fedavg", THIRD): (FEWER, DROP, COUNT, STEP),
    ("fedavg", SOMETIMES): (FEWER, DROP, STEP),
    ("fedavg", KIND): (DROP, STEP),
    ("fuels", THIRD): (FEWER, DROP, COUNT),
    ("fuels", SOMETIMES): (FEWER, DROP, COUNT),
    ("kindred", THIRD): (DROP,),
    ("kindred", KIND): (DROP,),
    ("analytic", THIRD): (DROP,),
    ("analytic", KIND): (DROP,),
}


class Plan(NamedTuple):
    """Who is late, and what becomes of late replies."""

    clients: str
    policy: str
    seed: int

    def lateness(self, key: ClientKey, group: str, server_round: int) -> int:
        """Return by how many rounds a client's reply to an order of this round is late."""
        if self.policy in (WAIT, FEWER):
            return 0
        if self.clients == SOMETIMES:
            stream = numpy_stream(self.seed, "late", key.client, server_round)
            late = stream.random() < SHARE
            return int(stream.integers(1, MOST_LATE + 1)) if late else 0
        if self.clients == KIND:
            stream = numpy_stream(self.seed, "late", key.client)
            is_late = group == SITE_TYPES[self.seed].name
            return int(stream.integers(1, MOST_LATE + 1)) if is_late else 0
        _, row, column = key.client.split("_")
        place, spare = divmod(5 * int(row) + int(column) + self.seed, 3)
        return 0 if spare else 1 + place % MOST_LATE


class LatePipeline(Pipeline):
    """A pipeline whose clients' replies come late by a plan, as if each were a node.

    Each reply is checked in the round of its order.
    """

    def __init__(self, plan: Plan, *parts: Any) -> None:
        super().__init__(*parts)
        self._plan, self._round = plan, 0
        self._model: Arrays = {}  # that this round's clients got
        self._busy_until: dict[ClientKey, int] = {}  # a round
        self._late: dict[int, list[tuple[Reply, Arrays]]] = defaultdict(list)

    def orders(
        self,
        keys: Iterable[ClientKey],
        guide: Guide,
        server_round: int,
        message_type: str,
        **options: Any,
    ) -> list[Message]:
        if message_type == MessageType.TRAIN:
            self._round = server_round
            keys = [key for key in keys if self._busy_until.get(key, 0) < server_round]
        messages = super().orders(keys, guide, server_round, message_type, **options)
        if message_type == MessageType.TRAIN and ARRAYS in messages[0].content:
            self._model = numpy_arrays(messages[0].content.array_records[ARRAYS])
        return messages

    def read(self, replies: Iterable[Message], expected: Expected) -> list[Reply]:
        answers = super().read(replies, expected)
        if not self._trains:
            return answers
        [reply] = answers
        late = {}
        for name in reply.names:
            key = ClientKey(name, reply.node)
            late[name] = self._plan.lateness(key, self.members.facts[key].group, self._round)
            self._busy_until[key] = self._round + late[name]
        in_time = without(reply, [name for name, rounds in late.items() if rounds], expected)
        for name, rounds in late.items():
            if rounds:
                part = without(reply, late.keys() - {name}, expected)
                self._late[self._round + rounds].append((part, self._model))
        arrived = self._late.pop(self._round, []) if self._plan.policy != DROP else []
        return [in_time, *(self._late_reply(part, model, expected) for part, model in arrived)]

    def _late_reply(self, reply: Reply, model: Arrays, expected: Expected) -> Reply:
        """Return a late reply as it counts. model: that its client got."""
        if self._plan.policy == COUNT:
            return reply
        present, moved = self._model, reply.arrays
        moved = {name: moved[name] + present[name] - model[name] for name in expected.models}
        return replace(reply, arrays={**reply.arrays, **moved})


def error_of(method: str, plan: Plan) -> float:
    """Return the mean test MSE over the clients with the last models of a run."""
    file = OUTPUT / f"{method}-{'-'.join(map(str, plan))}.json".replace(" ", "-")
    if file.exists():
        return float(json.loads(file.read_text(encoding="utf-8"))["mse"])
    milano: dict[str, Any] = {}
    if plan.clients != KIND:
        config = ROOT / "configs" / "fuels-milano.toml"
        milano = flat(tomllib.loads(config.read_text(encoding="utf-8")))
        milano["data.path"] = str(data_root() / "milano_internet_hourly.csv.gz")
    data = {**milano, "data.calendar": "phase", "data.history": 7}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rounds = ROUNDS // (1 + MOST_LATE) if plan.policy == FEWER else ROUNDS
        run = {"method": method, "rounds": rounds, "seed": plan.seed}
        place_of_run = {**AT_ONCE, **output_in(folder)}
        settings = settings_from({**data, **COMMON, **METHODS[method], **run, **place_of_run})
        grid = LocalGrid(settings, nodes_sharing(settings.data, 1, folder / "state"))
        with mock.patch.object(federation, "Pipeline", partial(LatePipeline, plan)):
            error = float(read_clients(conducted(grid, settings))["mse"].mean())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"mse": error}), encoding="utf-8")
    return error


def table() -> Lines:
    """Return the errors if the server waits, and by how many percent other policies change them."""
    compared = (FEWER, DROP, COUNT, STEP)
    lines = [["method", "who is late", "wait, MSE", *(f"{policy}, %" for policy in compared)]]
    for (method, lateness), policies in ROWS.items():
        waited = errors_of(method, lateness, WAIT)
        line = [method, lateness, f"{waited.mean():.4f}"]
        for policy in compared:
            if policy not in policies:
                line.append("-")
                continue
            change = 100 * (errors_of(method, lateness, policy) / waited - 1)
            deviation = change.std(ddof=1) / len(SEEDS) ** 0.5
            line.append(f"{change.mean():+.1f} ± {deviation:.1f}")
        lines.append(line)
    return lines


def errors_of(method: str, lateness: str, policy: str) -> NDArray[np.float64]:
    """Return the errors by seed."""
    if policy in (WAIT, FEWER) and lateness == SOMETIMES:
        lateness = THIRD  # on the same data, and nobody is late
    return np.array([error_of(method, Plan(lateness, policy, seed)) for seed in SEEDS])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--page", action="store_true", help="write the table into the page")
    arguments = parser.parse_args()
    lines = table()
    print_table(lines, texts=2)
    if arguments.page:
        lines = with_origin(lines, "`python -m benchmarks.late_replies --page`", made_today())
        publish(PAGE, "late", "benchmarks.late_replies", lines, Shown(columns=(), keys=2))


if __name__ == "__main__":
    main()
