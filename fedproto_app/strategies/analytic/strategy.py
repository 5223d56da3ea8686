"""Ridge regression in closed form, server half: validate and add up the clients' sums."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays
from fedproto_app.core.round import Received
from fedproto_app.data.windows import lookback
from fedproto_app.maths.ridge import definite, sums_fault, symmetric, triangle
from fedproto_app.settings import DataSettings
from fedproto_app.strategies.analytic.learner import GRAM, MOMENT, sample_bound
from fedproto_app.strategies.common.client_sums import ClientSums, SumsStrategy
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.trust.averaging import Averaging, judged, levelled

# On the scale of a client's train part, its values have mean square 1; a spike that is carried over
# a gap can add to that.
LARGEST_MEAN_SQUARE = 100.0


class SumsOfRegressors(ClientSums):
    """XᵀX and Xᵀy for each step ahead.

    The values that set a client's scale have mean square 1, and its targets are among them. They
    are its train samples and fewer than `_untrained` others: the look-back, the rest of a period
    and of a horizon.
    """

    def __init__(
        self,
        federation: Federation,
        shapes: Mapping[str, tuple[int, ...]],
        received: Received,
        data: DataSettings,
    ) -> None:
        super().__init__(federation, shapes, received)
        self._untrained = lookback(data) + data.period + data.horizon

    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        fault = self.impossible(sums, samples)
        return fault and f"its sums cannot be those of {samples} samples: {fault}"

    def impossible(
        self, sums: Arrays, samples: int, share: float = 1.0, clients: int = 1
    ) -> str | None:
        moment = torch.from_numpy(sums[MOMENT]).double().unsqueeze(-1)
        gram = symmetric(torch.from_numpy(sums[GRAM]).double(), moment.shape[-2])
        squares = samples + clients * self._untrained
        return sums_fault(gram, moment, samples, LARGEST_MEAN_SQUARE, squares)

    def robust_totals(self, averaging: Averaging) -> Arrays:
        """Return totals with equal weights, without the clients whose fits suit the others' samples
        worst."""
        moment = torch.from_numpy(self.latest.stacked(MOMENT)).double().unsqueeze(-1)
        packed = torch.from_numpy(self.latest.stacked(GRAM)).double()
        gram, moment = levelled(symmetric(packed, moment.shape[-2]), moment)
        clients = len(gram)
        accepted = averaging.kept(clients)
        best = judged(gram, moment).sort(stable=True).indices[:accepted].sort().values
        # Scaled to the samples of all clients, so that a penalty acts as on the plain totals.
        factor = clients / accepted
        total = {
            GRAM: triangle(gram[best].sum(dim=0)),
            MOMENT: moment[best].sum(dim=0).squeeze(-1),
        }
        return {name: (factor * value).float().numpy() for name, value in total.items()}

    def sample_bound(self, clip: float) -> float:
        return sample_bound(clip, self.shapes[GRAM][0])

    def usable(self, totals: Arrays, deviation: float) -> Arrays:
        width = self.shapes[MOMENT][-1]
        gram = symmetric(torch.from_numpy(totals[GRAM]).double(), width)
        packed = triangle(definite(gram, deviation)).float().numpy()
        return {**totals, GRAM: packed}


class AnalyticStrategy(SumsStrategy):
    """XᵀX and Xᵀy for each step ahead."""

    def client_sums(self) -> SumsOfRegressors:
        shapes = [release.arrays for release in self.releases]
        return SumsOfRegressors(
            self.federation, shapes[0] if shapes else {}, self.received, self.settings.data
        )
