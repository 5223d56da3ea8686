"""GLDP, server half: "Central Server" (GLDP, Algorithm 1, lines 3 to 8).

The representation Θ is the plain mean of the selected clients' µ (GLDP, eq. 5), through Flower's
FedAvg. The global prototype of a class is a moving average of the mean over the clients that have
the class now (GLDP, eq. 11).
"""

from __future__ import annotations

from fedproto_app.core.section import Section
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.class_prototypes import ClassPrototypes
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.strategies.gldp import GldpSettings


class GlobalLocalPrototypeStrategy(ClassPrototypes, FedAvgStrategy):
    """FedAvg of the encoders, and the global prototypes C̃ [C, D]."""

    section: GldpSettings

    def __init__(self, settings: Settings, section: Section, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        self.memory = self.section.memory
