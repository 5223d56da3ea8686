"""FedAvg (McMahan et al., AISTATS 2017), server half, on Flower's own strategy.

A node answers with the sample-weighted mean of its clients' models and their samples' sum, so
Flower's weighted mean over nodes is FedAvg over clients exactly. FedRep (Collins et al., ICML
2021) is the same with the encoder alone: its learner decides what is shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedproto_app.federation import Federation
from fedproto_app.methods import make_learner
from fedproto_app.roster import ClientKey
from fedproto_app.settings import Settings
from fedproto_app.strategies.strategy import MethodDefaults
from fedproto_app.tasks.forecasting import ForecastingTask
from fedproto_app.wire import Arrays, ArraySpec, Order, flower_average_input, numpy_arrays


class FedAvgStrategy(MethodDefaults, FedAvg):
    """Flower's FedAvg over clients instead of nodes, with every reply checked first."""

    def __init__(self, settings: Settings, federation: Federation) -> None:
        FedAvg.__init__(self, min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.settings, self.federation = settings, federation
        learner = make_learner(settings, ForecastingTask(settings))
        parameters = learner.initial_parameters()
        self._initial: Arrays = {
            name: value.numpy() for name, value in parameters.items() if learner.is_shared(name)
        }
        shapes = {name: value.shape for name, value in self._initial.items()}
        self.spec = ArraySpec(shapes, per_client=False)

    def initial_arrays(self) -> Arrays:
        return self._initial

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        # FedProx adds its µ to the config on the way here.
        options = {key: float(value) for key, value in config.items() if isinstance(value, float)}
        everyone = self.federation.roster.clients()
        chosen = self.federation.choose(everyone, server_round, newcomers=False)
        return self._send(chosen, server_round, arrays, options, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = self.federation.read(replies, self.spec)
        clean = [flower_average_input(answer.reply, answer.message) for answer in answers]
        arrays, _ = super().aggregate_train(server_round, clean)
        return arrays and _float32(arrays), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        if not self.federation.evaluates(server_round):
            return []
        everyone = self.federation.roster.clients()
        return self._send(everyone, server_round, arrays, {}, MessageType.EVALUATE)

    def _send(
        self,
        keys: list[ClientKey],
        server_round: int,
        arrays: ArrayRecord,
        options: dict[str, float],
        message_type: str,
    ) -> list[Message]:
        model = numpy_arrays(arrays)

        def order(its_keys: list[ClientKey]) -> Order:
            plain = self.federation.order(its_keys, server_round)
            return replace(plain, arrays=model, options=options)

        return self.federation.orders(keys, order, message_type)


def _float32(arrays: ArrayRecord) -> ArrayRecord:
    """Flower multiplies by Python floats, which keeps float32; say so rather than hope."""
    assert all(array.dtype == "float32" for array in arrays.values())
    return arrays
