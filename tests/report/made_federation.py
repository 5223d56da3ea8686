"""What a report looks at of a federation, with metrics chosen by the test."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedproto_app.core.clients import ClientFacts, ClientKey, ClientResult
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.data.shape import DataShape
from fedproto_app.server.listeners import Spending
from fedproto_app.server.membership import Roster
from fedproto_app.server.round_log import History
from fedproto_app.settings import Settings

Scores = dict[int, tuple[float, float]]  # (right, all) by stage or class


@dataclass
class MadeFederation:
    """The clients a, b, … of one node, with their metrics and train samples [stages][classes]."""

    metrics: dict[str, dict[Metric, float]]
    counts: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.history = History()
        self.history.results = {
            key(n): ClientResult(metrics, 7) for n, metrics in self.metrics.items()
        }
        self.history.trained = set(self.history.results)
        facts = {
            key(n): ClientFacts(10, "g", 0.0, self.counts.get(n, ()))
            for n in {**self.metrics, **self.counts}
        }
        self.settings, self.spending = Settings(), Spending(None)
        self.members, self.shape = Roster(facts=facts), DataShape((), self.classes)


def key(client: str) -> ClientKey:
    return ClientKey(client, "n")


def scores(stages: Scores | None = None, classes: Scores | None = None) -> dict[Metric, float]:
    """Metrics of these scores."""
    parts = {"stage": stages or {}, "class": classes or {}}
    return {
        Metric(f"{kind}/{part}-{number}"): float(score[place])
        for part, by_number in parts.items()
        for number, score in by_number.items()
        for place, kind in enumerate(("correct", "count"))
    }


def local(metrics: dict[Metric, float]) -> dict[Metric, float]:
    return {replace(metric, model=Model.LOCAL): value for metric, value in metrics.items()}


FOUR = ("ant", "bee", "cat", "dog")
LONG_TAIL = MadeFederation(
    {
        "a": {Metric("accuracy"): 0.5}
        | scores(classes={0: (1, 2), 1: (3, 4), 2: (0, 0), 3: (1, 1)})
        | local(
            {Metric("accuracy"): 0.5} | scores(classes={0: (2, 2), 1: (4, 4), 2: (0, 0), 3: (0, 1)})
        ),
        "b": {Metric("accuracy"): 0.5}
        | scores(classes={0: (0, 6), 1: (1, 4), 2: (0, 0), 3: (0, 0)}),
    },
    counts={"a": ((5, 70, 0, 1), (0, 0, 0, 2)), "b": ((20, 0, 1, 0),)},  # 25, 70, 1, 3
    classes=FOUR,
)
