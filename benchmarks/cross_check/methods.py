"""The compared methods: settings on both sides, and which model is tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Changes = Mapping[str, Any]
# A client's model after the last average, after the last local training, or adapted from the
# average.
Judged = Literal["averaged", "trained", "adapted"]

OUR_COLUMNS: Mapping[Judged, str] = {
    "averaged": "accuracy_global",
    "trained": "accuracy_local",
    "adapted": "accuracy_kept",
}
# Placeholders for a number of the experiment.
EPOCHS, TWICE, RATE = "local epochs", "twice the local epochs", "learning rate"


@dataclass(frozen=True)
class Method:
    """A method's training on both sides.

    ours: settings of this app's run. algorithm, client, server: fluke's. draws: whether batches
    are drawn even if a batch has all images of a client.
    """

    name: str
    ours: Changes
    algorithm: str
    client: Changes = field(default_factory=dict)
    server: Changes = field(default_factory=lambda: {"weighted": True})
    draws: bool = False


@dataclass(frozen=True)
class Row:
    """A line of the tables. method: by name. judged: which of its models is tested."""

    title: str
    method: str
    judged: Judged


_PROX = {"method": "fedprox", "fedprox.proximal-mu": 1.0}
_REP = {"method": "fedrep", "fedrep.head-epochs": EPOCHS}
_DITTO = {"method": "ditto", "ditto.proximal-lambda": 1.0}

_APFL = {"method": "apfl", "apfl.alpha": 0.5, "apfl.adaptive": False}
_EVERY_ROUND = {"weighted": True, "tau": 1}  # rounds from one average to the next

# A step takes two batches. An epoch has half as many steps here as there.
_META = {"method": "per-fedavg", "per-fedavg.step-size": 0.05, "local-epochs": TWICE}
_THEIR_META = {
    "mode": "FO",
    "beta": RATE,
    "optimizer": {"name": "SGD", "lr": 0.05},  # in whose place fluke puts the method's own
}

_MOREAU = {
    "method": "pfedme",
    "pfedme.proximal-lambda": 1.0,
    "pfedme.inner-steps": 5,
    "pfedme.outer-step": 0.1,  # fluke's is λ times the learning rate
    "optimizer.learning-rate": 0.1,
}
_THEIR_MOREAU = {"k": 5, "optimizer": {"name": "SGD", "lr": 0.1, "lamda": 1.0, "mu": 0.0}}
_WHOLE_MEAN = {"weighted": True, "beta": 1.0}

METHODS = (
    Method("fedavg", {"method": "fedavg"}, "FedAVG"),
    Method("fedprox", _PROX, "FedProx", {"mu": 1.0}),
    Method("fedrep", _REP, "FedRep", {"tau": EPOCHS}),
    Method("ditto", _DITTO, "Ditto", {"lam": 1.0, "tau": EPOCHS}),
    Method("apfl", _APFL, "APFL", {"lam": 0.5}, _EVERY_ROUND),
    Method("apfl-mended", _APFL, "mended APFL", {"lam": 0.5}, _EVERY_ROUND),
    Method("per-fedavg", _META, "PerFedAVG", _THEIR_META, draws=True),
    Method(
        "per-fedavg-mended",
        _META,
        "mended PerFedAVG",
        {**_THEIR_META, "fine_tuning_epochs": 1},
        draws=True,
    ),
    Method("pfedme", _MOREAU, "PFedMe", _THEIR_MOREAU, _WHOLE_MEAN),
    Method("pfedme-mended", _MOREAU, "mended PFedMe", _THEIR_MOREAU, _WHOLE_MEAN),
)

ROWS = (
    Row("FedAvg, averaged model", "fedavg", "averaged"),
    Row("FedAvg, after local training", "fedavg", "trained"),
    Row("FedProx, averaged model", "fedprox", "averaged"),
    Row("FedProx, after local training", "fedprox", "trained"),
    Row("FedRep, own head on the averaged encoder", "fedrep", "averaged"),
    Row("FedRep, after local training", "fedrep", "trained"),
    Row("Ditto, personal model", "ditto", "trained"),
    Row("APFL, mixture, mended", "apfl-mended", "trained"),
    Row("Per-FedAvg, averaged model, mended", "per-fedavg-mended", "averaged"),
    Row("Per-FedAvg, after a step, mended", "per-fedavg-mended", "adapted"),
    Row("pFedMe, personal model, mended", "pfedme-mended", "trained"),
    Row("APFL, mixture, as it is", "apfl", "trained"),
    Row("Per-FedAvg, averaged model, as it is", "per-fedavg", "averaged"),
    Row("pFedMe, personal model, as it is", "pfedme", "trained"),
)


def filled(changes: Changes, local_epochs: int, learning_rate: float) -> dict[str, Any]:
    """Return the settings with the experiment's numbers filled in."""
    numbers = {EPOCHS: local_epochs, TWICE: 2 * local_epochs, RATE: learning_rate}
    return {
        key: numbers.get(value, value) if isinstance(value, str) else value
        for key, value in changes.items()
    }
