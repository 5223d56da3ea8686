"""The table of methods: what `method = "…"` selects on each side.

A new method is one file in ``strategies/``, one in ``learners/``, one settings section, one row
here. Both halves are imported when asked for, so a client process never loads server code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedproto_app.data.shape import DataShape
from fedproto_app.errors import SettingsError
from fedproto_app.settings import PRETRAINED, Settings
from fedproto_app.tasks.table import make_task
from fedproto_app.tasks.task import AnyTask

if TYPE_CHECKING:
    from fedproto_app.learners.learner import AnyLearner
    from fedproto_app.server.federation import Federation
    from fedproto_app.strategies.strategy import MethodStrategy

# method: (server half, client half), each "module.Class" below strategies/ and learners/
METHODS = {
    "fuels": ("jsd_prototype.JSDPrototypeStrategy", "jsd_prototype.JSDPrototypeLearner"),
    "gldp": (
        "global_local_prototype.GlobalLocalPrototypeStrategy",
        "global_local_prototype.GlobalLocalPrototypeLearner",
    ),
    "fed-react": (
        "evolutionary_cluster.EvolutionaryClusterStrategy",
        "evolutionary_cluster.EvolutionaryClusterLearner",
    ),
    "ifca": ("ifca.IfcaStrategy", "ifca.IfcaLearner"),
    "flsc": ("ifca.IfcaStrategy", "ifca.IfcaLearner"),
    "solo": ("solo.SoloStrategy", "solo.SoloLearner"),
    "fedavg": ("fedavg.FedAvgStrategy", "fedavg.FedAvgLearner"),
    "fedprox": ("fedprox.FedProxStrategy", "fedprox.FedProxLearner"),
    "fedrep": ("fedavg.FedAvgStrategy", "fedrep.FedRepLearner"),
    "apfl": ("fedavg.FedAvgStrategy", "apfl.ApflLearner"),
    "ditto": ("fedavg.FedAvgStrategy", "ditto.DittoLearner"),
    "fedproto": ("fedproto.FedProtoStrategy", "fedproto.FedProtoLearner"),
}


# The client half of the first phase of methods that learn an encoder without labels.
ENCODER_LEARNER = "contrastive_encoder.ContrastiveEncoderLearner"


def make_learner(settings: Settings, task: AnyTask, server_round: int = 1) -> AnyLearner:
    """The client half of the method that the settings choose, in the phase of the round."""
    in_first_phase = server_round <= settings.encoder_rounds
    target = ENCODER_LEARNER if in_first_phase else METHODS[settings.method][1]
    learner: AnyLearner = _load("learners", target)(settings, task)
    return learner


def make_strategy(settings: Settings, federation: Federation) -> MethodStrategy:
    """The server half of the method that the settings choose.

    Raises `SettingsError` if the method cannot work with the user's module.
    """
    _require_fitting_model(settings, federation.shape)
    strategy: MethodStrategy = _load("strategies", METHODS[settings.method][0])(
        settings, federation
    )
    if settings.method in PRETRAINED:
        wrapper = _load("strategies", "pretrained.PretrainedStrategy")
        strategy = wrapper(settings, federation, strategy)
    return strategy


def _require_fitting_model(settings: Settings, shape: DataShape) -> None:
    learner = make_learner(settings, make_task(settings, shape))
    if not learner.task.model.splits and learner.needs_representation:
        raise SettingsError(
            f"model.module = {settings.model.module!r}: method = {settings.method!r} works with "
            "the representation, so the module needs two children named encoder and head"
        )


def _load(package: str, target: str) -> Any:
    module, name = target.split(".")
    return getattr(import_module(f"fedproto_app.{package}.{module}"), name)
