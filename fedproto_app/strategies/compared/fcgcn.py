"""FCGCN: FedAvg of graph convolutional networks over communities of clients (docs: graph.md)."""

from __future__ import annotations

from fedproto_app.core.method import Method
from fedproto_app.core.section import Count, Section, setting
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.settings import Settings
from fedproto_app.strategies.compared.fcgcn import CommunityGcn
from fedproto_app.strategies.fedavg import FedAvgLearner, FedAvgStrategy


class FcgcnSettings(Section):
    """``[fcgcn]``."""

    hidden: Count = setting(64, "width of the first layer of the graph convolutional network")


def community_gcn(settings: Settings, layout: WindowLayout) -> CommunityGcn:
    """The model of a community."""
    return CommunityGcn(settings.method_table(FcgcnSettings).hidden, layout)


METHOD = Method(
    name="fcgcn",
    strategy=FedAvgStrategy,
    learner=FedAvgLearner,
    settings=FcgcnSettings,
    tasks=("forecasting",),
    model=f"{__name__}:community_gcn",
    joined_clients="fedproto_app.tasks.forecasting.communities:with_communities",
    needs_simulation="the clients of a community see each other's values",
    cannot_forecast="it needs the values of all clients of its community at the same time",
)
