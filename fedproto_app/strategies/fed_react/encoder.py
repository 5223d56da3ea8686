"""A strategy of two phases: FedAvg learns an encoder, then the method's own strategy runs.

The encoder is the run's global model from the first phase on. So it is written to
``model/global.safetensors``, and another run can load it (``encoder.path``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Arrays
from fedproto_app.settings import EncoderSettings, Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import MethodStrategy
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.sequences.task import SequenceTask
from fedproto_app.tasks.table import make_task


class EncoderStrategy(FedAvgStrategy):
    """The mean of the clients' encoders."""

    def first_round(self, settings: Settings) -> int:
        return 1


class PretrainedStrategy:
    """Delegates each round to the strategy of its phase."""

    def __init__(self, settings: Settings, federation: Federation, of_task: MethodStrategy) -> None:
        self._settings = settings
        self._of_task = of_task
        self._of_encoder: FedAvgStrategy | None = None
        if settings.pretraining_rounds:
            self._of_encoder = EncoderStrategy(settings, settings.encoder, federation)
            self._initial = self._of_encoder.initial_arrays()
        else:
            task = make_task(settings, federation.shape)
            assert isinstance(task, SequenceTask)
            encoder_settings = settings.encoder
            drawn = {name: value.numpy() for name, value in task.initial_encoder().items()}
            self._initial = read_encoder(encoder_settings, task) if encoder_settings.path else drawn

    def initial_arrays(self) -> Arrays:
        return self._initial

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._phase(server_round).configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self._phase(server_round).aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._phase(server_round).configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self._phase(server_round).aggregate_evaluate(server_round, replies)

    def state(self) -> dict[str, NDArray[Any]]:
        return self._of_task.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._of_task.restore(state)

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        return self._of_task.findings()

    def _phase(self, server_round: int) -> MethodStrategy:
        if self._of_encoder and server_round <= self._settings.pretraining_rounds:
            return self._of_encoder
        return self._of_task


def read_encoder(settings: EncoderSettings, task: SequenceTask) -> Arrays:
    """Return the trained encoder that the settings name.

    Raise `SettingsError` if the file is no encoder or does not fit the settings and the data.
    """
    file, where = settings.file, f"encoder.path = {settings.path!r}"
    try:
        encoder: Arrays = load_file(file)
    except FileNotFoundError:
        raise SettingsError(f"{where}: there is no {file}") from None
    # TypeError and AttributeError: NumPy has no type for the numbers.
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"{where}: {file} cannot be read as a safetensors file of float32: {error}"
        ) from None
    expected = {name: value.numpy() for name, value in task.initial_encoder().items()}
    for name in sorted(expected.keys() | encoder.keys()):
        have, need = _kind(encoder.get(name)), _kind(expected.get(name))
        if have != need:
            raise SettingsError(
                f"{where}: {name} is {have}; by [encoder] and data with {task.shape.inputs[0]} "
                f"dimensions {need} is expected"
            )
        if not np.isfinite(encoder[name]).all():
            raise SettingsError(f"{where}: {name} holds NaN or infinite values")
    return encoder


def _kind(array: NDArray[Any] | None) -> str:
    return "no array" if array is None else f"{array.dtype} {list(array.shape)}"
