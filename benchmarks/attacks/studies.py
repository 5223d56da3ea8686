"""The tables: methods, attacks and the rules against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from benchmarks.attacks import lies
from benchmarks.attacks.trial import CLIENTS, HOSTILE, Attack, Trial
from fedproto_app.settings import AggregationSettings
from fedproto_app.tasks.table import small_run

EVERY_RULE: tuple[str, ...] = get_args(AggregationSettings.model_fields["rule"].annotation)
HONEST = Attack("nothing")
_SOURCES = "benchmarks.attacks.poisoned:"
_MIRRORED = Attack(
    "honest training, every second value mirrored", source=_SOURCES + "mirrored_series"
)


@dataclass(frozen=True)
class Study:
    """A table. name: of the section of the page. metric: the column of clients.csv, where lower is
    better unless `higher`."""

    name: str
    settings: Mapping[str, Any]
    attacks: tuple[Attack, ...]
    rules: tuple[str, ...]
    metric: str = "mse"
    higher: bool = False

    def trial(self, rule: str, attack: Attack, hostile: int) -> Trial:
        return Trial(self.settings, self.metric, rule, attack, hostile)

    def trials(self) -> Iterator[Trial]:
        """Yield every run of the table, and for each rule also a run without lies."""
        for rule in self.rules:
            yield self.trial(rule, HONEST, 0)
            for attack in self.attacks:
                for hostile in HOSTILE[1:]:
                    yield self.trial(rule, attack, hostile)


def _series(method: str, rounds: int = 1, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        **small_run("forecasting"),
        "data.synthetic.clients": CLIENTS,
        "method": method,
        "rounds": rounds,
        "evaluate-every": rounds,
        **(more or {}),
    }


_WRITING = {
    **small_run("sequence-classification"),
    "data.clusters.clients": CLIENTS,
    "method": "fed-react",
    "rounds": 4,
    "data.synthetic.sequences": 1500,
    "sequence.batch-size": 30,
    "encoder.rounds": 3,
    "encoder.steps": 20,
    "encoder.channels": 12,
    "encoder.output-dim": 24,
    "fed-react.samples": 60,
}
_DIGITS = {
    **small_run("classification"),
    "data.partition.clients": CLIENTS,
    "data.partition.samples": 40,
    "data.partition.stages": 1,
    "data.partition.imbalance-factor": 1.0,
    "data.partition.classes": 5,
}
_HEAD, _PROTOTYPES = ("head",), ("prototypes",)
_LABELS = Attack("honest training, next digit's label", source=_SOURCES + "shifted_digits")

_STUDIES = (
    Study(
        "fedavg",
        _series("fedavg", 15),
        (
            Attack("step reversed", lies.flipped),
            Attack("step reversed, tenfold", lies.flipped_tenfold),
            Attack("noise, tenfold", lies.noise),
            Attack("all in one direction, tenfold", lies.together),
            _MIRRORED,
        ),
        EVERY_RULE,
    ),
    Study(
        "fuels",
        _series("fuels", 12, {"optimizer.learning-rate": 0.005}),
        (
            Attack("prototype times −100", lies.negated_far, about=_PROTOTYPES),
            Attack(
                "all send one victim's prototype, shifted by 100", lies.copied, about=_PROTOTYPES
            ),
        ),
        ("mean", "clipped-mean", "median"),
    ),
    Study(
        "heads",
        _WRITING,
        (
            Attack("head times −100", lies.negated_far, about=_HEAD),
            Attack("honest training, next class's label", source=_SOURCES + "shifted_writing"),
            Attack("a copied head, from round 3 on negated", lies.copied_then_turned, about=_HEAD),
        ),
        ("mean", "median"),
        metric="accuracy",
        higher=True,
    ),
    Study(
        "gldp",
        {**_DIGITS, "method": "gldp", "rounds": 6, "evaluate-every": 6},
        (Attack("prototypes negated", lies.negated, about=_PROTOTYPES), _LABELS),
        ("mean", "median"),
        metric="accuracy_global",
        higher=True,
    ),
    Study(
        "analytic",
        _series("analytic", more={"analytic.sharing": "federated"}),
        (
            Attack("sums of opposite targets", lies.opposite_sums),
            Attack("the same times 50", lies.many_opposite_sums),
            _MIRRORED,
        ),
        ("mean", "clipped-mean", "trimmed-mean", "krum"),
    ),
    Study(
        "classes",
        {**_DIGITS, "method": "analytic", "analytic.sharing": "federated"},
        (_LABELS, Attack("sums of classes negated", lies.opposite_sums)),
        ("mean", "clipped-mean", "trimmed-mean"),
        metric="accuracy_global",
        higher=True,
    ),
    *(
        Study(
            f"classes-{sharing}",
            {**_DIGITS, "method": "analytic", "analytic.sharing": sharing},
            (_LABELS,),
            ("mean",),
            metric="accuracy_local",
            higher=True,
        )
        for sharing in ("shrunk", "clustered")
    ),
    Study(
        "kindred",
        _series("kindred"),
        (
            Attack("sums of opposite targets", lies.opposite_sums),
            Attack("the same times 50", lies.many_opposite_sums),
            Attack("the same with one victim's prototype", lies.copied_opposite),
            Attack("the same with a prototype near to all", lies.opposite_of_all),
            _MIRRORED,
        ),
        ("mean",),
    ),
)
STUDIES = {study.name: study for study in _STUDIES}
