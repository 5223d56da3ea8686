"""Make the client half or the server half of the chosen method.

Each half is imported on demand, so a client process never loads server code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.loading import load
from fedproto_app.core.methods import method_named, part_of, pretraining_learner
from fedproto_app.tasks.table import make_task

if TYPE_CHECKING:
    from fedproto_app.data.shape import DataShape
    from fedproto_app.data.shard import Shard
    from fedproto_app.settings import Settings
    from fedproto_app.strategies.common.federation import Federation
    from fedproto_app.strategies.common.learner import AnyLearner
    from fedproto_app.strategies.common.strategy import MethodStrategy
    from fedproto_app.tasks.task import AnyTask


def make_learner(settings: Settings, task: AnyTask, server_round: int = 1) -> AnyLearner:
    """Return the client half of the method that the settings choose, for the round's phase."""
    method = method_named(settings.method)
    pretraining = method.pretraining
    learner: AnyLearner
    if pretraining and server_round <= pretraining.rounds(settings):
        of_phase = pretraining_learner(pretraining)
        learner = of_phase(settings.training, pretraining.section(settings), task)
    else:
        of_method = part_of(method, "learner", settings.task)
        learner = of_method(settings.training, settings.method_settings, task)
    return learner


def samples_after_pretraining(settings: Settings, server_round: int) -> Callable[..., Shard] | None:
    """Return `Pretraining.samples`; None in rounds that train on the unchanged data."""
    pretraining = method_named(settings.method).pretraining
    if pretraining is None or server_round <= pretraining.rounds(settings):
        return None
    samples: Callable[..., Shard] = load(pretraining.samples, "the samples after the first phase")
    return samples


def make_strategy(settings: Settings, federation: Federation) -> MethodStrategy:
    """Return the server half of the method that the settings choose.

    Raise `SettingsError` if the method cannot work with the user's module.
    """
    method = method_named(settings.method)
    _require_fitting_model(settings, federation.shape)
    of_method = part_of(method, "strategy", settings.task)
    strategy: MethodStrategy = of_method(settings, settings.method_settings, federation)
    if method.pretraining:
        both_phases = load(method.pretraining.strategy, "the strategy of both phases")
        strategy = both_phases(settings, federation, strategy)
    return strategy


def _require_fitting_model(settings: Settings, shape: DataShape) -> None:
    learner = make_learner(settings, make_task(settings, shape))
    if not learner.task.model.splits and learner.needs_representation:
        raise SettingsError(
            f"model.module = {settings.model.module!r}: method = {settings.method!r} works with "
            "the representation, so the module needs two children named encoder and head"
        )
