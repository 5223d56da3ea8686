"""Both halves of the method that the settings choose.

Each is imported when it is asked for: a client process never loads server code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedproto_app.errors import SettingsError
from fedproto_app.methods import ENCODER_LEARNER, method_named, part_of
from fedproto_app.tasks.table import make_task
from fedproto_app.users_code import load

if TYPE_CHECKING:
    from fedproto_app.data.shape import DataShape
    from fedproto_app.learners.learner import AnyLearner
    from fedproto_app.server.federation import Federation
    from fedproto_app.settings import Settings
    from fedproto_app.strategies.common.strategy import MethodStrategy
    from fedproto_app.tasks.task import AnyTask

# The server half of a run with rounds in which an encoder is learned without labels.
ENCODER_FIRST = "fedproto_app.strategies.fed_react.encoder:PretrainedStrategy"


def make_learner(settings: Settings, task: AnyTask, server_round: int = 1) -> AnyLearner:
    """The client half of the method that the settings choose, in the phase of the round."""
    method = method_named(settings.method)
    learner: AnyLearner
    if server_round <= method.encoder_rounds(settings):
        encoder_learner = load(ENCODER_LEARNER, "the encoder's learner")
        learner = encoder_learner(settings.training, settings.encoder, task)
    else:
        of_method = part_of(method, "learner", settings.task)
        learner = of_method(settings.training, settings.method_settings, task)
    return learner


def make_strategy(settings: Settings, federation: Federation) -> MethodStrategy:
    """The server half of the method that the settings choose.

    Raises `SettingsError` if the method cannot work with the user's module.
    """
    method = method_named(settings.method)
    _require_fitting_model(settings, federation.shape)
    of_method = part_of(method, "strategy", settings.task)
    strategy: MethodStrategy = of_method(settings, settings.method_settings, federation)
    if method.encoder_first:
        strategy = load(ENCODER_FIRST, "its strategy")(settings, federation, strategy)
    return strategy


def _require_fitting_model(settings: Settings, shape: DataShape) -> None:
    learner = make_learner(settings, make_task(settings, shape))
    if not learner.task.model.splits and learner.needs_representation:
        raise SettingsError(
            f"model.module = {settings.model.module!r}: method = {settings.method!r} works with "
            "the representation, so the module needs two children named encoder and head"
        )
