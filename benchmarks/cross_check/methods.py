"""What is compared: each method's settings on both sides, and which of its models is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Changes = Mapping[str, object]
Judged = Literal["averaged", "trained"]  # after the clients got the last average, or before it

OUR_COLUMNS: Mapping[Judged, str] = {"averaged": "accuracy_global", "trained": "accuracy_local"}
LOCAL_EPOCHS = "local-epochs"  # in `Method.ours`: as many as the experiment has


@dataclass(frozen=True)
class Method:
    """One method's training on both sides.

    ours: settings of this app's run. algorithm, client, server: fluke's, where the text
    `LOCAL_EPOCHS` stands for a number.
    """

    name: str
    ours: Changes
    algorithm: str
    client: Changes = field(default_factory=dict)
    server: Changes = field(default_factory=lambda: {"weighted": True})


@dataclass(frozen=True)
class Row:
    """A line of the tables. method: by name. judged: which of its models tests are made with."""

    title: str
    method: str
    judged: Judged


_APFL = {"method": "apfl", "apfl.alpha": 0.5, "apfl.adaptive": False}
_EVERY_ROUND = {"weighted": True, "tau": 1}  # rounds from one average to the next

METHODS = (
    Method("fedavg", {"method": "fedavg"}, "FedAVG"),
    Method("fedprox", {"method": "fedprox", "fedprox.proximal-mu": 1.0}, "FedProx", {"mu": 1.0}),
    Method(
        "fedrep",
        {"method": "fedrep", "fedrep.head-epochs": LOCAL_EPOCHS},
        "FedRep",
        {"tau": LOCAL_EPOCHS},
    ),
    Method(
        "ditto",
        {"method": "ditto", "ditto.proximal-lambda": 1.0},
        "Ditto",
        {"lam": 1.0, "tau": LOCAL_EPOCHS},
    ),
    Method("apfl", _APFL, "APFL", {"lam": 0.5}, _EVERY_ROUND),
    Method("apfl-mended", _APFL, "mended APFL", {"lam": 0.5}, _EVERY_ROUND),
)

ROWS = (
    Row("FedAvg, averaged model", "fedavg", "averaged"),
    Row("FedAvg, after local training", "fedavg", "trained"),
    Row("FedProx, averaged model", "fedprox", "averaged"),
    Row("FedProx, after local training", "fedprox", "trained"),
    Row("FedRep, own head on the averaged encoder", "fedrep", "averaged"),
    Row("FedRep, after local training", "fedrep", "trained"),
    Row("Ditto, personal model", "ditto", "trained"),
    Row("APFL, mixture", "apfl", "trained"),
    Row("APFL, mixture, fluke's mended", "apfl-mended", "trained"),
)


def with_epochs(changes: Changes, local_epochs: int) -> dict[str, object]:
    """The settings with the number that `LOCAL_EPOCHS` stands for."""
    return {k: local_epochs if v == LOCAL_EPOCHS else v for k, v in changes.items()}
