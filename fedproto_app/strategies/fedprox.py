"""FedProx (Li et al., MLSys 2020), server half: Flower's own, over our checked FedAvg."""

from __future__ import annotations

from flwr.serverapp.strategy import FedProx

from fedproto_app.server.federation import Federation
from fedproto_app.settings import FedProxSettings, Settings
from fedproto_app.strategies.fedavg import FedAvgStrategy


class FedProxStrategy(FedProx, FedAvgStrategy):
    """Flower's FedProx puts µ into the round's config; the class after it sends it."""

    def __init__(
        self, settings: Settings, section: FedProxSettings, federation: Federation
    ) -> None:
        FedAvgStrategy.__init__(self, settings, section, federation)
        self.proximal_mu = section.proximal_mu
