"""FCGCN: FedAvg of graph convolutional networks over communities of clients (docs: compared.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.core.method import Method
from fedproto_app.core.section import Count, Section, setting
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import DECODER
from fedproto_app.models.linear import linear, linear_parameters
from fedproto_app.models.model import ENCODER, LinearHeadModel
from fedproto_app.settings import Settings
from fedproto_app.strategies.fedavg import FedAvgLearner, FedAvgStrategy

# A graph convolutional network over the clients of a community, as one client forecasts with it.
#
# Xia, Jin and Chen (IEEE T-ITS 2023) train a GCN (Kipf and Welling, ICLR 2017). With two layers, Â
# the normalised adjacency of the community and X its clients' windows of one time, it is
#     Y = Â ReLU(Â X W₁ + b₁) W₂ + b₂
# A ReLU on Y, as in some programs, could not forecast below a client's mean, so Y has none.


class CommunityGcn(LinearHeadModel):
    """Compute a client's row of Y from samples [K, B, M·v + M + j]; its community has M members.

    A sample holds the v values of each member's row of Â X, member by member, then the client's row
    of Â, then the numbers of the time. Their calendar is added to every member's row. Padding
    members have 0 in the row of Â.
    """

    def __init__(self, hidden: int, layout: WindowLayout) -> None:
        super().__init__(hidden, layout.horizon, DECODER)
        self._layout = layout
        self._values = layout.width - layout.times

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        width = self._values + self._layout.calendar_width
        drawn = linear_parameters(width, self.representation_dim, generator)
        return {ENCODER + name: value for name, value in drawn.items()}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """Return the client's row of Â ReLU(Â X W₁ + b₁), [K, B, hidden]."""
        (samples,) = inputs
        size, width = samples.shape[1:]
        members = (width - self._layout.times) // (self._values + 1)
        rows = samples[..., : members * self._values].reshape(
            *samples.shape[:2], members, self._values
        )
        near = samples[..., members * self._values :][..., :members]  # (K, B, M)
        if self._layout.times:
            calendar = self._layout.calendar(samples).unsqueeze(2)
            rows = torch.cat([rows, calendar.expand(-1, -1, members, -1)], dim=3)
        hidden = linear(parameters, ENCODER, rows.flatten(1, 2)).relu()
        hidden = hidden.reshape(-1, size, members, self.representation_dim)
        row: Tensor = (near.unsqueeze(3) * hidden).sum(dim=2)
        return row


class FcgcnSettings(Section):
    """``[fcgcn]``."""

    hidden: Count = setting(64, "width of the first graph convolution")


def community_gcn(settings: Settings, layout: WindowLayout) -> CommunityGcn:
    """Return the model of a community."""
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
